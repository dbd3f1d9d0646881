"""What committed cards and their summaries promise to whoever reads them."""

import re

import numpy as np
import pytest

from audit.games.guarantees import STATISTICS
from audit.scorecard import schema, view
from tests import ROOT, pages
from tests.pages import RESULTS

FOLDERS = [
    *RESULTS.glob("*/scorecard.json"),
    *RESULTS.glob("informed_switches/*/*.json"),
]
CARDS = {str(p.parent.relative_to(RESULTS)): p for p in sorted(FOLDERS)}
# that row's finding: who does not know the initialisation learns nothing
FAILS = {("informed_switches/fresh_start", "sgd", "reconstructor", "attack-dead")}


@pytest.fixture(scope="module")
def cards():
    return {name: schema.load(path) for name, path in CARDS.items()}


def test_no_committed_card_carries_an_error_flag(cards):
    raised = {
        (name, trial.defense, trial.attack, flag.name)
        for name, card in cards.items()
        for trial in card.trials
        for flag in trial.flags
        if flag.level == "error"
    }
    assert raised == FAILS
    of_runs = [
        f for card in cards.values() for d in card.defenses.values() for f in d.flags
    ]
    assert of_runs
    assert [f for f in of_runs if f.level == "error"] == []


def test_no_bound_of_any_attacker_stands_above_the_floor(cards):
    """Beyond three standard errors of both; van Trees too, whose prior is assumed."""
    checked = 0
    for name, card in cards.items():
        if card.floor.mse is None or card.floor.mse_se is None:
            continue
        for label, defense in card.defenses.items():
            for bound in defense.bounds:
                if bound.holds_for.startswith("any attacker") and bound.ranked:
                    se = np.hypot(card.floor.mse_se, bound.standard_error or 0)
                    low = float(bound.mean) - 3 * se
                    assert low <= card.floor.mse, (name, label, bound.name)
                    checked += 1
                if bound.name == "van_trees":
                    assert float(bound.mean) <= card.floor.mse * (1 + 1e-6), (
                        name,
                        label,
                    )
                    checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    "name", ["binary_mnist-mnist", "binary_mnist-mnist5k", "mia_mnist5k-mnist5k"]
)
def test_headline_cards_have_three_seeds(cards, name):
    """Of one scenario, data set and line-up, as submissions are asked for."""
    group = [cards[f"{name}{suffix}"] for suffix in ("", "-seed1", "-seed2")]
    assert [card.scenario.seed for card in group] == [0, 1, 2]
    about = {
        (c.scenario.scenario, c.data.name, *c.defenses, *(t.attack for t in c.trials))
        for c in group
    }
    assert len(about) == 1


def test_attack_and_bayes_risk_meet_at_every_noise_of_the_closed_world(cards):
    """Within 3%, on the same targets and transcripts; the page has the ratios."""
    card, ratios = cards["closed_world-digits_mixture"], []
    for label in [name for name in card.defenses if name.startswith("dpsgd_")]:
        [bound] = [b for b in card.defenses[label].bounds if b.name == "closed_world"]
        errors = [
            float(t.result.mse)
            for t in card.trials
            if t.defense == label and t.result is not None and not t.result.oracle
        ]
        ratios.append(min(errors) / float(bound.genie))
    assert len(ratios) == 6
    assert max(ratios) < 1.03
    page = (ROOT / "docs/bounds/closed_world.md").read_text()
    attack = " ".join(page.split()).split("`mixture_posterior` errs ")[1]
    printed = re.findall(r"1?\.\d{3}", attack)[:6]
    assert [float(p) for p in printed] == pytest.approx(ratios, abs=6e-4)


