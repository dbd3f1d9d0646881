"""The laws every attack obeys; `docs/plugins.md` of the suite lists them."""

from pathlib import Path

from audit.testing import check_attack, load

ATTACK = load(Path(__file__).parent.parent / "attacks" / "linear_reconstructor.py")


def test_laws():
    """It keeps them all."""
    check_attack(ATTACK)
