"""The hash of code: definitions count; file names, import lines and prose do not."""

import shutil
import subprocess
import sys

import pytest

from audit.config import code
from tests import ROOT

FILE = '''"""Doc."""
import math

X = 1


def f(x):
    """Say."""
    return x + 1  # why
'''
VERSIONS = """
from audit.config import code, registry
print(code.version(code.up_to(code.TRAINING)))
print(code.version(code.up_to(code.SCORING)))
print(registry.version("defense", "dpsgd"))
"""


def version(folder, text, name="m.py"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return code.version([folder / name])


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# why", "# because", True),
        ("Say.", "Tell.", True),
        ('"""Doc."""', "", True),
        ("import math\n", "import math, os\n", True),
        ("X = 1", "X=1\n\n'What it is.'", True),
        ("x + 1", "x + 2", False),
        ("X = 1", "X = 1.0", False),
        ("X = 1", "X = '1'", False),
        ("def f", "def g", False),
    ],
)
def test_code_counts_and_prose_does_not(tmp_path, old, new, same):
    assert old in FILE
    before = version(tmp_path, FILE)
    assert (version(tmp_path, FILE.replace(old, new)) == before) == same


def test_names_of_files_do_not_count_and_what_is_in_each_does(tmp_path):
    one, two = FILE, FILE.replace("x + 1", "x + 2")
    for folder, names in (("a", ("m", "n")), ("b", ("p", "q"))):
        for name, text in zip(names, (one, two), strict=True):
            version(tmp_path / folder, text, f"{name}.py")
    both = [code.version((tmp_path / f).glob("*.py")) for f in ("a", "b")]
    assert both[0] == both[1] != code.version([tmp_path / "a" / "m.py"])


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        # one definition by two roads
        (
            "from audit.accounting import fisher\nX = fisher.kappa",
            "from audit.accounting.fisher import kappa as k\nX = k",
            True,
        ),
        # one name in two modules
        (
            "from audit.accounting.rdp import epsilon\nX = epsilon",
            "from audit.report.columns import epsilon\nX = epsilon",
            False,
        ),
        ("import numpy as np\nX = np.e", "import numpy\nX = numpy.e", True),
        ("import numpy as np\nX = np.e", "import math as np\nX = np.e", False),
    ],
)
def test_an_import_stands_for_what_it_imports(tmp_path, before, after, same):
    assert (version(tmp_path, before) == version(tmp_path, after)) == same


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    place = tmp_path_factory.mktemp("copy")
    for folder in ("audit", "defenses", "attacks"):
        shutil.copytree(
            ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    return place


def versions(place):
    done = subprocess.run(
        [sys.executable, "-c", VERSIONS], cwd=place, capture_output=True, text=True,
        check=True, env={"PYTHONPATH": str(place)},
    )  # fmt: skip
    return done.stdout.split()


def test_a_renamed_file_leaves_every_hash(copy):
    before = versions(copy)
    old, new = (
        copy / "audit" / "accounting" / f"{n}.py" for n in ("tradeoff", "frontier")
    )
    old.rename(new)
    callers = [p for p in copy.rglob("*.py") if "tradeoff" in p.read_text()]
    texts = {p: p.read_text() for p in callers}
    for path, text in texts.items():
        path.write_text(text.replace("tradeoff", "frontier"))
    try:
        assert callers
        assert versions(copy) == before
    finally:
        new.rename(old)
        for path, text in texts.items():
            path.write_text(text)


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("audit/accounting/rdp.py", [True, True, True]),
        ("audit/games/scoring.py", [False, True, False]),
        ("audit/report/terminal.py", [False, False, False]),
        ("defenses/dpsgd.py", [False, False, True]),
    ],
)
def test_the_room_says_what_a_change_makes_stale(copy, file, changed):
    before, path = versions(copy), copy / file
    text = path.read_text()
    path.write_text(text + "\nNEW = 1\n")
    try:
        after = versions(copy)
    finally:
        path.write_text(text)
    assert [a != b for a, b in zip(after, before, strict=True)] == changed


def test_a_plug_ins_helpers_are_its_code(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "quiet.py").write_text("import helper\nfrom deep.more import B\n")
    (tmp_path / "helper.py").write_text("import numpy\nA = 1\n")
    (tmp_path / "other.py").write_text("Z = 1\n")
    (tmp_path / "deep" / "__init__.py").write_text("")
    (tmp_path / "deep" / "more.py").write_text("import helper\nB = 1\n")
    found = code.with_helpers([tmp_path / "quiet.py"], [tmp_path])
    names = {str(p.relative_to(tmp_path.resolve())) for p in found}
    assert names == {"quiet.py", "helper.py", "deep/__init__.py", "deep/more.py"}
    before = code.version(found)
    (tmp_path / "helper.py").write_text("import numpy\nA = 2\n")
    assert code.version(found) != before
