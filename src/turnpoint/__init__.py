"""turnpoint: RL post-training of language models with verifiable rewards.

Importing this package loads no torch, transformers, ray, vllm or tracker; its folders load on first use.
"""
