"""Task advantage and teacher signal as one advantage per token.

    A = A_task + coef * d

The signal is added after the task advantage was normalised. The sum is never normalised again: whitening
a teacher's signal gives it the same size at every distance from the teacher, so that coef loses its
meaning and the noise grows as the student arrives.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def combine_advantages(
    task_advantages: Float[Tensor, "*tokens"] | None,
    signal: Float[Tensor, "*tokens"],
    *,
    coef: float | Float[Tensor, "*tokens"],
) -> Float[Tensor, "*tokens"]:
    """Returns `task_advantages + coef * signal`, detached; without task advantages, `coef * signal`.

    `signal` is in nats (`turnpoint.teachers.sampled_token_signal`), `coef` in advantage per nat, one for
    all tokens or one each. Raises ValueError for different shapes; nothing is broadcast.
    """
    shapes = {tensor.shape for tensor in (task_advantages, signal, coef) if isinstance(tensor, Tensor)}
    if len(shapes) != 1:
        raise ValueError(f"one value per token each, got shapes {sorted(list(shape) for shape in shapes)}")
    pure = coef * signal.detach()
    return pure if task_advantages is None else task_advantages.detach() + pure
