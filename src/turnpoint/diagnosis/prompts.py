"""What the model is shown and what ends its turn, read from tokenizer, template and recipe."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from turnpoint.config import ChatPrompt, FewShotPrompt, RunConfig
from turnpoint.diagnosis.checks import Check, failed, ok, warning
from turnpoint.models.template import encode, end_of_turn, render_ids, reply_closing
from turnpoint.reports.text import cut, number, plural, visible
from turnpoint.types import Message, Task, TokenIds

_QUESTION = (Message(role="user", content="3 + 4 ="),)


def stop_sources(config: RunConfig, *, tokenizer: Any, generation_config: Any) -> dict[str, list[str]]:
    """Returns what ends the policy's turn, made readable, and where each comes from."""
    sources: dict[str, list[str]] = {}

    def add(token: int | None, source: str) -> None:
        if token is not None:
            label = f"{visible(str(tokenizer.convert_ids_to_tokens(token)))} ({token})"
            sources.setdefault(label, []).append(source)

    add(tokenizer.eos_token_id, "tokenizer")
    configured: int | list[int] | None = generation_config.eos_token_id
    for token in configured if isinstance(configured, list) else [configured]:
        add(token, "generation config")
    if tokenizer.chat_template:
        add(end_of_turn(tokenizer), "chat template")
    for text in config.sampling.stop:
        sources.setdefault(f'"{visible(text)}"', []).append("sampling.stop")
    if isinstance(config.prompt, FewShotPrompt):
        for line in config.prompt.separator.splitlines(keepends=True)[:1]:
            sources.setdefault(f'"{visible(line)}"', []).append("prompt.separator")
    return sources


def check_stop(config: RunConfig, *, tokenizer: Any, generation_config: Any) -> Check:
    """What ends a turn, and whether the template ends a reply with one of them."""
    sources = stop_sources(config, tokenizer=tokenizer, generation_config=generation_config)
    if not sources:
        return failed(
            "stop",
            "nothing ends the policy's turn: neither tokenizer, generation config, chat template nor recipe "
            "names a stop token; add sampling.stop",
        )
    listed = "; ".join(f"{label}: {', '.join(where)}" for label, where in sources.items())
    if isinstance(config.prompt, ChatPrompt) and end_of_turn(tokenizer) is None:
        closing = reply_closing(tokenizer)
        if not any(text in closing for text in config.sampling.stop):
            shown = f'"{cut(closing, 40)}"' if closing else "nothing"
            return warning(
                "stop",
                f"the chat template ends a reply with {shown}, which is none of the stops ({listed}): "
                f"a model that learned it runs on to the limit; add sampling.stop",
            )
    return ok("stop", f"a turn ends with {listed}")


def check_template(config: RunConfig, *, tokenizer: Any, prompt: TokenIds, task: Task) -> Check:
    """How the first prompt begins, and what tokenizer and template make of it."""
    prefix = _prefix(tokenizer)
    starts = prompt[: len(prefix)].tolist() == prefix
    chat = isinstance(config.prompt, ChatPrompt)
    bos: int | None = tokenizer.bos_token_id
    if bos is not None and prompt[:2].tolist() == [bos, bos]:
        return failed(
            "template",
            f"the prompt begins with {_token(tokenizer, bos)} twice; take it out of the chat template",
        )
    if prefix and not starts:
        name = _token(tokenizer, prefix[0])
        return warning("template", f"the prompt lacks {name}, which the tokenizer puts before plain text")
    if special := _special(tokenizer, task.question):
        return warning(
            "template",
            f"the first question itself holds the special {plural(len(special), 'token')} "
            f"{', '.join(special)}: is it rendered already?",
        )
    if isinstance(config.prompt, ChatPrompt) and config.prompt.thinking and not _knows_thinking(tokenizer):
        return warning(
            "template",
            "prompt.thinking = true changes nothing: the chat template does not read enable_thinking",
        )
    begins = f", begins with {_token(tokenizer, prefix[0])} once" if prefix else ""
    if chat:
        return ok("template", f"the model's chat template{begins}")
    roles = "; its chat template is not used, the model sees no roles" if tokenizer.chat_template else ""
    return ok("template", f"solved examples as plain text{begins}{roles}")


def check_vocabulary(*, tokenizer: Any, vocab_size: int, rows: int, largest_sampled: int) -> Check:
    """Whether rows of the model that no token stands for can be sampled."""
    if largest_sampled >= vocab_size:
        return failed(
            "vocabulary",
            f"id {largest_sampled} was sampled, but the tokenizer knows only {number(vocab_size)} ids",
        )
    padded = rows - vocab_size
    unknown = vocab_size - len(set(tokenizer.get_vocab().values()))
    if unknown:
        return warning(
            "vocabulary",
            f"{number(unknown)} ids below {number(vocab_size)} stand for no token of the tokenizer, and can "
            f"be sampled",
        )
    beyond = f"; the {plural(padded, 'padded row')} beyond are never sampled" if padded else ""
    return ok("vocabulary", f"{number(vocab_size)} ids of {plural(rows, 'row')}{beyond}")


def check_lengths(
    lengths: Sequence[int], *, dropped: Sequence[str], context: int, max_new_tokens: int
) -> Check:
    """Whether prompts and completions fit the context."""
    longest = max(lengths)
    text = (
        f"prompts of {min(lengths)} to {longest} tokens, median {statistics.median(lengths):.0f}; longest + "
        f"{number(max_new_tokens)} new = {number(longest + max_new_tokens)} of {number(context)}"
    )
    return warning("lengths", "; ".join([*dropped, text])) if dropped else ok("lengths", text)


def check_problems(count: int, *, needed: int) -> Check:
    """Whether enough problems are left for a step of `needed` prompts."""
    text = f"{plural(count, 'problem')} left to train on"
    if count < needed:
        return failed(
            "problems",
            f"{text}, but rollout.prompts_per_step = {needed}; add problems or take fewer prompts",
        )
    return ok("problems", f"{text}; a step takes {needed}")


def _prefix(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before plain text."""
    ids, plain = list(tokenizer("a", verbose=False)["input_ids"]), encode(tokenizer, "a")
    return ids[: next((at for at in range(len(ids)) if ids[at : at + len(plain)] == plain), 0)]


def _special(tokenizer: Any, text: str) -> list[str]:
    known = tokenizer.added_tokens_decoder
    found = dict.fromkeys(token for token in encode(tokenizer, text) if token in known)
    return [_token(tokenizer, token) for token in found if token != tokenizer.unk_token_id]


def _knows_thinking(tokenizer: Any) -> bool:
    return render_ids(tokenizer, _QUESTION, thinking=True) != render_ids(tokenizer, _QUESTION, thinking=False)


def _token(tokenizer: Any, token: int) -> str:
    return visible(str(tokenizer.convert_ids_to_tokens(token)))
