"""Metrics against values worked out by hand."""

import numpy as np
import pytest

from audit.statistics import metrics


def test_decomposition_by_hand():
    guesses = np.array([[[1.0, 3.0], [3.0, 3.0]]])  # one target, two runs
    parts = metrics.decompose(guesses, np.array([[1.0, 2.0]]))
    np.testing.assert_allclose(parts.mse, [((0 + 1) / 2 + (4 + 1) / 2) / 2])
    np.testing.assert_allclose(parts.variance, [1.0])  # 2 and 0 over two pixels
    np.testing.assert_allclose(parts.bias2, parts.mse - 1.0)
    one_run = metrics.decompose(np.zeros((2, 1, 3)), np.zeros((2, 3)))
    assert one_run.bias2 is one_run.variance is None
    with pytest.raises(ValueError, match=r"\(2, 3, 4\).*\(2, 1\)"):
        metrics.decompose(np.zeros((2, 3, 4)), np.zeros((2, 1)))


def test_decomposition_is_unbiased():
    """Bias .5, sd 2, 3 runs, 40,000 targets: means within 4 s.e."""
    rng = np.random.default_rng(0)
    guesses = 0.5 + 2 * rng.normal(size=(40_000, 3, 1))
    parts = metrics.decompose(guesses, np.zeros((40_000, 1)))
    for got, want in ((parts.bias2, 0.25), (parts.variance, 4.0), (parts.mse, 4.25)):
        assert abs(got.mean() - want) < 4 * got.std() / 200


def test_a_mean_over_crossed_values_varies_with_rows_and_columns():
    """Records that share releases: the mean's own spread over fresh tables."""
    rng = np.random.default_rng(3)
    shape = many, rows, columns = 400, 30, 10
    for parts in ((1, 2, 1), (1, 0, 1), (0, 2, 0), (0, 0, 1)):
        sizes = (many, rows, 1), (many, 1, columns), shape
        pairs = zip(parts, sizes, strict=True)
        tables = sum(part * rng.normal(size=size) for part, size in pairs)
        each = [metrics.crossed_standard_error(table) for table in tables]
        spread = tables.mean((1, 2)).std()
        # too large, if anything, where only single values vary
        assert 0.9 < np.sqrt(np.mean(np.square(each))) / spread < 1.3
    one_column = tables[0][:, :1]
    alone = metrics.standard_error(one_column[:, 0])
    assert metrics.crossed_standard_error(one_column) == alone
    assert np.isnan(metrics.crossed_standard_error([[1.0, 2.0]]))


def test_small_numbers_by_hand():
    np.testing.assert_allclose(metrics.standard_error([0.0, 2.0]), 1.0)
    assert np.isnan(metrics.standard_error([1.0]))
    assert metrics.win_rate([1, 2, 3, 4], [2, 2, 2, 5]) == 0.5
    a = np.zeros((2, 4, 4, 1))
    b = a + np.array([0.1, 0.0]).reshape(2, 1, 1, 1)
    np.testing.assert_allclose(metrics.psnr(a, b), [20.0, np.inf])


@pytest.mark.parametrize(("side", "window"), [(28, 11), (11, 11), (10, 9), (8, 7)])
def test_ssim_window_fits_the_image(side, window):
    rng = np.random.default_rng(0)
    a = rng.uniform(size=(2, side, side, 1))
    value, used = metrics.ssim(a, a)
    assert used == window
    np.testing.assert_allclose(value, 1.0, atol=1e-5)
    assert (metrics.ssim(a, rng.uniform(size=a.shape))[0] < 0.5).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_ssim_of_constant_images(channels):
    """No structure is left: (2ab + c) / (a^2 + b^2 + c), c = .01^2."""
    a, b = (np.full((1, 12, 16, channels), v) for v in (0.2, 0.6))
    want = (2 * 0.12 + 1e-4) / (0.04 + 0.36 + 1e-4)
    np.testing.assert_allclose(metrics.ssim(a, b)[0], [want], rtol=1e-3)
