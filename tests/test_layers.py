"""Imports point down only; plug-ins never import each other or the audit above them."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = [
    {"types"},
    {"rng", "data", "clip", "fisher", "rdp", "bounds", "metrics", "perceptual",
     "store", "precision", "vmf", "vmf_privacy", "intervals", "roc", "tradeoff",
     "lower", "lower_one_run", "canaries"},
    {"noise", "linear", "dense", "signals", "glm", "fil", "reweighting",
     "solvability", "stationarity", "pools", "nominal", "models", "masks",
     "optimizers", "pretrain", "regressor", "phi", "shifted", "fim_fit", "inversion"},
    {"samplers", "batches", "queries", "dissection", "mechanisms", "perturbation",
     "minimisers", "lanes", "shadow", "fim_fitters", "fim_steps"},
    {"defenses", "attacks"},
    {"registry", "cells", "record_figures", "attribute_figures",
     "exposed", "exposed_figures",
     "controls", "control_cells", "judge", "measured", "reconstruction", "in_turn",
     "membership", "designs", "membership_figures",
     "membership_cells", "membership_scores", "anatomy", "step_figures", "attributes",
     "audited", "canary_games", "audit_cells", "audit_figures",
     "score_files", "imported", "markdown", "rows", "compose", "spec", "games",
     "accounting", "scoring", "flags", "scorecard", "run", "report", "figures",
     "bench", "doctor", "progress",
     "expected", "places", "plans", "verdicts", "overview", "redrawn", "reproduce",
     "contract", "scale", "seeds", "standings", "comparisons", "svg", "page", "plain",
     "target_plots", "leaderboard", "leaderboard_page", "run_page", "verify",
     "launch", "setup", "strength", "pytest_plugin", "__main__", "__init__",
     "plugins", "new", "testing", "laws", "worlds", "shown", "defense_laws",
     "accounting_laws", "query_laws", "attack_laws", "scenario_laws"},
]  # fmt: skip
LEVEL = {name: i for i, layer in enumerate(LAYERS) for name in layer}
FILES = [p for d in ("audit", "defenses", "attacks") for p in (ROOT / d).rglob("*.py")]


def unit(path):
    return path.stem if path.parent.name == "audit" else path.parent.name


def public(path):
    functions = [
        n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef)
    ]
    return [n for n in functions if not n.name.startswith("_")]


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{a.name}" for a in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_imports_point_down(path):
    level = LEVEL[unit(path)]
    for name in imported(path):
        top, *rest = name.split(".")
        if top in ("defenses", "attacks", "scenarios"):
            pytest.fail(f"{path.name} imports {name}: plug-ins are found by name")
        if top == "audit" and rest and rest[0] in LEVEL:
            assert LEVEL[rest[0]] <= level, f"{path.name} imports {name}"
        assert top != "torch"


def test_every_module_has_a_layer():
    assert {unit(p) for p in FILES} <= set(LEVEL)


def test_the_schema_layer_does_not_import_jax():
    """Settings are checked before JAX is paid for."""
    light = (
        "types",
        "registry",
        "compose",
        "spec",
        "launch",
        "store",
        "__main__",
        "expected",
        "places",
        "reproduce",
        "nominal",
        "setup",
        "plugins",
        "new",
        "strength",
        "pytest_plugin",
    )
    data = (
        "data/__init__",
        "data/contract",
        "data/files",
        "data/embedded",
        "data/features",
        "data/tabular",
    )
    for name in (*light, *data, "data/splits"):
        for node in ast.parse((ROOT / "audit" / f"{name}.py").read_text()).body:
            if isinstance(node, ast.Import):
                assert not any(a.name.split(".")[0] == "jax" for a in node.names), name
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] != "jax", name


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_files_stay_short(path):
    assert len(path.read_text().splitlines()) <= 350


@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_public_functions_say_what_they_do(path):
    for node in public(path):
        assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"
