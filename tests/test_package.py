"""What a package needs beside its code."""

import re
import tomllib

from audit.__main__ import HELP
from tests import ROOT
from tests.commands import printed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_licence_is_the_one_the_metadata_names():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]
    assert "Apache License\n                           Version 2.0" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_one_version_everywhere(capsys):
    version = PROJECT["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert re.fullmatch(
        r"breachmark (\S+|not installed)\n", printed(capsys, "--version")
    )
    assert "--version" in HELP


def test_the_long_description_has_no_links_into_the_repository():
    text = (ROOT / PROJECT["readme"]).read_text()
    assert not re.findall(r"\]\(|<img", text)


def test_types_are_shipped_and_templates_are_not_ignored():
    assert (ROOT / "audit" / "py.typed").exists()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"][
        "build"
    ]
    assert build["artifacts"] == ["audit/report/html/templates/*"]
