"""Log-probabilities of a packed tree's trained tokens, by any decoder: the policy, or a reference."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from turnpoint.models.decoder import Decoder
from turnpoint.models.logprobs import chunked_logprobs
from turnpoint.training.layout import TreeLayout
from turnpoint.training.row import PackedTree


def tree_logprobs(
    decoder: Decoder, tree: PackedTree, *, temperature: float, chunk: int
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Returns log-probabilities and entropies of the N trained tokens, nats, differentiable.

    Of softmax(logits / temperature) over the ids that the tokenizer knows; `chunk` tokens at a time have
    logits, which trades memory for speed and changes nothing.
    """
    hidden = decoder.hidden(tree.token_ids, tree.positions, TreeLayout(tree.runs))
    return chunked_logprobs(
        decoder.logits,
        hidden=hidden.index_select(0, tree.predictors),
        targets=tree.targets,
        temperature=temperature,
        chunk=chunk,
    )
