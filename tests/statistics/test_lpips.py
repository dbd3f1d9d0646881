"""LPIPS equals the reference package, wherever its weights come from."""

import hashlib
import json
import os
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from audit.statistics import lpips as perceptual
from audit.statistics.lpips import WeightsUnavailable, load_weights, lpips, lpips_images
from tests.statistics.make_lpips_reference import inputs, reference

REFERENCE = json.loads(Path(__file__).with_name("lpips_reference.json").read_text())


@pytest.fixture(scope="module")
def weights():
    """The installed package's weights, whatever AUDIT_DATA says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AUDIT_DATA", raising=False)
        return load_weights()


QUICK = 2  # sizes; each is a program of its own


@pytest.mark.parametrize(
    "row",
    REFERENCE[:QUICK]
    + [pytest.param(row, marks=pytest.mark.slow) for row in REFERENCE[QUICK:]],
    ids=lambda r: f"{r['height']}x{r['width']}",
)
def test_equals_the_reference_package(weights, row):
    a, b = inputs(row["height"], row["width"], row["seed"])
    assert abs(float(lpips(weights, a, b)) - row["lpips"]) < 1e-5


def test_parity_with_the_installed_reference():
    pytest.importorskip("torch")
    pytest.importorskip("lpips")
    a, b = inputs(48, 48, 7)
    assert abs(float(lpips(load_weights(), a, b)) - reference()(a, b)) < 1e-5


def test_jit_vmap_symmetry_and_identity(weights):
    pairs = [inputs(33, 40, seed) for seed in (1, 2)]
    a, b = (np.stack(side) for side in zip(*pairs, strict=True))
    many = jax.jit(jax.vmap(lpips, (None, 0, 0)))
    one = [float(lpips(weights, *pair)) for pair in pairs]
    np.testing.assert_allclose(many(weights, a, b), one, atol=1e-6)
    np.testing.assert_allclose(many(weights, b, a), one, atol=1e-6)
    np.testing.assert_allclose(many(weights, a, a), 0, atol=1e-7)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((30, 40, 3), (30, 40, 3)),
        ((32, 32, 1), (32, 32, 1)),
        ((64, 64, 3), (31, 31, 3)),
    ],
    ids=["too small", "grey", "two shapes"],
)
def test_images_it_cannot_judge_are_refused(weights, one, other):
    with pytest.raises(ValueError, match="at least 31 pixels"):
        lpips(weights, np.zeros(one), np.zeros(other))


def test_channel_layout_matters(weights):
    """The thesis' code reshapes where it should transpose; that is another number."""
    a, b = inputs(64, 64, 1)
    scrambled = [v.reshape(3, 64, 64).transpose(1, 2, 0) for v in (a, b)]
    assert abs(float(lpips(weights, a, b)) - float(lpips(weights, *scrambled))) > 1e-3


def test_scorecard_wrapper(weights):
    """Grey is repeated, 28 pixels become 64, [0, 1] becomes [-1, 1]; any count."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-0.2, 1.2, (2, 53, 28, 28, 1))
    got = lpips_images(weights, a, b)
    assert got.shape == (53,)

    def prepare(x):
        x = jax.image.resize(np.clip(x, 0, 1), (64, 64, 1), "bilinear")
        return 2 * np.repeat(x, 3, -1) - 1

    want = float(lpips(weights, prepare(a[52]), prepare(b[52])))
    np.testing.assert_allclose(got[52], want, atol=1e-5)


def test_the_named_folder_comes_first(weights, monkeypatch, tmp_path):
    """In torchvision's layout; a folder without the file leaves the package."""
    arrays = {f"lin{i}": head for i, head in enumerate(weights.heads)}
    for (i, *_), kernel, bias in zip(
        perceptual.LAYERS, weights.kernels, weights.biases, strict=True
    ):
        arrays[f"features.{i}.weight"] = kernel.transpose(3, 2, 0, 1)
        arrays[f"features.{i}.bias"] = bias
    monkeypatch.setenv("AUDIT_DATA", str(tmp_path))
    assert perceptual.weights_source().name == "alexnet.ckpt"
    (tmp_path / "lpips").mkdir()
    np.savez(tmp_path / "lpips" / "alex.npz", **arrays)
    assert perceptual.weights_source() == tmp_path / "lpips" / "alex.npz"
    jax.tree.map(np.testing.assert_array_equal, load_weights(), weights)


def test_both_sources_are_equal_to_the_bit(weights, full_data):
    assert perceptual.weights_source().suffix == ".npz"
    jax.tree.map(np.testing.assert_array_equal, load_weights(), weights)


def test_authors_example(weights, full_data):
    from PIL import Image

    def read(name):
        with Image.open(Path(full_data) / "lpips" / f"{name}.png") as image:
            return np.asarray(image.convert("RGB"), np.float32) / 127.5 - 1

    ref = read("ex_ref")
    for name, want in (("ex_p0", 0.72188), ("ex_p1", 0.13757)):
        assert abs(float(lpips(weights, ref, read(name))) - want) < 1e-4


class Evil:
    def __reduce__(self):
        return os.system, ("echo evil",)


DAMAGE = {
    "another file": ("a.ckpt", pickle.dumps({"AlexNet_0": {}}), "not the known one"),
    "a script": ("a.ckpt", pickle.dumps(Evil()), "refused to unpickle"),
    "no zip": ("a.npz", b"PK not a zip", "is damaged"),
    "nothing": ("nothing.ckpt", None, r"nothing\.ckpt"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_weights_that_cannot_be_had(damage, monkeypatch, tmp_path):
    """A pickle makes arrays and nothing else, even behind the right checksum."""
    name, raw, message = DAMAGE[damage]
    path = tmp_path / name
    if raw is not None:
        path.write_bytes(raw)
    monkeypatch.delenv("AUDIT_DATA", raising=False)
    monkeypatch.setattr(perceptual, "_places", lambda: [path])
    if damage == "a script":
        right = hashlib.sha256(raw).hexdigest()
        monkeypatch.setattr(perceptual, "CHECKPOINT", right)
    assert (perceptual.weights_source() is None) == (raw is None)
    with pytest.raises(WeightsUnavailable, match=message):
        load_weights()
