"""Channels of images: by public statistics, or as usual for a data set."""

import numpy as np
import pytest

from audit import data
from audit.config import hydra_app
from audit.data import DataError
from audit.types import Examples, Splits

RNG = np.random.default_rng(0)


def images(n, channels=3):
    x = RNG.uniform(0, 1, (n, 4, 4, channels)).astype(np.float32)
    return Examples(x, np.zeros(n, np.int32))


def splits(channels=3):
    parts = [images(n, channels) for n in (50, 20, 3, 10, 10)]
    return Splits(*parts, np.arange(10))


def test_channels_by_public_statistics():
    raw = splits()
    done = data.prepare_features(raw, channels=True)
    np.testing.assert_allclose(done.public.x.mean((0, 1, 2)), 0, atol=1e-6)
    np.testing.assert_allclose(done.public.x.std((0, 1, 2)), 1, atol=1e-6)
    mean, sd = raw.public.x.mean((0, 1, 2)), raw.public.x.std((0, 1, 2))
    np.testing.assert_allclose(done.targets.x, (raw.targets.x - mean) / sd, atol=1e-5)


def test_centred_channels_are_from_minus_one_to_one():
    raw = splits(1)
    done = data.prepare_features(raw, channels="centred")
    np.testing.assert_allclose(done.fixed.x, 2 * raw.fixed.x - 1, atol=1e-6)
    np.testing.assert_array_equal(done.pool_source, raw.pool_source)


def test_channels_as_is_usual():
    raw = splits()
    done = data.prepare_features(raw, channels="cifar10")
    want = (raw.fixed.x - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    np.testing.assert_allclose(done.fixed.x, want, rtol=1e-5, atol=1e-6)
    with pytest.raises(DataError, match=r"is of 3 channels, .* shape \(4, 4, 1\)"):
        data.prepare_features(splits(1), channels="cifar10")


@pytest.mark.parametrize("channels", [True, "cifar10", "centred"])
def test_standardised_pixels_have_ends(channels):
    black_and_white = splits()
    for end in (0, 1):
        black_and_white.fixed.x[end] = end
    low, high = data.pixel_domain(black_and_white, channels)
    got = data.prepare_features(black_and_white, channels=channels).fixed.x
    np.testing.assert_allclose(got[0].reshape(-1), low, rtol=1e-5)
    np.testing.assert_allclose(got[1].reshape(-1), high, rtol=1e-5)


@pytest.mark.parametrize("channels", [True, False])
def test_a_data_set_may_bring_its_own_features(channels):
    """The stand-in brings normalised channels; what is typed wins."""
    words = ["scenario=cifar10_linear_public", "data=mnist5k"]
    words += [] if channels else ["features.channels=false"]
    scenario, _ = hydra_app.composed(words)
    assert scenario.spec.features.channels is channels
    assert scenario.resolved()["features"]["channels"] is channels
