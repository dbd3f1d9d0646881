"""Scores of members and non-members against libraries, brute force and simulation."""

import numpy as np
import pytest
from scipy.special import logit
from scipy.stats import mannwhitneyu, norm
from sklearn import metrics

from audit.statistics import intervals, roc


def tied(seed=0, m=60, n=80):
    rng = np.random.default_rng(seed)
    return rng.normal(0.5, 1, m).round(1), rng.normal(0, 1, n).round(1)


@pytest.mark.parametrize("seed", [0, 1])
def test_roc_is_the_libraries_and_its_area_is_the_auc(seed):
    """And ties count half."""
    members, nonmembers = tied(seed)
    curve = roc.roc(members, nonmembers)
    labels, both = np.r_[np.ones(60), np.zeros(80)], np.r_[members, nonmembers]
    fpr, tpr, _ = metrics.roc_curve(labels, both, drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr, fpr, atol=1e-12)
    np.testing.assert_allclose(curve.tpr, tpr, atol=1e-12)
    pairs = members[:, None] - nonmembers
    brute = ((pairs > 0) + (pairs == 0) / 2).mean()
    library = metrics.roc_auc_score(labels, both)
    area = np.trapezoid(curve.tpr, curve.fpr)
    value = roc.auc(members, nonmembers).value
    np.testing.assert_allclose([brute, library, area], value, rtol=0, atol=1e-12)


def test_roc_ends_at_one_with_scores_of_minus_infinity():
    curve = roc.roc([1.0, -np.inf], [-np.inf, 0.0])
    assert (curve.fpr[0], curve.tpr[0]) == (0, 0)
    assert (curve.fpr[-1], curve.tpr[-1]) == (1, 1)
    assert roc.auc([1.0, -np.inf], [-np.inf, 0.0]).value == (1 + 1 + 0.5 + 0) / 4


@pytest.mark.parametrize(
    ("k", "n", "side", "value"),
    [
        (480, 500, 0, 0.93889739),
        (20, 500, 1, 0.06110261),
        (50, 1000, 0, 0.03733540),
        (0, 1000, 1, 0.00368208),
    ],
)
def test_clopper_pearson_vectors(k, n, side, value):
    assert intervals.clopper_pearson(k, n)[side] == pytest.approx(value, abs=6e-9)
    low, high = intervals.clopper_pearson([0, 5, 10], 10)
    assert (low[0], high[2]) == (0, 1)
    assert ((low <= [0, 0.5, 1]) & (high >= [0, 0.5, 1])).all()


def test_a_threshold_never_exceeds_its_rate_under_ties():
    nonmembers = np.repeat(np.arange(100.0), 10)
    for rate in (0.01, 0.015, 0.1, 0.5, 1.0):
        cut = roc.threshold_at(nonmembers, rate)
        assert (nonmembers > cut).mean() <= rate
        lower = nonmembers[nonmembers < cut]
        if lower.size:  # the next lower threshold would exceed it
            assert (nonmembers > lower.max()).mean() > rate
    assert roc.threshold_at(nonmembers, 1.0) == -np.inf
    assert roc.threshold_at(np.arange(150.0), 0.01) == 148  # one and a half are one


def test_operating_says_where_the_threshold_comes_from_and_counts():
    rng = np.random.default_rng(2)
    members, nonmembers = rng.normal(1, 1, 2000), rng.normal(0, 1, 2000)
    shadows = rng.normal(0.2, 1, 5000)
    mine = roc.operating(members, nonmembers, 0.01)
    assert (mine.chosen_on, mine.fpr.k, mine.fpr.n) == ("targets", 20, 2000)
    assert mine.tpr.k == (members > mine.threshold).sum()
    assert mine.tpr.low < mine.tpr.value < mine.tpr.high
    deployed = roc.operating(members, nonmembers, 0.01, shadows=shadows)
    assert deployed.chosen_on == "shadows"
    # the shadows score higher, so what they choose is stricter on the targets
    assert deployed.fpr.k < 20


