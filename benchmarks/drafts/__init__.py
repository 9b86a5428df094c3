"""Test beds of draft heads: models, what they write, and heads trained on it."""
