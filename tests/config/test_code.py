"""The hash of code: definitions count; file names, import lines and prose do not."""

import ast
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from audit.config import code, plugins
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
        ("from audit.accounting import fisher\nX = fisher.kappa",
         "from audit.accounting.fisher import kappa as k\nX = k", True),
        # one name in two modules
        ("from audit.accounting.rdp import epsilon\nX = epsilon",
         "from audit.report.columns import epsilon\nX = epsilon", False),
        ("import numpy as np\nX = np.e", "import numpy\nX = numpy.e", True),
        ("import numpy as np\nX = np.e", "import math as np\nX = np.e", False),
    ],
)  # fmt: skip
def test_an_import_stands_for_what_it_imports(tmp_path, before, after, same):
    assert (version(tmp_path, before) == version(tmp_path, after)) == same


@pytest.fixture
def copy(tmp_path):
    """The suite in another place."""
    for folder in ("audit", "defenses", "attacks"):
        shutil.copytree(ROOT / folder, tmp_path / folder)  # what is compiled as well
    return tmp_path


def versions(place):
    return subprocess.check_output(
        [sys.executable, "-c", VERSIONS], cwd=place, text=True,
        env={"PYTHONPATH": str(place)},
    ).split()  # fmt: skip


@pytest.fixture(scope="module")
def before():
    return versions(ROOT)


def test_a_renamed_file_leaves_every_hash(copy, before):
    old = copy / "audit" / "accounting" / "tradeoff.py"
    old.rename(old.with_stem("frontier"))
    callers = [p for p in copy.rglob("*.py") if "tradeoff" in p.read_text()]
    assert callers
    for path in callers:
        path.write_text(path.read_text().replace("tradeoff", "frontier"))
    assert versions(copy) == before


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("audit/accounting/rdp.py", [True, True, True]),
        ("audit/games/scoring.py", [False, True, False]),
        ("audit/report/terminal.py", [False, False, False]),
        ("defenses/dpsgd.py", [False, False, True]),
    ],
)
def test_the_room_says_what_a_change_makes_stale(copy, before, file, changed):
    (copy / file).write_text((copy / file).read_text() + "\nNEW = 1\n")
    assert [a != b for a, b in zip(versions(copy), before, strict=True)] == changed


EDITED = """
from pathlib import Path
import audit.config.workspace
print(audit.__file__)
path = Path(audit.__file__).parent / "accounting" / "rdp.py"
path.write_text(path.read_text() + "\\nNEW = 1\\n")
"""


def test_an_edit_in_a_run_is_of_the_next_one(copy, before):
    """What runs is what was imported, whatever its file says by now."""
    edit = f"{EDITED}{VERSIONS}"
    printed = subprocess.check_output(
        [sys.executable, "-c", edit], cwd=copy, text=True,
        env={"PYTHONPATH": str(copy)},
    ).split()  # fmt: skip
    assert Path(printed[0]).parent == copy / "audit"
    assert printed[1:] == before != versions(copy)


def test_a_file_that_is_no_python_counts_by_its_bytes(tmp_path):
    """A package of plug-ins may hold templates."""
    one, other = (version(tmp_path, f"print {word}") for word in "ab")
    assert one != other


def test_a_plug_ins_helpers_are_its_code(tmp_path):
    texts = {
        "quiet.py": "import helper\nfrom deep.more import B\nimport deep.lone\n"
        "from . import near\ntry:\n    from one import f\n"
        "except ImportError:\n    from two import f\n",
        "helper.py": "import numpy\nA = 1\n",
        "deep/__init__.py": "",
        "deep/more.py": "import helper\nfrom ..low import C\nB = 1\n",
        "deep/lone.py": "D = 1\n",
        **dict.fromkeys(["near.py", "one.py", "two.py", "low.py"], "C = f = 1\n"),
    }
    (tmp_path / "deep").mkdir()
    for name, text in {**texts, "other.py": "Z = 1\n"}.items():
        (tmp_path / name).write_text(text)
    files = code.with_helpers([tmp_path / "quiet.py"], [tmp_path])
    assert {str(p.relative_to(tmp_path.resolve())) for p in files} == texts.keys()
    before = code.version(files)
    (tmp_path / "helper.py").write_text("import numpy\nA = 2\n")
    assert code.version(files) != before


def test_a_library_inside_of_a_clone_is_installed():
    """As `.venv` is, by the README's commands."""
    library = Path(sysconfig.get_paths()["purelib"]).resolve()
    assert plugins.in_library(library / "flax" / "core" / "scope.py")
    assert not plugins.in_library(library.parents[3])


def test_packages_in_a_folder_of_their_own_are_installed(tmp_path, monkeypatch):
    """As `pip install --target FOLDER` leaves them, with FOLDER on PYTHONPATH."""
    monkeypatch.syspath_prepend(str(tmp_path))
    assert tmp_path.resolve() in plugins.import_roots()
    (tmp_path / "helper-1.0.dist-info").mkdir()
    assert tmp_path.resolve() not in plugins.import_roots()


def test_every_version_of_python_has_the_same_hash():
    """Since 3.12 a function has parameters of types, of which nearly all have none."""
    node = ast.parse("def f(x):\n    return x\n").body[0]
    fields = dict.fromkeys((*node._fields, "type_params"))
    newer = type("FunctionDef", (ast.FunctionDef,), {"_fields": tuple(fields)})()
    newer.__dict__ |= vars(node) | {"type_params": []}
    text = code._text(node, {}, str)
    assert code._text(newer, {}, str) == text
    newer.type_params = [ast.Name("T")]
    assert code._text(newer, {}, str) != text