def of_fim(card, defense):
    """Return the numbers of one row of the page on FIM."""
    row = card.defenses[defense]
    errors = {
        t.attack: float(t.result.mse)
        for t in card.trials
        if t.defense == defense and t.result is not None and not t.result.oracle
    }
    on_steps = errors.pop("transcript_bayes")
    [prior] = [float(b.mean) for b in row.bounds if b.name == "finite_prior"]
    leaks = [float(row.dfil[k]) for k in ("sqrt_max", "sqrt_mean")]
    return [row.utility.accuracy, *leaks, min(errors.values()), on_steps, prior]


def test_the_page_on_fim_has_the_numbers_of_its_cards(cards):
    """One row per defense and data set; of three seeds the mean ± deviation."""
    seeds = ["fim_network-mnist5k" + end for end in ("", "-seed1", "-seed2")]
    rows = {"full": [], "embedded": []}
    for name in ("dpsgd", "prune", "public_mean", "fim_direct", "fim_network"):
        digits = 4, 3, 3, 4, 4, 4
        one = of_fim(cards["fim_network-mnist"], name)
        texts = [view.number(v, d) for v, d in zip(one, digits, strict=True)]
        rows["full"].append(" | ".join([f"`{name}`", *texts]))
        each = np.array([of_fim(cards[seed], name) for seed in seeds])
        pairs = zip(each.mean(0), each.std(0, ddof=1), digits, strict=True)
        texts = [f"{view.number(m, d)} ± {view.number(s, d)}" for m, s, d in pairs]
        rows["embedded"].append(" | ".join([f"`{name}`", *texts]))
    page = (ROOT / "docs/defenses/fim.md").read_text()
    table = page.split("<!-- network -->\n")[1].split("<!-- /network -->")[0]
    shown = [line.strip("| ") for line in table.splitlines() if line.startswith("| `")]
    assert shown == [*rows["full"], *rows["embedded"]]


def defense(dfil, sampling="full"):
    """Return the row of a defense whose records have these dFILs."""
    summary = {name: float(statistic(dfil)) for name, statistic in STATISTICS.items()}
    typed = pages.typed(
        defenses={"d": {"dfil": summary, "settings": {"sampling": sampling}}}
    )
    return typed.defenses["d"]


def test_a_record_that_hardly_leaks_reverses_no_ranking():
    """Weak leaks more of every record but one, whose 1/dFIL outweighs all others."""
    strong = np.full(100, 1 / 50)
    weak = np.append(np.full(99, 1 / 30), 1e-6)
    assert (1 / weak).mean() > (1 / strong).mean()
    weak, strong = (view.inverse_of_mean(defense(dfil)) for dfil in (weak, strong))
    assert weak < 31 < strong == pytest.approx(50)
    assert view.inverse_of_mean(defense(np.zeros(3))) == np.inf


def test_shuffled_epochs_call_add_remove_what_it_is():
    names = [
        view.adjacency_name(defense([1.0], s), "add_remove")
        for s in ("full", "shuffled")
    ]
    assert names == ["add-remove", "zero-out"]
    assert (
        view.adjacency_name(defense([1.0], "shuffled"), "replace_one") == "replace-one"
    )


def test_the_epsilons_of_docs_vmf_are_those_of_the_models_beside_them(cards):
    card = cards["dirdp_scale_mia-digits"]
    text = (ROOT / "docs" / "vmf.md").read_text().split("scenario=dirdp_scale_mia")[1]
    rows = re.findall(r"^\| \.?\d+ .*\|$", text, re.MULTILINE)[:5]
    noises = ("025", "1", "4", "16", "64")
    for noise, row in zip(noises, rows, strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        pairs = {
            law: card.defenses[f"{law}_{noise}"].epsilon for law in ("gauss", "vmf")
        }
        values = [
            pairs["gauss"].replace_one,
            pairs["vmf"].replace_one,
            pairs["gauss"].add_remove,
        ]
        for cell, pair in zip(cells[-3:], values, strict=True):
            least = min(v for v in (pair.rdp, pair.tight) if v is not None)
            assert float(cell) == pytest.approx(float(least), rel=2e-3), row
