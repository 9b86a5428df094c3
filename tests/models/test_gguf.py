"""GGUF conversion: the law that transformers reads from the file, once and whole, errors in one line."""

import importlib.util
import json
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models.tokenizers import CHATML, bpe_tokenizer
from turnpoint.errors import ModelError
from turnpoint.models import convert_gguf, gguf, load_model

pytestmark = pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="needs the quickstart extra")

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER, CONTEXT = 32, 2, 4, 2, 64, 128


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setenv("TURNPOINT_CACHE", str(tmp_path / "cache"))


def write_gguf(file: Path, *, seed: int = 0) -> Path:
    """Writes a random two-layer Llama with tied embeddings and a byte-level BPE tokenizer as GGUF."""
    import gguf as library

    tokenizer = bpe_tokenizer()
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    tokens = [tokenizer.convert_ids_to_tokens(index) for index in range(len(tokenizer))]
    control = {token.content for token in tokenizer.added_tokens_decoder.values()}
    writer = cast(Any, library).GGUFWriter(file, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_name("tiny")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in control else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(3)
    writer.add_chat_template(CHATML)
    generator = torch.Generator().manual_seed(seed)
    for name, shape in _shapes(len(tokens)).items():
        weights = torch.randn(shape, generator=generator) * 0.3
        writer.add_tensor(name, (weights + 1 if len(shape) == 1 else weights).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _shapes(vocab: int) -> dict[str, tuple[int, ...]]:
    kv = KV_HEADS * HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (vocab, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        parts = {
            "attn_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,),
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (INNER, HIDDEN),
            "ffn_up": (INNER, HIDDEN),
            "ffn_down": (HIDDEN, INNER),
        }
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}
    return shapes


@torch.no_grad()
def test_the_folder_holds_the_law_and_the_tokenizer_of_the_file(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = convert_gguf(file)
    read = cast(Any, AutoModelForCausalLM).from_pretrained
    ids = torch.arange(4, 40).unsqueeze(0)
    expected = read(tmp_path, gguf_file=file.name, dtype=torch.float32)(input_ids=ids).logits
    assert torch.equal(read(folder)(input_ids=ids).logits, expected)
    original = cast(Any, AutoTokenizer).from_pretrained(tmp_path, gguf_file=file.name)
    converted = cast(Any, AutoTokenizer).from_pretrained(folder)
    for text in ("the reply\t  was <|im_end|>\n", "naïve 漢字 🙂 \u200b", ""):
        assert converted(text)["input_ids"] == original(text)["input_ids"]
        assert converted.decode(converted(text)["input_ids"], clean_up_tokenization_spaces=False) == text
    assert converted.chat_template == CHATML


def test_a_gguf_file_loads_like_a_folder_and_is_converted_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(file, device="cpu", dtype="float32")
    assert (loaded.context_length, loaded.stop_ids, loaded.source) == (CONTEXT, {3}, str(file))
    assert loaded.decoder.head.weight is loaded.decoder.model.get_input_embeddings().weight
    assert "converting tiny.gguf once" in capsys.readouterr().err
    moved = file.rename(tmp_path / "Tiny.gguf")  # the content counts
    assert load_model(moved, device="cpu", dtype="float32").folder == loaded.folder
    assert "converting" not in capsys.readouterr().err
    other = write_gguf(tmp_path / "tiny.gguf", seed=1)
    assert convert_gguf(other) != loaded.folder


def test_two_conversions_at_once_leave_one_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    both = threading.Barrier(2, timeout=60)
    one_at_a_time = threading.Lock()  # transformers' settings are global; processes are what is meant
    convert = gguf._convert  # pyright: ignore[reportPrivateUsage]

    def together(file: Path, folder: Path) -> None:
        both.wait()
        with one_at_a_time:
            convert(file, folder)
        both.wait()

    monkeypatch.setattr(gguf, "_convert", together)
    found: list[Path] = []
    workers = [threading.Thread(target=lambda: found.append(convert_gguf(file))) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 2
    assert found[0] == found[1]
    assert os.listdir(tmp_path / "cache") == [found[0].name]
    assert load_model(found[0], device="cpu", dtype="float32").context_length == CONTEXT


def test_a_truncated_file_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    for size in (20, 3000, file.stat().st_size - 2000):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(file.read_bytes()[:size])
        with pytest.raises(ModelError, match=r"model .*cut\.gguf: its .* cannot be read") as caught:
            convert_gguf(cut)
        assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "cache") == []


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", dict[str, None]().get)
    with pytest.raises(ModelError, match=r"needs gguf and accelerate: pip install 'turnpoint\[quickstart\]'"):
        convert_gguf(file)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "occupied").touch()
    monkeypatch.setenv("TURNPOINT_CACHE", str(tmp_path / "occupied"))
    with pytest.raises(ModelError, match="TURNPOINT_CACHE names another place"):
        convert_gguf(file)
