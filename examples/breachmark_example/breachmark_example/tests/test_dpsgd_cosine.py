"""The laws every defense obeys; `docs/plugins.md` of the suite lists them."""

from pathlib import Path

from audit.testing import check_defense, load

DEFENSE = load(Path(__file__).parent.parent / "defenses" / "dpsgd_cosine.py")


def test_laws():
    """It keeps them all."""
    check_defense(DEFENSE, steps=2, noise_multiplier=0.5)
