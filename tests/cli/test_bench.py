"""The benchmark measures what it says, at a size a test can afford."""

import pytest

from audit.cli import bench
from audit.types import Lanes


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "FIXED", 50)
    monkeypatch.setattr(bench, "PIXELS", (6, 6, 1))
    monkeypatch.setattr(bench, "MODELS", 32)
    monkeypatch.setattr(bench, "LOOPED", 3)


def test_every_defense_is_measured_and_equals_the_loop(small):
    bench_result = bench.measure(Lanes(8))
    names = [s.name for s in bench_result.speeds]
    assert names == [*bench.SETTINGS, "plain loop (dpsgd)", "glm (exact, float64)"]
    assert all(s.per_second > 0 for s in bench_result.speeds)
    assert bench_result.difference < 1e-5
    for speed in bench_result.speeds[:-2]:
        assert speed.share == pytest.approx(
            speed.per_second * 4 * 51 * 37 * 5 / 1e9 / bench_result.gflops
        )
    text = bench.render(bench_result)
    for word in ("GFLOP/s", "dpsgd", "of product", "plain loop", "difference"):
        assert word in text
