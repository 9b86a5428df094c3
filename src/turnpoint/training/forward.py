"""Log-probabilities of a packed tree's trained tokens, by any decoder: the policy, or a reference."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from turnpoint.models.decoder import Decoder
from turnpoint.models.logprobs import chunked_logprobs
from turnpoint.models.tiles import tiled_logprobs
from turnpoint.training.layout import TreeLayout
from turnpoint.training.row import PackedTree


def tree_logprobs(
    decoder: Decoder, tree: PackedTree, *, temperature: float, chunk: int
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Returns log-probabilities and entropies of the N trained tokens, nats, differentiable.

    Of softmax(logits / temperature) over the ids that the tokenizer knows; no more logits than `chunk`
    tokens have exist at a time, which trades memory for speed and changes nothing.
    """
    return hidden_logprobs(decoder, tree_hidden(decoder, tree), tree, temperature=temperature, chunk=chunk)


def tree_hidden(decoder: Decoder, tree: PackedTree) -> Float[Tensor, "N D"]:
    """Returns the hidden states from which the N trained tokens are predicted, differentiable."""
    hidden = decoder.hidden(tree.token_ids, tree.positions, TreeLayout(tree.runs))
    return hidden.index_select(0, tree.predictors)


def hidden_logprobs(
    decoder: Decoder, hidden: Float[Tensor, "N D"], tree: PackedTree, *, temperature: float, chunk: int
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """As `tree_logprobs`, from what `tree_hidden` returned."""
    if (matrix := decoder.matrix()) is not None:
        weight, bias, factor = matrix
        return tiled_logprobs(
            hidden=hidden,
            weight=weight,
            bias=bias,
            targets=tree.targets,
            factor=factor / temperature,
            columns=max(1, chunk * len(weight) // len(hidden)),  # as many logits as `chunk` rows have
        )
    return chunked_logprobs(
        decoder.logits, hidden=hidden, targets=tree.targets, temperature=temperature, chunk=chunk
    )
