"""The published prior: what was committed is what is fitted and what is drawn."""

import numpy as np
import pytest

from audit import data
from tests.data import make_digits_mixture


def test_the_committed_mixture_is_what_the_script_fits():
    prior = data.load("digits_mixture").prior
    for name, want in make_digits_mixture.fitted().items():
        np.testing.assert_allclose(getattr(prior, name), want, atol=1e-5)


def test_records_have_the_moments_of_the_prior():
    """Means and covariances of every class, within five standard errors."""
    dataset = data.load("digits_mixture", 3)
    x, y = dataset.x_train.reshape(len(dataset.y_train), -1), dataset.y_train
    assert x.min() < 0, "values are not clipped"
    for label, (w, m, cov) in enumerate(zip(*dataset.prior, strict=True)):
        mine, mean = x[y == label].astype(float), w @ m
        total = cov + (m - mean).T @ (w[:, None] * (m - mean))
        se = np.sqrt(np.diag(total) / len(mine))
        assert (np.abs(mine.mean(0) - mean) < 5 * se).all()
        np.testing.assert_allclose(np.cov(mine.T), total, atol=0.2 * total.max())


def test_every_seed_draws_other_records():
    a, b, again = (data.load("digits_mixture", seed).x_train for seed in (0, 1, 0))
    assert not np.isclose(a, b).any(1).all()
    np.testing.assert_array_equal(a, again)


def test_classes_keep_their_part_of_the_prior():
    """In the order in which they are chosen."""
    dataset = data.load("digits_mixture")
    swapped = data.choose_classes(dataset, [1, 0])
    np.testing.assert_array_equal(swapped.prior.means, dataset.prior.means[::-1])
    assert data.load("digits").prior is None
    with pytest.raises(data.DataError, match="classes"):
        data.choose_classes(dataset, [2])
