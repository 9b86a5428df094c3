"""How draft heads are wired and what a checkpoint calls their tensors, as data.

    g_0 = h_t                                               the backbone's state at the anchor t
    u   = projection [ norm(embedding of token t + i) ; norm(g_(i-1)) ]          in one order or the other
    y   = decoder layer(u)                                  of the backbone's own architecture
    g_i = y  or  final norm(y),      draft of token t + i + 1 = head(final norm(y))

Families differ in the order, in which state they are given, in which they hand on, in the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from turnpoint.errors import ModelError

MAX_DEPTH = 16  # tokens; layers may be used again, but no round that long pays


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """What a checkpoint calls the modules; {index} is the layer's number, without it layers share one."""

    embedding_norm: str
    hidden_norm: str
    projection: str
    layer: str  # the decoder layer
    final_norm: str
    counts_on: bool = False  # whether {index} goes on from the backbone's last layer
    embedding: str | None = None  # a copy of the backbone's embedding, where the family stores one
    head: str | None = None  # and of its output head


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpLayout:
    """The wiring of a recurrent chain of draft heads.

    `attention` says which keys a chain sees beside its own: `first_use`, those that its layer computed when
    it was used first, which is what one cache per layer holds in decoding; `same_depth`, those of its own
    depth, as DeepSeek-V3 trains it, which takes a cache per depth to decode.
    """

    name: str
    layers: int  # decoder layers; depth i uses layer (i - 1) % layers
    order: Literal["embedding_first", "hidden_first"] = "embedding_first"
    hidden: Literal["pre_norm", "post_norm"] = "post_norm"  # the backbone's state, by its final norm
    carried: Literal["pre_norm", "post_norm"] = "post_norm"  # what a depth hands on, by the head's final norm
    zero_first: bool = False  # whether the embedding that goes with position 0 is zero
    norms: Literal["weight", "delta"] = "weight"  # stored: w of w * x, or d of (1 + d) * x
    attention: Literal["first_use", "same_depth"] = "first_use"
    names: TensorNames

    @property
    def fusions(self) -> int:
        """How many sets of norms and projection there are: one for each layer, or one for all."""
        return self.layers if "{index}" in self.names.projection else 1

    def slots(self, depth: int) -> int:
        """Returns how many caches decoding to `depth` takes."""
        return depth if self.attention == "same_depth" else min(depth, self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """The wiring of heads that draft side by side: block i maps the anchor's state to the draft i ahead."""

    depth: int  # blocks; each drafts one token
    name: str = "parallel"


_DEEPSEEK = TensorNames(
    embedding_norm="model.layers.{index}.enorm",
    hidden_norm="model.layers.{index}.hnorm",
    projection="model.layers.{index}.eh_proj",
    layer="model.layers.{index}",
    final_norm="model.layers.{index}.shared_head.norm",
    counts_on=True,
    embedding="model.layers.{index}.embed_tokens",
    head="model.layers.{index}.shared_head.head",
)
_DEEPSEEK_V3 = MtpLayout(
    name="deepseek_v3", layers=1, hidden="pre_norm", carried="pre_norm", zero_first=True, names=_DEEPSEEK
)
_OWN = TensorNames(
    embedding_norm="layers.{index}.embedding_norm",
    hidden_norm="layers.{index}.hidden_norm",
    projection="layers.{index}.projection",
    layer="layers.{index}.block",
    final_norm="layers.{index}.final_norm",
)
PRESETS: Mapping[str, MtpLayout] = {
    layout.name: layout
    for layout in (
        MtpLayout(name="turnpoint", layers=1, names=_OWN),
        _DEEPSEEK_V3,
        replace(_DEEPSEEK_V3, name="glm4_moe"),
        MtpLayout(
            name="qwen3_next",
            layers=1,
            norms="delta",
            names=TensorNames(
                embedding_norm="mtp.pre_fc_norm_embedding",
                hidden_norm="mtp.pre_fc_norm_hidden",
                projection="mtp.fc",
                layer="mtp.layers.{index}",
                final_norm="mtp.norm",
            ),
        ),
        MtpLayout(
            name="mimo",
            layers=1,
            order="hidden_first",
            hidden="pre_norm",
            zero_first=True,
            names=TensorNames(
                embedding_norm="model.mtp_layers.{index}.token_layernorm",
                hidden_norm="model.mtp_layers.{index}.hidden_layernorm",
                projection="model.mtp_layers.{index}.input_proj",
                layer="model.mtp_layers.{index}",
                final_norm="model.mtp_layers.{index}.final_layernorm",
            ),
        ),
    )
}


def mtp_layout(name: str, *, layers: int = 1) -> MtpLayout:
    """Returns the layout of a family: turnpoint, deepseek_v3, glm4_moe, qwen3_next (and 3.5), mimo.

    Raises ModelError for a name that is none of these and for less than one layer.
    """
    if name not in PRESETS:
        raise ModelError(f"draft heads of layout {name!r}: not known; known are {', '.join(PRESETS)}")
    if layers < 1:
        raise ModelError(f"draft heads of {layers} layers: they have 1 or more")
    return replace(PRESETS[name], layers=layers)


def layout_tree(layout: MtpLayout | ParallelLayout) -> dict[str, Any]:
    """Returns the layout as JSON holds it."""
    return asdict(layout)


def read_layout(tree: Any, *, source: str) -> MtpLayout | ParallelLayout:
    """Returns the layout that `layout_tree` wrote; raises ModelError naming `source` for anything else."""
    kind = ParallelLayout if isinstance(tree, dict) and "depth" in tree else MtpLayout
    try:
        layout: Any = kind(**_checked(kind, tree))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(
            f"{source}: its layout is not one that this version knows ({error}); "
            f"it was written by another version, or by hand"
        ) from error
    return layout


def _checked(kind: Any, tree: Any) -> dict[str, Any]:
    types = get_type_hints(kind)
    known = {field.name for field in fields(kind)}
    if set(tree) != known:
        raise ValueError(f"keys {', '.join(sorted(set(tree) ^ known))} are too many or missing")
    values = dict(tree)
    for key, value in tree.items():
        if (choices := get_args(types[key])) and value not in choices and str not in choices:
            raise ValueError(f"{key} = {value!r}")
        if types[key] is TensorNames:
            values[key] = TensorNames(**_checked(TensorNames, value))
        elif types[key] in (int, bool, str) and type(value) is not types[key]:
            raise ValueError(f"{key} = {value!r}")
        elif types[key] is int and value < 1:
            raise ValueError(f"{key} = {value}")
    return values
