"""Tokenizers and chat templates with the habits of real ones."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are helpful.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Opens with a BOS that the tokenizer would add as well, trims content, ends turns without a line break.
BOS_AND_TRIM = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Rewrites history: an empty thought before the last reply only, and none of the earlier thoughts.
DROPS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m['content'].split('</think>')[-1] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
# A blank before the end of the turn, no system role, and an odd name for the assistant.
STRICT = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]{% else %} {{ m['content'] }} <|im_end|>"
    "{% endif %}{% endfor %}"
)
# The next header ends a turn; nothing else does.
HEADERS_ONLY = (
    "{% for m in messages %}{% if m['role'] == 'user' %}<|im_start|>\n{% else %}<think>\n{% endif %}"
    "{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
)
COUNTS_TURNS = (
    "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}turn {{ messages | length }}{% endif %}"
)
LAST_MESSAGE_ONLY = (
    "{{ messages[-1]['content'] }}<|im_end|>{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
NO_BORDER = "{% for m in messages %}{{ m['content'] }}s and {% endfor %}"

_TEXT = [
    "the reply to the question was questions and answers: three plus four is seven",
    "turn 1\n\nturn 2\n",
    "replys",  # so that a reply and an s behind it make one token
]


def bpe_tokenizer(template: str | None = CHATML, *, adds: str = "") -> Any:
    """Returns a byte-level BPE tokenizer with merges; `adds`: "bos", "bos eos", put around raw text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer: Any = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_TEXT * 10, trainer)
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    if adds:
        around = "<s> $A </s>" if adds == "bos eos" else "<s> $A"
        tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
            single=around, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = template
    return fast
