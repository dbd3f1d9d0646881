"""The laws every scenario obeys; `docs/plugins.md` of the suite lists them."""

from pathlib import Path

from audit.testing import check_scenario

SCENARIO = Path(__file__).parent.parent / "scenarios" / "two_digits.yaml"
SMALL = ["data=digits", "runs=1", "accounting_runs=1", "attack.reconstructor.epochs=2"]


def test_laws():
    """It keeps them all."""
    check_scenario(SCENARIO, *SMALL)
