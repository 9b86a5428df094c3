"""Random models of a few thousand parameters and a character tokenizer: real code in milliseconds."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from turnpoint.models.decoder import Decoder

ARCHITECTURES = ("llama", "qwen3", "gemma", "gpt2")
GEMMA_WINDOW = 8
CONTEXT = 256

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not enable_thinking %}"
    "<think></think>{% endif %}{% endif %}"
)
SPECIAL = ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>"]


def tiny_tokenizer() -> Any:
    """Returns a tokenizer with one id per printable ASCII character, specials first, and a chat template."""
    vocab = {token: index for index, token in enumerate([*SPECIAL, "<|unk|>", *string.printable])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<|unk|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")  # type: ignore[assignment]
    tokenizer.decoder = decoders.Fuse()  # type: ignore[assignment]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|end|>",
        pad_token="<|pad|>",
        unk_token="<|unk|>",
        additional_special_tokens=SPECIAL[2:],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def byte_tokenizer() -> Any:
    """Returns a tokenizer with one id per byte in GPT-2's alphabet, and one for a blank and the byte E4."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = "\u0120\u00e4"
    vocab = {piece: index for index, piece in enumerate([*alphabet, merged])}
    tokenizer = Tokenizer(models.BPE(vocab, [(merged[0], merged[1])]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def tiny_model(architecture: str = "llama", *, vocab_size: int | None = None, seed: int = 0) -> Any:
    """Returns a random two-layer float32 model whose laws are far from uniform."""
    torch.manual_seed(seed)
    vocab = vocab_size or len(tiny_tokenizer())
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    common: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.3,
        **ends,
    }
    match architecture:
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**common))
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**common))
        case "gemma":
            layers = ["sliding_attention", "full_attention"]
            gemma = Gemma3TextConfig(**common, sliding_window=GEMMA_WINDOW, layer_types=layers)
            return Gemma3ForCausalLM(gemma)
        case "gpt2":
            sizes: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
            # dropout is on in the config: it must be off in every pass
            return GPT2LMHeadModel(GPT2Config(vocab_size=vocab, initializer_range=0.3, **sizes, **ends))
        case _:
            raise ValueError(architecture)


def tiny_decoder(architecture: str = "llama", *, seed: int = 0) -> Decoder:
    """Returns a tiny model as a `Decoder`."""
    model = tiny_model(architecture, seed=seed)
    return Decoder(model, vocab_size=model.config.vocab_size)


def save_tiny_model(folder: Path, architecture: str = "llama", *, seed: int = 0) -> Path:
    """Writes a tiny model and its tokenizer as a Hugging Face folder; returns it."""
    tiny_model(architecture, seed=seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
