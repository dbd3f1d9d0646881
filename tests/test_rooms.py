"""A room imports earlier rooms only; plug-ins import two or three of them."""

import ast
from pathlib import Path

import pytest

from audit import ROOMS
from tests import ROOT

FILES = [p for d in ("audit", "defenses", "attacks") for p in (ROOT / d).rglob("*.py")]
MODULES = {
    ".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p
    for p in FILES
}
MOST = 16  # modules in one folder
# what each kind of plug-in may import of the suite
PLUGINS = {
    "defenses": ("audit.types", "audit.mechanisms"),
    "attacks": ("audit.types", "audit.mechanisms", "audit.engine"),
}


def imported(path, top_only=False):
    """Yield the dotted names a file imports."""
    tree = ast.parse(path.read_text())
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for a in node.names:
                whole = f"{node.module}.{a.name}"
                yield whole if whole in MODULES else node.module


def floor(module):
    """Return how high a module stands: below all rooms, in one, or above them."""
    inside = [r for r in ROOMS if f"{module}.".startswith(f"audit.{r}.")]
    if module == "audit.__main__":
        return len(ROOMS)
    return ROOMS.index(max(inside, key=len)) if inside else -1


@pytest.mark.parametrize("module", [m for m in MODULES if m.startswith("audit")])
def test_rooms_import_earlier_rooms_only(module):
    for name in imported(MODULES[module]):
        if name in MODULES:
            assert name.startswith("audit"), "plug-ins are found by name"
            assert floor(name) <= floor(module), f"{module} imports {name}"
        # a rival in the benchmark, of who has it
        assert name.split(".")[0] != "torch" or module == "audit.cli.bench.pytorch"


def test_no_module_imports_itself_by_way_of_others():
    edges = {m: {n for n in imported(p) if n in MODULES} for m, p in MODULES.items()}
    while leaves := [m for m, below in edges.items() if not below & set(edges)]:
        for m in leaves:
            del edges[m]
    assert not edges


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith("audit")])
def test_plug_ins_import_little_of_the_suite(module):
    allowed = PLUGINS[module.split(".")[0]]
    for name in imported(MODULES[module]):
        assert name not in MODULES or name.startswith(allowed), f"{module}: {name}"


def test_folders_stay_small():
    folders = {p.parent for p in FILES if "audit" in p.parts}
    assert all(len(list(f.glob("*.py"))) <= MOST + 1 for f in folders)  # + __init__


def test_settings_are_checked_before_jax_is_imported():
    """Nothing that composing a scenario imports at its start imports JAX."""
    waiting = ["audit.__main__", "audit.config.hydra_app", "audit.cli.words"]
    reached = set(waiting)
    while waiting:
        path = MODULES[waiting.pop()]
        names = set(imported(path, top_only=True))
        assert "jax" not in {name.split(".")[0] for name in names}, path
        waiting += [n for n in names & set(MODULES) if n not in reached]
        reached |= names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(Path(p).relative_to(ROOT)))
def test_public_functions_say_what_they_do(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"


def test_no_class_name_is_defined_twice():
    trees = [ast.parse(p.read_text()) for p in FILES if "audit" in p.parts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    assert sorted(names) == sorted(set(names))
