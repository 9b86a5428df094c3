"""What cannot be measured here: beyond the context, or beyond memory; refused before time is spent."""

from __future__ import annotations

from dataclasses import replace

from turnpoint.diagnosis.memory import Needs, gigabytes, largest
from turnpoint.diagnosis.rows import Shape
from turnpoint.errors import UserError


def check_context(shape: Shape, context: int) -> None:
    """Raises UserError when prompt and completion together are beyond the context."""
    prompt, new = shape.prompt_tokens, shape.new_tokens
    if prompt + new <= context:
        return
    if prompt < context:
        out = f"--new-tokens {context - prompt} is the most behind such a prompt"
    elif new < context:
        out = f"--prompt-tokens {context - new} is the most before so many new tokens"
    else:
        out = f"--prompt-tokens {context // 2} --new-tokens {context // 2} fit"
    raise UserError(
        f"--prompt-tokens {prompt} and --new-tokens {new} are {prompt + new} tokens, beyond the "
        f"{context} of the model's context; {out}"
    )


def check_rollouts(needs: Needs, *, capacity: int) -> None:
    """Raises UserError when the rollouts do not fit, with the largest batch that does."""
    if needs.total <= capacity:
        return
    shape = needs.shape

    def fits(prompts: int, samples: int) -> bool:
        return replace(needs, shape=replace(shape, prompts=prompts, samples=samples)).total <= capacity

    samples = largest(lambda value: fits(shape.prompts, value), 1, shape.samples)
    prompts = largest(lambda value: fits(value, 1), 1, shape.prompts)
    if samples is not None:
        out = f"--samples {samples} would fit"
    elif prompts is not None:
        out = f"--prompts {prompts} --samples 1 would fit"
    else:
        out = "not even one of them fits: ask for shorter ones or take a smaller model"
    parts = ", ".join(f"{name} {gigabytes(size)}" for name, size in needs.parts.items())
    raise UserError(
        f"--prompts {shape.prompts} --samples {shape.samples} of {shape.prompt_tokens} + {shape.new_tokens} "
        f"tokens take about {gigabytes(needs.total)} of {gigabytes(capacity)}: {parts}; {out}"
    )


def fitting_rows(needs: Needs, *, capacity: int) -> int | None:
    """Returns the most tokens in one row of training that fit, at most as many as asked; None if none do."""
    least = needs.shape.prompt_tokens + needs.shape.new_tokens

    def fits(tokens: int) -> bool:
        return replace(needs, micro_batch_tokens=tokens).total <= capacity

    asked = max(least, needs.micro_batch_tokens)
    return asked if fits(asked) else largest(fits, least, asked)
