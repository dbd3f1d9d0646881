"""Randomness addressed by name, not by order."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from jax import Array


def stream(key: Array, name: str) -> Array:
    """Return the key of the stream called `name`.

    Adding a stage to a program therefore never changes the bits of another stage.

    Args:
      key: a typed key.
      name: any string; equal names give equal streams.
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
