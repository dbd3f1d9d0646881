"""Notebooks are committed as executed; behind `-m slow` they are executed again."""

import json
import re

import pytest

from tests import ROOT
from tests.test_docs import links

FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
TIMES = re.compile(r"\d+(\.\d+)?(s| ?seconds)\b")


def cells(notebook, kind="code"):
    return [c for c in notebook["cells"] if c["cell_type"] == kind]


def output(cell):
    """Return what a cell printed or showed, as text, without clock times."""
    parts = [
        "".join(o.get("text") or o.get("data", {}).get("text/plain", ""))
        for o in cell["outputs"]
    ]
    return TIMES.sub("", "".join(parts))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_was_executed_in_order_without_an_error(path):
    notebook = json.loads(path.read_text())
    code = cells(notebook)
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    outputs = [o for c in code for o in c["outputs"]]
    assert not [o for o in outputs if o["output_type"] == "error"]
    assert sum("image/png" in o.get("data", {}) for o in outputs) >= 2
    assert not [o for o in outputs if o.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_its_links_lead_somewhere(path):
    notebook = json.loads(path.read_text())
    text = "\n".join("".join(c["source"]) for c in cells(notebook, "markdown"))
    assert links(text)
    for link in links(text):
        assert (path.parent / link).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_executed_again_it_says_the_same(path, tmp_path):
    """Numbers to 2%: another processor sums in another order."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = json.loads(path.read_text())
    fresh = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(fresh, timeout=1800).execute(cwd=tmp_path)
    for old, new in zip(cells(notebook), cells(fresh), strict=True):
        assert_same(output(old), output(new))


def assert_same(old, new):
    number = re.compile(r"-?\d*\.?\d+(?:e[-+]?\d+)?")
    assert number.sub("#", old).split() == number.sub("#", new).split()
    mine, theirs = ([float(n) for n in number.findall(t)] for t in (old, new))
    assert theirs == pytest.approx(mine, rel=0.02, abs=1e-4)
