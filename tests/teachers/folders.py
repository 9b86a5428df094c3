"""Folders of teachers, each but the first with one thing about it that a teacher must not have, or may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from tests.tiny import save_tiny_model, tiny_model, tiny_tokenizer


def plain(folder: Path) -> Path:
    """The smallest model with other weights."""
    return save_tiny_model(folder, seed=1)


def other_ids(folder: Path) -> Path:
    """Two ids stand for each other's string."""

    def swap(tree: Any) -> None:
        vocabulary = tree["model"]["vocab"]
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    return _edited(plain(folder), "tokenizer.json", swap)


def short_context(folder: Path) -> Path:
    """Too short for a prompt with its rollout."""

    def shorten(tree: Any) -> None:
        tree["max_position_embeddings"] = 16

    return _edited(plain(folder), "config.json", shorten)


def other_template(folder: Path) -> Path:
    """Its chat template puts a blank before every message."""
    template = plain(folder) / "chat_template.jinja"
    template.write_text(template.read_text().replace("{{ m['content'] }}", " {{ m['content'] }}"))
    return folder


def padded(folder: Path) -> Path:
    """`plain` with 84 rows more in its head than there are ids, loud ones."""
    ids = len(tiny_tokenizer())
    small, large = tiny_model(seed=1), tiny_model(seed=2, vocab_size=192)
    weights = small.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = 50 * weights[name].abs().max() * torch.ones(192, weights[name].shape[1])
        rows[:ids] = weights[name]
        weights[name] = rows
    large.load_state_dict(weights)
    plain(folder)
    large.save_pretrained(folder)
    return folder


def _edited(folder: Path, name: str, change: Any) -> Path:
    tree = json.loads((folder / name).read_text())
    change(tree)
    (folder / name).write_text(json.dumps(tree))
    return folder
