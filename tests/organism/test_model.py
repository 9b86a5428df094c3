"""The organism as a Hugging Face folder: what is written is read back the same, by turnpoint itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from benchmarks.organism.language import VOCABULARY, draw_problem, write_solution
from benchmarks.organism.model import CONTEXT, END, SOLVE, make_tokenizer, save_untrained
from benchmarks.organism.settings import OrganismSettings

from tests.organism.settings import TINY
from turnpoint.models.loading import LoadedModel, load_model
from turnpoint.models.renderer import ChatRenderer
from turnpoint.types import Message, token_array


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("organism")
    save_untrained(folder, TINY)
    return load_model(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def renderer(loaded: LoadedModel) -> ChatRenderer:
    return ChatRenderer(loaded.tokenizer, stop_ids=loaded.stop_ids)


def test_every_word_is_one_token_and_comes_back(renderer: ChatRenderer, loaded: LoadedModel) -> None:
    rng = random.Random(0)
    for _ in range(100):
        problem = draw_problem(rng, OrganismSettings())
        for text in (problem.question, write_solution(problem, rng, OrganismSettings()).text):
            ids = loaded.tokenizer(text)["input_ids"]
            assert len(ids) == len(text.split())
            assert loaded.tokenizer.unk_token_id not in ids
            assert renderer.text(token_array(ids)) == text
    assert len({*loaded.tokenizer(" ".join(VOCABULARY))["input_ids"]}) == len(VOCABULARY)


def test_a_prompt_ends_where_the_solution_begins(renderer: ChatRenderer, loaded: LoadedModel) -> None:
    ids = renderer.prompt([Message(role="user", content="9 A -5 B *7")])
    assert loaded.tokenizer.convert_ids_to_tokens(ids.tolist()) == ["9", "A", "-5", "B", "*7", SOLVE]


def test_the_folder_says_where_to_stop_and_how_long_it_reads(loaded: LoadedModel) -> None:
    assert loaded.stop_ids == {loaded.tokenizer.convert_tokens_to_ids(END)}
    assert loaded.context_length == CONTEXT
    assert loaded.decoder.vocab_size == len(make_tokenizer(TINY))
    assert {parameter.dtype for parameter in loaded.decoder.model.parameters()} == {torch.float32}


def test_the_seed_alone_decides_the_weights(tmp_path: Path, loaded: LoadedModel) -> None:
    torch.manual_seed(123)
    save_untrained(tmp_path, TINY)
    again = load_model(tmp_path, device="cpu", dtype="float32")
    for left, right in zip(loaded.decoder.model.parameters(), again.decoder.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_the_organism_that_experiments_use_has_one_to_five_million_weights(tmp_path: Path) -> None:
    save_untrained(tmp_path, OrganismSettings())
    model = load_model(tmp_path, device="cpu", dtype="float32").decoder.model
    assert 1_000_000 <= sum(weight.numel() for weight in model.parameters()) <= 5_000_000