def test_rates_of_several_models_add_up_their_counts():
    rng = np.random.default_rng(3)
    models = [(rng.normal(1 + i, 1, 2000), rng.normal(i, 1, 1500)) for i in range(3)]
    each = [roc.operating(*m, 0.01) for m in models]
    got = roc.of_models(each)
    assert got.threshold == tuple(e.threshold for e in each)
    hits = sum((m[0] > e.threshold).sum() for m, e in zip(models, each, strict=True))
    assert (got.tpr.k, got.tpr.n, got.fpr.k, got.fpr.n) == (hits, 6000, 45, 4500)
    assert roc.of_models([*each, "unavailable (9)"]) == "unavailable (9)"


@pytest.mark.parametrize(
    ("nonmembers", "shadows", "answer"),
    [
        (999, None, "unavailable (999)"),
        (5000, 400, "unavailable (400)"),
        (400, 5000, "unavailable (400)"),
    ],
)
def test_a_rate_needs_ten_over_fpr_nonmembers(nonmembers, shadows, answer):
    chosen = None if shadows is None else np.arange(shadows)
    got = roc.operating([1.0, 2.0], np.arange(nonmembers), 0.01, shadows=chosen)
    assert got == answer
    assert not isinstance(roc.operating([1.0], np.arange(1000), 0.01), str)
    assert not isinstance(roc.operating([1.0], np.arange(10_000), 1e-3), str)


def test_balanced_accuracy_on_targets_is_the_best_there_is():
    members, nonmembers = tied(3)
    best = roc.balanced_accuracy(members, nonmembers)
    cuts = np.r_[-np.inf, members, nonmembers]
    brute = max(((members > c).mean() + (nonmembers <= c).mean()) / 2 for c in cuts)
    assert best.value == pytest.approx(brute)
    other = roc.balanced_accuracy(members, nonmembers, shadows=tied(4))
    assert other.chosen_on == "shadows"
    assert other.value <= best.value


