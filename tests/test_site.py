"""The documentation builds as a site: no dead link, formulas, the whole API."""

import re
import subprocess
import sys

import pytest

import audit
from tests import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="pip install '.[docs]'")
    pytest.importorskip("mkdocstrings")
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", out],
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_page_is_in_it(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        if name.name != "package":
            assert (site / name / "index.html").is_file(), name
    assert (site / "search" / "search_index.json").is_file()


def test_every_public_call_is_in_the_reference(site):
    text = (site / "reference" / "api" / "index.html").read_text()
    anchors = set(re.findall(r'id="(audit\.[\w.]+)"', text))
    assert {f"{where}.{name}" for name, where in audit.CALLS.items()} <= anchors


def test_formulas_are_typeset(site):
    for page in (site / "bounds").glob("*/index.html"):
        text = page.read_text()
        assert "<math" in text, page
        assert not re.search(r"\\\\(frac|mathbb|sum|lVert)", text), page


def test_no_link_inside_the_site_is_dead(site):
    for page in site.rglob("*.html"):
        targets = re.findall(r'(?:href|src)="([^"#?]+)', page.read_text())
        inside = [t for t in targets if not re.match(r"[a-z]+:|//|/", t)]
        for target in inside if page.name != "404.html" else ():
            assert (page.parent / target).exists(), (page, target)


def test_the_front_page_shows_what_is_rebuilt(site):
    assert re.search(r'<img[^>]*src="gallery/[^"]+', (site / "index.html").read_text())
