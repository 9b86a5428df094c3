"""An untrained organism as a Hugging Face folder: a small Llama and a tokenizer of whole words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.organism import hindsight
from benchmarks.organism.language import VOCABULARY
from benchmarks.organism.settings import OrganismSettings

CONTEXT = 256  # tokens
PAD, END, SOLVE, UNKNOWN = "<pad>", "<end>", "<solve>", "<unknown>"

# A question is followed by <solve>, a solution by <end>.
_TEMPLATE = (
    "{% for m in messages %}{{ m['content'] }}{{ ' <end>' if m['role'] == 'assistant' else ' <solve> ' }}"
    "{% endfor %}"
)


def make_tokenizer(settings: OrganismSettings) -> Any:
    """Returns a tokenizer with one id per word of the language; words are parted by one blank.

    For an organism that reflects it also knows the sentences of turnpoint's prompts, one word each.
    """
    words = (PAD, END, SOLVE, UNKNOWN, *VOCABULARY, *(hindsight.WORDS if settings.looks_back else ()))
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    if settings.looks_back:
        shortened = [normalizers.Replace(said, f" {word} ") for said, word in hindsight.SENTENCES.items()]
        tokenizer.normalizer = normalizers.Sequence(shortened)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        unk_token=UNKNOWN,
        additional_special_tokens=[SOLVE],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = _TEMPLATE
    return fast


def make_model(settings: OrganismSettings, *, vocab_size: int) -> Any:
    """Returns a random float32 model of the size that `settings` give, the same for the same seed."""
    torch.manual_seed(settings.seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=settings.width,
        intermediate_size=settings.inner,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=CONTEXT,
        initializer_range=settings.initial_scale,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    model: Any = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    return model


def save_untrained(folder: Path, settings: OrganismSettings) -> None:
    """Writes a random model and its tokenizer to `folder`."""
    tokenizer = make_tokenizer(settings)
    make_model(settings, vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
