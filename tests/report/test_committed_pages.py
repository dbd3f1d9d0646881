"""The committed Markdown of every card is what this code prints of that card."""

import re

import pytest

from audit.report import columns, markdown
from audit.scorecard import schema
from tests import pages

EVERY = [
    *pages.RESULTS.glob("*/scorecard.json"),
    *pages.RESULTS.glob("*/*/scorecard.json"),
]
FOLDERS = sorted(p.parent for p in EVERY if pages.RESULTS / "runs" not in p.parents)
FIGURE = re.compile(r"!\[[^\]]*\]\((.+?)\)")
# from the arrays of the card, which are not committed
SHARED = re.compile(r"\n\|  \|[^\n]*(\n\|[^\n]*)+\n\nOf the [^\n]* share so many\.\n")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.name)
def test_a_page_is_that_of_its_card(folder, monkeypatch):
    monkeypatch.setattr(columns, "shared", lambda card: {})
    committed = (folder / "scorecard.md").read_text()
    card = schema.load(folder / "scorecard.json")
    rendered = markdown.render(card, FIGURE.findall(committed))
    assert rendered == SHARED.sub("", committed)
