"""Generalised linear models: exact minimisers and what they leak."""
