"""What a run needs before it starts: a folder, a store, a configured JAX."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from audit import registry
from audit import store as stores
from audit.compose import Scenario
from audit.types import UserError

if TYPE_CHECKING:
    from audit.progress import Progress
    from audit.shadow import Engine

# Modules that show or compare results and make none; no other module imports them.
SHOWN = (
    "__main__", "attribute_figures", "audit_cells", "audit_figures", "bench", "cells",
    "comparisons", "contract", "control_cells", "doctor", "expected",
    "exposed_figures", "figures", "imported", "launch", "leaderboard",
    "leaderboard_page", "markdown",
    "membership_cells", "membership_figures", "nominal", "overview", "page",
    "places", "plain", "plans", "progress", "record_figures", "redrawn", "report",
    "reproduce", "run_page", "scale", "score_files", "seeds", "standings",
    "step_figures", "svg", "target_plots", "verdicts", "verify",
    # what holds plug-ins against their laws, or makes new ones
    "accounting_laws", "attack_laws", "defense_laws", "laws", "new", "query_laws",
    "scenario_laws", "shown", "testing", "worlds",
    "pytest_plugin", "strength",
)  # fmt: skip


def place(scenario: Scenario, runs: Path) -> tuple[Path, str]:
    """Return where a run's results go, and the digest of what can change them."""
    digest = stores.digest(scenario.resolved())
    name = f"{scenario.spec.name}-{scenario.data}-{digest[:8]}"
    return Path(scenario.spec.out) if scenario.spec.out else runs / name, digest


def code(scenario: Scenario) -> str:
    """Return a hash of the code that can change a scorecard: `scorecard.json`'s `code`.

    The plug-ins of the line-up, and of the suite all but what only shows results.
    Comments, docstrings and installed packages do not count.
    """
    here = Path(__file__).parent
    suite = [p for p in here.rglob("*.py") if p.stem not in SHOWN]
    line_up = {p for k, name in used(scenario) for p in registry.place(k, name).sources}
    return stores.code_version([*suite, *line_up])


def used(scenario: Scenario) -> list[tuple[str, str]]:
    """Return kind and name of every plug-in of the line-up, once each."""
    line_ups = {
        "defense": scenario.defenses,
        "attack": scenario.attacks,
        "bound": scenario.bounds,
    }
    return sorted({(kind, e.name) for kind, held in line_ups.items() for e in held})


def from_elsewhere(scenario: Scenario) -> list[dict[str, str]]:
    """Return what of a scenario is not the suite's own: kind, name, origin, code."""
    each = [registry.elsewhere(*asked) for asked in used(scenario)]
    each.append(scenario.elsewhere)
    return [found for found in each if found is not None]


def open_folder(scenario: Scenario, runs: Path) -> tuple[Path, str]:
    """Make the run's folder and prove it can be written; return it and the digest.

    The default name holds the digest of everything that can change a number, so the
    same command finds the same folder, and two different runs never share one.

    Raises:
      UserError: if it cannot be written, or holds another run.
    """
    folder, digest = place(scenario, runs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write out={folder}: {error.strerror}") from None
    card = folder / "scorecard.json"
    if card.exists() and _digest_of(card) != digest:
        raise UserError(
            f"out={folder} holds the scorecard of another run; name another folder or "
            f"remove it"
        )
    return folder, digest


def _digest_of(card: Path) -> str | None:
    try:
        return json.loads(card.read_text())["provenance"]["scenario_digest"]
    except (ValueError, KeyError, OSError):
        return None


def engine(scenario: Scenario, folder: Path, runs: Path, progress: Progress) -> Engine:
    """Return tiles, store and progress for one scenario."""
    from audit.shadow import Engine

    spec = scenario.spec
    place = Path(spec.store) if spec.store else (folder if spec.out else runs) / "store"
    return Engine(
        scenario.lanes, stores.open_store(place, progress.note), progress.report
    )


def prepare_jax() -> None:
    """Ask for full float32 products, and compile each program once per machine."""
    import jax
    from platformdirs import user_cache_dir

    jax.config.update("jax_default_matmul_precision", "highest")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        cache = os.environ.get("AUDIT_CACHE") or user_cache_dir("breachmark")
        jax.config.update("jax_compilation_cache_dir", str(Path(cache) / "xla"))
