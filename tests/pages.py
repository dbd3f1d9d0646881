"""Cards and a browser for the tests of pages."""

import copy
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from audit.scorecard import card as cards

RESULTS = Path(__file__).parent.parent / "results"
SCRIPT = "<script>document.title='owned'</script>"
HOSTILE = (
    f"{SCRIPT}<img src=x onerror=\"document.title='owned'\">'\"|`[x](javascript:1)&"
)


def plain(name="binary_mnist-mnist5k"):
    """A committed scorecard as plain data, without attacks that did not apply."""
    card = json.loads((RESULTS / name / "scorecard.json").read_text())
    card["trials"] = [t for t in card["trials"] if t["result"] is not None]
    return card


def card(data=None, arrays=None):
    text = json.dumps(plain() if data is None else data)
    return cards.from_json(text, arrays=arrays)


def seeded(data, seed, shift=0.0):
    """The same card of another seed, its errors and accuracies moved."""
    card = copy.deepcopy(data)
    card["scenario"]["seed"] = seed
    for defense in card["defenses"].values():
        defense["utility"]["accuracy"] -= shift
    for t in card["trials"]:
        t["result"]["mse"] += shift
        t["result"]["headline"]["value"] += shift
    return card


def made_with(data, code):
    """The same card, made with a plug-in of this code."""
    plugin = {"kind": "defense", "name": "quiet", "origin": "folder x", "code": code}
    provenance = data["provenance"] | {"plugins": [plugin]}
    return data | {"provenance": provenance}


def hostile(data):
    """A card that passes the schema with markup wherever it takes free text."""
    card = copy.deepcopy(data)
    card["scenario"] |= {"title": HOSTILE, "source": HOSTILE}
    card["provenance"] |= {"command": HOSTILE, "device": HOSTILE, "python": HOSTILE}
    card["provenance"]["chosen"] = {"dpsgd": {"by": HOSTILE, "cost": HOSTILE}}
    card["provenance"]["plugins"] = [
        {"kind": "defense", "name": "dpsgd", "origin": HOSTILE, "code": "0" * 64}
    ]
    card["data"] |= {"origin": HOSTILE, "note": HOSTILE}
    for defense in card["defenses"].values():
        defense["settings"] |= {HOSTILE: HOSTILE, "sampling": HOSTILE}
        for b in defense["bounds"]:
            b |= {"holds_for": HOSTILE, "theorem": HOSTILE}
    for t in card["trials"]:
        t["threat_model"] = HOSTILE
        for f in t["flags"]:
            f["text"] = HOSTILE
    card["trials"][3] |= {"status": "failed", "reason": HOSTILE + "\n" + HOSTILE}
    card["scenario"]["attack"]["reconstructor"][HOSTILE] = HOSTILE
    return card


def folder(where, name, data, figures=("mse_vs_bound.png", "reconstructions.png")):
    """A card's folder with small figures."""
    from PIL import Image

    place = where / name
    place.mkdir(parents=True)
    (place / "scorecard.json").write_text(json.dumps(data))
    for figure in figures:
        Image.new("RGB", (40, 30), "white").save(place / figure)
    return place


def arrays(data, targets=12):
    """Per-target arrays a game of pictures would keep."""
    rng = np.random.default_rng(0)
    kept = {
        "target": rng.uniform(size=(targets, 4, 4, 1)),
        "label": np.arange(targets) % 2,
        "floor": np.full(targets, 0.05),
    }
    for label, defense in data["defenses"].items():
        for b in defense["bounds"]:
            kept[f"{label}/{b['name']}"] = rng.uniform(0.01, 1, targets)
        for attack in data["scenario"]["attack"]:
            kept[f"{label}/{attack}/mse"] = rng.uniform(0.01, 0.1, targets)
            kept[f"{label}/{attack}/guess"] = rng.uniform(size=(targets, 4, 4, 1))
    return kept


NOBODY = "not an origin"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions",
)  # fmt: skip


def opened(page, tmp_path, *flags):
    """Return a page's elements after its script ran, and the addresses it asked for.

    No name resolves, so the browser is offline; what it asks for itself (updates) has
    no origin and is not the page's.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)}")
    log = tmp_path / "net.json"
    done = subprocess.run(
        [browser, *QUIET, *flags, "--host-resolver-rules=MAP * ~NOTFOUND",
         f"--user-data-dir={tmp_path / 'profile'}", f"--log-net-log={log}",
         "--virtual-time-budget=2000", "--dump-dom", page.resolve().as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    events = [e.get("params", {}) for e in json.loads(log.read_text())["events"]]
    urls = {e["url"] for e in events if e.get("initiator", NOBODY) != NOBODY}
    return done.stdout, sorted(u for u in urls if not u.startswith(("data:", "file:")))


BOUND = {"holds_for": "x", "theorem": "x", "ranked": True, "log10": None}
DEFENSE = {
    "use": "dpsgd", "passed": {}, "settings": {}, "utility": None, "dfil": None,
    "bounds": [], "rdp2": None, "epsilon": None,
}  # fmt: skip
TRIAL = {
    "use": "attack", "threat_model": "x", "status": "ok", "reason": None, "flags": [],
}  # fmt: skip


def typed(*, scenario=None, floor=None, defenses=None, trials=(), arrays=None):
    """A card of the parts that a test is about; the others are made up."""
    name, digest = {"name": "digits"}, "0" * 64
    return cards.of_parts(
        scenario={
            "scenario": "made", "title": "x", "source": "x", "seed": 0,
            "game": "reconstruction", "data": "digits", "defense": {}, "attack": {},
        } | (scenario or {}),
        provenance={
            "command": "x", "scenario_digest": digest, "seconds": 0.0, "git": None,
            "python": "3", "versions": {}, "device": "cpu", "cpus": 1,
        },
        data=name | {
            "origin": "x", "note": "x", "digest": digest, "splits": {}, "duplicates": 0,
        },
        floor={"mse": None, "mse_se": None} | (floor or {}),
        defenses={k: _defense(d) for k, d in (defenses or {}).items()},
        trials=[TRIAL | t | {"result": _result(t.get("result"))} for t in trials],
        arrays=arrays or {},
    )  # fmt: skip


def _defense(parts):
    bounds = []
    for bound in parts.get("bounds", []):
        value = bound.get("mean", 0.0)
        every = dict.fromkeys(("mean", "median", "min", "max"), value)
        bounds.append(BOUND | every | bound)
    return DEFENSE | parts | {"bounds": bounds}


def _result(parts):
    if parts is None:
        return None
    value = parts.get("mse", parts.get("success", 0.0))
    headline = {
        "metric": "mse", "value": value, "standard_error": None, "better": "lower",
        "floor": None,
    }  # fmt: skip
    return {"headline": headline, "oracle": False} | parts