@pytest.mark.parametrize(("m", "n"), [(1, 4), (3, 5), (8, 8)])
def test_the_law_of_chance_is_the_libraries(m, n):
    """The exact tail of the Mann-Whitney statistic at every value it can take."""
    law = roc.auc_by_chance(m, n)
    tail = np.cumsum(law[::-1])[::-1]
    for k in range(m * n + 1):
        # k pairs in order: the smallest scores with that statistic
        above = [n] * (k // n) + ([k % n] if k % n else [])
        ours = np.array([*above, *[0] * (m - len(above))]) - 0.5 + 1e-3 * np.arange(m)
        p = mannwhitneyu(
            ours, np.arange(n), alternative="greater", method="exact"
        ).pvalue
        assert tail[k] == pytest.approx(p, rel=1e-9)
    assert law @ np.arange(m * n + 1) / (m * n) == pytest.approx(0.5)


def test_delong_is_its_definition():
    """Variance of the placements, written out with two loops."""
    members, nonmembers = tied(5, 15, 20)
    psi = np.array([[(a > b) + (a == b) / 2 for b in nonmembers] for a in members])
    v10, v01 = psi.mean(1), psi.mean(0)
    s = np.sqrt(np.var(v10, ddof=1) / 15 + np.var(v01, ddof=1) / 20)
    got = roc.auc(members, nonmembers)
    reach = 1.959963984540054 * s / (got.value * (1 - got.value))
    ends = logit([got.low, got.high]) - logit(got.value)
    assert ends == pytest.approx([-reach, reach], rel=1e-9)
    rounded = 1e-4  # 1.96
    assert intervals.standard_error(*got) == pytest.approx(s, rel=rounded)


@pytest.mark.parametrize("truth", [0.5, 0.8, 0.95])
def test_auc_of_few_records_covers_on_both_sides(truth):
    rng, trials = np.random.default_rng(8), 2000
    apart, beside = np.sqrt(2) * norm.ppf(truth), np.zeros(2)
    for _ in range(trials):
        got = roc.auc(rng.normal(size=30) + apart, rng.normal(size=30))
        beside += got.low > truth, got.high < truth
    tolerance = 4 * np.sqrt(0.025 * 0.975 / trials)
    assert (beside / trials < 0.025 + tolerance).all()


def test_paired_difference_covers_the_truth_and_is_narrower_than_unpaired():
    """One signal with more and less noise; each AUC is Phi(1 / sqrt(2 (1 + s^2)))."""
    rng = np.random.default_rng(6)
    truth = norm.cdf(1 / np.sqrt(2 * 1.25)) - norm.cdf(1 / np.sqrt(2 * 2))
    covered, trials, widths = 0, 400, []
    for _ in range(trials):
        base = rng.normal([[1.0], [0.0]], 1, (2, 150))
        ours, theirs = (base + rng.normal(0, s, base.shape) for s in (0.5, 1.0))
        got = roc.auc_difference(tuple(ours), tuple(theirs))
        covered += got.low <= truth <= got.high
        single = [roc.auc(*a) for a in (ours, theirs)]
        unpaired = np.hypot(*(e.high - e.low for e in single))
        widths.append((got.high - got.low) / unpaired)
    assert abs(covered / trials - 0.95) < 4 * np.sqrt(0.05 * 0.95 / trials)
    assert np.mean(widths) < 0.9


@pytest.mark.parametrize("shifts", [(5.0, 3.5), (4.0, 3.0), (3.5, 5.0)])
def test_a_difference_near_the_ends_covers_the_truth(shifts):
    """A normal interval covers 69% of the first, and has no width in 21% of trials."""
    rng, trials, covered = np.random.default_rng(8), 300, 0
    truth = -np.diff(norm.cdf(np.array(shifts) / np.sqrt(2)))[0]
    for _ in range(trials):
        shared, own = rng.normal(size=(2, 2, 30))
        both = shared, shared / 2 + own * np.sqrt(0.75)
        scored = [(m + shift, o) for (m, o), shift in zip(both, shifts, strict=True)]
        got = roc.auc_difference(*scored)
        assert got.low < got.value < got.high
        covered += got.low <= truth <= got.high
    assert covered / trials > 0.95 - 4 * np.sqrt(0.05 * 0.95 / trials)


def test_a_difference_keeps_its_width_where_both_attacks_are_perfect():
    members, others = np.arange(10.0) + 100, np.arange(10.0)
    got = roc.auc_difference((members, others), (members**2, others))
    alone = roc.auc(members, others)
    assert got.value == 0
    assert got.low == pytest.approx(alone.low - 1)
    assert got.high == pytest.approx(1 - alone.low)


def test_clusters_widen_what_is_not_independent():
    """Every score ten times over: the interval must not shrink."""
    members, nonmembers = tied(7)
    once = roc.auc(members, nonmembers)
    ids = (np.arange(60), 100 + np.arange(80))
    again = [np.repeat(a, 10) for a in (members, nonmembers)]
    naive = roc.auc(*again)
    clustered = roc.auc(*again, clusters=tuple(np.repeat(i, 10) for i in ids))
    width = once.high - once.low
    assert naive.high - naive.low < width / 3
    assert clustered.high - clustered.low == pytest.approx(width, rel=0.02)


def test_clusters_of_records_cover_where_some_records_are_easy():
    """Eight models score the same records by their losses; membership tells nothing.

    A record that is easy to learn scores high in every model: as independent scores the
    intervals hold the truth far too rarely.
    """
    rng, trials, models, records = np.random.default_rng(3), 400, 8, 60
    ids = np.broadcast_to(np.arange(records), (models, records))
    held = np.zeros(2)
    for _ in range(trials):
        scores = rng.normal(size=records) + 0.3 * rng.normal(size=(models, records))
        member = np.broadcast_to(rng.random(records) < 0.5, ids.shape)
        data, groups = [scores[member], scores[~member]], (ids[member], ids[~member])
        each = [roc.auc(*data), roc.auc(*data, clusters=groups)]
        held += [e.low <= 0.5 <= e.high for e in each]
    naive, clustered = held / trials
    assert naive < 0.8
    assert abs(clustered - 0.95) < 4 * np.sqrt(0.05 * 0.95 / trials)


def test_one_cluster_tells_nothing_of_its_own_spread():
    members, nonmembers = tied(7)
    same = np.zeros(members.size), np.zeros(nonmembers.size)
    got = roc.auc(members, nonmembers, clusters=same)
    assert (got.low, got.high) == (0.0, 1.0)


def test_the_variance_over_records_that_are_on_both_sides_is_that_of_their_sums():
    few, more = np.random.default_rng(6).normal(size=(2, 5))
    records = np.arange(5), np.arange(5)
    got = roc._variance(few, more, records)
    assert got == pytest.approx(np.var(few + more, ddof=1) / 5)


def test_perfect_separation_is_not_certainty():
    few, many, edge = np.arange(10.0), np.arange(20.0), 0.025 ** (1 / 10)
    got, mirrored = roc.auc(few + 100, many), roc.auc(few, many + 100)
    assert (got.low, got.value, got.high) == (pytest.approx(edge), 1.0, 1.0)
    assert (mirrored.low, mirrored.value) == (0.0, 0.0)
    assert mirrored.high == pytest.approx(1 - edge)
    # two units of members and four of others are two pairs
    units = np.arange(10) // 5, np.arange(20) // 5
    got = roc.auc(few + 100, many, clusters=units)
    assert got.low == pytest.approx(0.025 ** (1 / 2))


def test_rank_correlation_covers_and_knows_when_there_is_none():
    rng = np.random.default_rng(8)
    rho, n, trials = 0.6, 80, 400
    truth = 6 / np.pi * np.arcsin(rho / 2)  # Spearman's of a bivariate normal
    covered = 0
    for _ in range(trials):
        a, b = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], n).T
        got = intervals.rank_correlation(a, np.exp(b))
        covered += got.low <= truth <= got.high
    assert abs(covered / trials - 0.95) < 4 * np.sqrt(0.05 * 0.95 / trials)
    assert intervals.rank_correlation([1, 2, 3, 4], [5, 5, 5, 5]) is None
    # one order of 24 agrees by chance, and one is reversed
    for sign in (1, -1):
        same = intervals.rank_correlation([1, 2, 3, 4], np.multiply(sign, [1, 2, 3, 4]))
        assert same.value == sign
        assert same.low < 0 < same.high
    assert intervals.rank_correlation([1, 2, 3], [1, 2, 3]) is None
    # by hand: of five, 1 counts as .95, and one swap of neighbours is .9
    for order, r in (([0, 1, 2, 3, 4], 0.95), ([0, 1, 2, 4, 3], 0.9)):
        got = intervals.rank_correlation(np.arange(5), order)
        low = np.tanh(np.arctanh(r) - 1.959964 * np.sqrt((1 + r**2 / 2) / 2))
        assert got.low == pytest.approx(low, rel=1e-6)


def test_summary_has_both_kinds_of_threshold():
    rng = np.random.default_rng(9)
    data = rng.normal(1, 1, 1500), rng.normal(0, 1, 1500)
    got = roc.summarise(*data, shadows=data)
    assert [a.chosen_on for a in got.accuracy] == ["shadows", "targets"]
    kinds = [p if isinstance(p, str) else p.chosen_on for p in got.operating]
    none = ["unavailable (1500)"] * 2
    assert kinds == ["shadows", *none, "targets", *none]
    assert got.accuracy[0].value == got.accuracy[1].value
    # what the shadows choose accuses nobody where they score much higher
    higher = roc.summarise(*data, shadows=tuple(scores + 9 for scores in data))
    assert higher.accuracy[0].value == 0.5


@pytest.mark.parametrize(
    ("members", "nonmembers", "text"),
    [([], [1], "no scores of members"), ([1], [np.nan, 2], "1 of 2 nonmembers")],
)
def test_what_is_no_score_is_refused(members, nonmembers, text):
    with pytest.raises(ValueError, match=text):
        roc.auc(members, nonmembers)
