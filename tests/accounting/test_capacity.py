"""Bayes capacity: closed forms, and integrals made otherwise."""

import math

import pytest
from scipy import integrate

from audit.accounting import capacity


@pytest.mark.parametrize(
    ("dimension", "kappa", "want"),
    [(2, 1, 0.7641), (3, 1, 0.8386), (10, 10, 6.148), (100, 100, 62.18)],
)
def test_directions(dimension, kappa, want):
    assert capacity.von_mises_fisher(dimension, kappa) == pytest.approx(want, rel=1e-3)


def test_directions_on_the_sphere_in_closed_form():
    want = math.log(2 * 5 / (1 - math.exp(-2 * 5)))
    assert capacity.von_mises_fisher(3, 5.0) == pytest.approx(want)


@pytest.mark.parametrize(("dimension", "want"), [(1, 1.798), (10, 17.14), (100, 16791)])
def test_gaussian_of_the_unit_ball(dimension, want):
    assert math.exp(capacity.gaussian(dimension, 1.0)) == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("radius", [0.01, 0.5, 30.0])
def test_gaussian_on_a_line_and_in_the_plane(radius):
    line = 1 + 2 * radius / math.sqrt(2 * math.pi)
    assert math.exp(capacity.gaussian(1, radius)) == pytest.approx(line, rel=1e-5)

    def density(u):
        return (radius + u) * math.exp(-u * u / 2)

    plane = radius**2 / 2 + integrate.quad(density, 0, 12)[0]
    assert math.exp(capacity.gaussian(2, radius)) == pytest.approx(plane, rel=1e-5)


def test_gaussian_in_many_dimensions_is_that_of_small_noise_levels():
    """For radius << 1: 1 + radius E|g|, of a standard normal g."""
    dimension, radius = 25_450, 1e-4
    length = math.sqrt(dimension)
    want = math.log1p(radius * length)
    assert capacity.gaussian(dimension, radius) == pytest.approx(want, rel=0.01)
