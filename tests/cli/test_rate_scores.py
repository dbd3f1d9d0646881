"""Scores and logits of models trained elsewhere: every layout, and clear errors."""

import numpy as np
import pytest

from audit.__main__ import main
from audit.cli import rate_scores, score_formats
from audit.data import untrusted
from audit.engine import signals
from audit.statistics import roc
from tests.commands import refused

MODELS, RECORDS, QUERIES, CLASSES = 12, 300, 2, 4


def elsewhere(seed=0):
    """Logits of models that are surer of what they were trained on."""
    rng = np.random.default_rng(seed)
    keep = rng.permuted(np.arange(MODELS)[:, None] % 2 == np.zeros(RECORDS), axis=0)
    labels = rng.integers(0, CLASSES, RECORDS)
    logits = rng.normal(0, 0.5, (MODELS, RECORDS, QUERIES, CLASSES))
    hard = rng.normal(0, 2, (RECORDS, 1))
    true_logit = hard + 1.5 * keep[:, :, None] + 0.1 * rng.normal(size=logits.shape[:3])
    np.put_along_axis(logits, np.broadcast_to(labels[None, :, None, None],
                      (*logits.shape[:3], 1)), true_logit[..., None], -1)  # fmt: skip
    return keep, logits.astype(np.float32), labels


def odds(logits, labels):
    each = [signals.log_odds(m, labels[:, None]) for m in logits]
    return np.asarray(each, np.float16)


@pytest.fixture
def tree(tmp_path):
    keep, logits, labels = elsewhere()
    np.save(tmp_path / "y_train.npy", labels)
    for i in range(MODELS):
        at = tmp_path / f"experiment-{i}_{MODELS}"
        (at / "logits").mkdir(parents=True)
        np.save(at / "keep.npy", keep[i])
        np.save(at / "logits" / "20.npy", np.zeros((RECORDS, 1, 2, CLASSES)))
        np.save(at / "logits" / "100.npy", logits[i][:, None])
    return tmp_path


def test_plain_scores_are_rated_as_they_are(tmp_path, capsys):
    rng = np.random.default_rng(1)
    a, b = rng.normal(1, 1, 1500), rng.normal(0, 1, 1200)
    file = tmp_path / "scores.npz"
    np.savez(file, members=a, nonmembers=b, shadow_members=a, shadow_nonmembers=b)
    assert main(["membership", str(file)]) == 0
    output = capsys.readouterr().out
    auc = roc.auc(a, b)
    assert f"{auc.value:.4f} [{auc.low:.4f}, {auc.high:.4f}]" in output
    assert "1500 scores of members, 1200 of non-members" in output
    assert output.count("unavailable (1200)") == 4
    assert "(from shadows)" in output
    np.savez(file, scores=np.r_[a, b], member=np.r_[np.ones(1500), np.zeros(1200)] > 0)
    assert main(["membership", str(file)]) == 0
    assert f"{auc.value:.4f} [{auc.low:.4f}, {auc.high:.4f}]" in capsys.readouterr().out


def test_scores_have_no_target_model(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", members=np.arange(9.0), nonmembers=np.arange(9.0))
    line = refused(capsys, "membership", str(tmp_path / "a.npz"), "target=foo")
    assert "target=foo" in line
    assert "holds scores, and no models" in line


def test_no_epsilon_is_read_into_a_models_scores(tmp_path, capsys):
    """Scores of one model's records prove nothing of a mechanism's epsilon."""
    file = tmp_path / "scores.npz"
    np.savez(file, members=np.arange(50.0) + 100, nonmembers=np.arange(50.0))
    main(["membership", str(file)])
    output = capsys.readouterr().out
    assert "ε" not in output
    assert "No epsilon" in output


def test_a_tree_of_logits_a_file_of_logits_and_of_scores_say_the_same(tree, tmp_path):
    keep, logits, labels = elsewhere()
    np.savez(tmp_path / "a.npz", keep=keep, logits=logits, labels=labels)
    np.savez(tmp_path / "b.npz", keep=keep, scores=odds(logits, labels))
    experiments = [
        score_formats.read(p) for p in (tree, tmp_path / "a.npz", tmp_path / "b.npz")
    ]
    for other in experiments:
        np.testing.assert_array_equal(other.keep, keep)
        np.testing.assert_allclose(
            other.signals.astype(float), experiments[0].signals.astype(float), rtol=2e-3
        )
    assert experiments[0].names[0] == "experiment-0_12"


def test_the_last_checkpoint_counts_and_scores_go_before_logits(tree):
    experiment = score_formats.read(tree)
    assert experiment.signals.std() > 1  # the first checkpoint is all zeros
    for model in tree.glob("*/logits"):
        (model.parent / "scores").mkdir()
        np.save(model.parent / "scores" / "1.npy", np.full((RECORDS, 1), 3.0))
    assert (score_formats.read(tree).signals == 3).all()


def test_models_are_attacked_and_lira_beats_the_loss(tree, capsys):
    rating = rate_scores.rate(tree, calibration=2)
    assert rating.targets == tuple(f"experiment-{i}_12" for i in range(MODELS))
    rows = {row.attack: row for row in rating.attacks}
    assert set(rows) == set(rate_scores.ATTACKS)
    assert rows["lira"].over.low > 0
    assert rows["lira"].summary.auc.value > 0.85
    summary = rows["lira"].summary
    assert summary.members + summary.nonmembers == MODELS * RECORDS
    tables = rate_scores.render(rating)
    assert max(map(len, tables.split("\n"))) <= 120
    assert main(["membership", str(tree), "calibration=0"]) == 0
    assert "from shadows)" not in capsys.readouterr().out


def test_each_model_is_rated_at_thresholds_of_its_own_calibration_models(tmp_path):
    """Models differ in how sure they are, so that thresholds do not carry over."""
    rng, models, many = np.random.default_rng(0), 8, 2100
    keep = rng.permuted(np.arange(models)[:, None] % 2 == np.zeros(many), axis=0)
    surer = np.linspace(-3, 3, models)[:, None]
    np.savez(
        tmp_path / "a.npz", keep=keep, scores=keep + surer + rng.normal(size=keep.shape)
    )
    whole = {r.attack: r.summary for r in rate_scores.rate(tmp_path / "a.npz").attacks}
    alone = [
        {
            r.attack: r.summary
            for r in rate_scores.rate(tmp_path / "a.npz", name).attacks
        }
        for name in rate_scores.rate(tmp_path / "a.npz").targets
    ]
    for attack, summary in whole.items():
        first = [one[attack] for one in alone]
        point, points = summary.operating[0], [s.operating[0] for s in first]
        assert point.fpr.k == sum(p.fpr.k for p in points)
        assert point.tpr.k == sum(p.tpr.k for p in points)
        assert point.chosen_on == "shadows"
        values = [s.accuracy[0].value for s in first]
        assert summary.accuracy[0].value == pytest.approx(np.mean(values))
    plain = whole["loss_threshold"]
    # the surest model comes before the least sure: its threshold accuses most of those
    realised = [p.fpr.value for p in (plain.operating[0], plain.operating[3])]
    assert realised[0] > 3 * realised[1]


def test_lira_on_the_file_is_lira_written_out(tree):
    """Every record by hand: normal laws of its log-odds in and out of ten models."""
    from scipy import stats

    keep, logits, labels = elsewhere()
    phi = odds(logits, labels).astype(float)
    rating = rate_scores.rate(tree, f"experiment-{MODELS - 1}_{MODELS}", 0)
    row = {r.attack: r for r in rating.attacks}["lira"]
    last = MODELS - 1
    half = min(keep[:last].sum(0).min(), (~keep[:last]).sum(0).min())
    scores = []
    for j in range(RECORDS):
        parts = [np.flatnonzero(keep[:last, j])[:half], np.flatnonzero(~keep[:last, j])]
        parts[1] = parts[1][len(parts[1]) - half :]
        laws = [(np.median(phi[p, j], 0), phi[p, j].std(0)) for p in parts]
        ratio = [stats.norm.logpdf(phi[-1, j], *law).sum() for law in laws]
        scores.append(ratio[0] - ratio[1])
    scores = np.array(scores)
    brute = roc.auc(scores[keep[-1]], scores[~keep[-1]]).value
    assert row.summary.auc.value == pytest.approx(brute, abs=2e-3)


def test_no_score_is_rounded_or_cut(tmp_path):
    """Log-odds that float16 would tie, or call infinite, are ordered as they are."""
    rng, shape = np.random.default_rng(0), (8, 400)
    keep = rng.permuted(np.arange(8)[:, None] % 2 == np.zeros(400), axis=0)
    close = 8 + 1e-4 * rng.normal(keep, 1, shape)
    large = 1e6 * (close - 8) / 1e-4
    aucs = []
    for name, scores in (("close", close), ("large", large)):
        np.savez(tmp_path / f"{name}.npz", keep=keep, scores=scores)
        rated = rate_scores.rate(tmp_path / f"{name}.npz").attacks
        aucs.append({row.attack: row.summary.auc.value for row in rated})
    exact = roc.auc(close[keep], close[~keep]).value
    assert aucs[0]["loss_threshold"] == pytest.approx(exact, abs=2e-3)
    assert aucs[0]["lira"] == pytest.approx(aucs[1]["lira"], abs=2e-3)


def saved(tmp_path, **arrays):
    file = tmp_path / "bad.npz"
    np.savez(file, **arrays)
    return [str(file)]


ONES = np.ones((4, 6))
ZEROS = np.zeros(6, int)
BITS = np.arange(24).reshape(4, 6) % 2 > 0


def _damaged(folder, damage):
    [file] = saved(folder, members=np.arange(99.0), nonmembers=ONES[0])
    path = folder / "bad.npz"
    path.write_bytes(damage(path.read_bytes()))
    return [file]


def _encrypted(folder):
    """The archive's own word that its members are encrypted: bit 0 of their flags."""

    def mark(content):
        for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            at = -1
            while (at := content.find(signature, at + 1)) >= 0:
                flag = content[at + offset] | 1
                content = (
                    content[: at + offset] + bytes([flag]) + content[at + offset + 1 :]
                )
        return content

    return _damaged(folder, mark)


def _lying(folder, numbers):
    """A file whose header promises more than it holds."""
    import io
    import zipfile

    stream = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (numbers,)}
    np.lib.format.write_array_header_1_0(stream, header)
    path = folder / "bad.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("members.npy", "nonmembers.npy"):
            archive.writestr(name, stream.getvalue())
    return [str(path)]


WRONG = {  # what is typed, what is said
    "nothing typed": (lambda d: [], "membership of what? one .npz file or folder"),
    "two": (lambda d: ["a.npz", "b.npz"], "got 2"),
    "no such": (lambda d: [str(d / "no.npz")], "no such file or folder"),
    "suffix": (lambda d: [str(_text(d / "x.csv"))], "an .npz file or a folder"),
    "not npz": (lambda d: [str(_text(d / "x.npz"))], "cannot be read as plain arrays"),
    "word": (lambda d: ["x.npz", "targets=2"], "did you mean 'target'?"),
    "model": (
        lambda d: [*saved(d, keep=BITS, scores=ONES), "target=7"],
        "no model '7'; there are 0, 1, 2 and 1 more",
    ),
    "digits": (lambda d: ["x.npz", f"calibration={'9' * 5000}"], "a whole number"),
    "minus": (lambda d: ["x.npz", "calibration=-1"], "a whole number of models"),
    "empty": (lambda d: saved(d), "holds nothing; a file holds members and"),
    "half": (lambda d: saved(d, members=ONES[0]), "holds members; a file holds"),
    "typo": (lambda d: saved(d, membres=ONES[0]), "has membres; a file holds"),
    "shape": (lambda d: saved(d, members=ONES, nonmembers=ONES[0]), "members has shap"),
    "nan": (lambda d: saved(d, members=[1.0, np.nan], nonmembers=ONES[0]), "are nan"),
    "text": (lambda d: saved(d, members=["a"], nonmembers=["b"]), "not numbers"),
    "pickle": (
        lambda d: saved(d, members=np.array([{}]), nonmembers=ONES[0]),
        "cannot be read as plain arrays",
    ),
    "one kind": (lambda d: saved(d, scores=ONES[0], member=ONES[0] > 0), "same for"),
    "bits": (lambda d: saved(d, scores=ONES[0], member=np.arange(6)), "true and false"),
    "lengths": (lambda d: saved(d, scores=ONES[0], member=BITS[0][:5]), "6 scores, b"),
    "one shadow": (
        lambda d: saved(d, members=ONES[0], nonmembers=ONES[0], shadow_members=ONES[0]),
        "shadow_members and shadow_nonmembers wanted",
    ),
    "keep": (lambda d: saved(d, keep=BITS[:3], scores=ONES), "keep has shape (3, 6)"),
    "labels": (
        lambda d: saved(d, keep=BITS, logits=np.ones((4, 6, 3)), labels=np.full(6, 7)),
        "labels are not integers from 0 to 2",
    ),
    "few": (
        lambda d: saved(d, keep=BITS, scores=ONES),
        "0 of the attacker's 2 models were trained with record 0 of keep, and 2 with",
    ),
    "all targets": (
        lambda d: [*saved(d, keep=BITS, scores=ONES), "calibration=3"],
        "leave none to the attacker",
    ),
    "complex": (
        lambda d: saved(d, members=ONES[0] + 1j, nonmembers=ONES[0]),
        "members is of type complex128, not numbers",
    ),
    "complex odds": (lambda d: saved(d, keep=BITS, scores=ONES * 1j), "complex128"),
    "infinite": (
        lambda d: saved(d, keep=BITS, scores=ONES * np.inf), "as large as inf"
    ),
    "complex logits": (
        lambda d: saved(d, keep=BITS, logits=np.ones((4, 6, 3)) * 1j, labels=ZEROS),
        "logits are of type complex128",
    ),
    "text shadows": (
        lambda d: saved(d, members=ONES[0], nonmembers=ONES[0],
                        shadow_members=["a"], shadow_nonmembers=["b"]),
        "shadow_members is of type <U1, not numbers",
    ),
    "shadow shape": (
        lambda d: saved(d, members=ONES[0], nonmembers=ONES[0],
                        shadow_members=1.0, shadow_nonmembers=ONES[0]),
        "shadow_members has shape ()",
    ),
    "0-d": (lambda d: saved(d, members=1.0, nonmembers=ONES[0]), "members has shape"),
    "0-d logits": (
        lambda d: saved(d, keep=BITS, logits=1.0, labels=ZEROS), "logits has shape ()"
    ),
    "0-d keep": (lambda d: saved(d, keep=True, scores=1.0), "keep has shape ()"),
    "ragged": (
        lambda d: saved(d, members=np.array([[1], [1, 2]], object), nonmembers=ONES[0]),
        "members holds Python objects or ragged lists",
    ),
    "truncated": (lambda d: _damaged(d, lambda b: b[:-200]), "cannot be read as plain"),
    "flipped": (
        lambda d: _damaged(d, lambda b: b[:150] + bytes([b[150] ^ 255]) + b[151:]),
        "cannot be read as plain",
    ),
    "encrypted": (_encrypted, "is encrypted, password required"),
    "a header that lies": (lambda d: _lying(d, 10**12), "says shape (1000000000000,)"),
    "empty folder": (lambda d: [str(d)], "no model in it"),
}  # fmt: skip


def _text(path):
    path.write_text("not an archive")
    return path


@pytest.mark.parametrize("what", WRONG)
def test_everything_wrong_is_one_line_and_exit_code_two(what, tmp_path, capsys):
    words, text = WRONG[what]
    assert text in refused(capsys, "membership", *words(tmp_path), silently=True)


def test_what_would_not_fit_memory_is_refused_before_it_is_read(
    tmp_path, capsys, monkeypatch
):
    """Packed to 8 KB, unpacked 8 MB, on a machine with 4 MB free."""
    file = tmp_path / "bomb.npz"
    np.savez_compressed(file, members=np.zeros(10**6), nonmembers=ONES[0])
    assert file.stat().st_size < 10_000
    monkeypatch.setattr(untrusted.os, "sysconf", lambda name: 2**11)
    assert "GiB of memory are free" in refused(capsys, "membership", str(file))


@pytest.mark.parametrize("missing", ["logits", "labels"])
def test_what_a_tree_lacks_is_named(missing, tree, capsys):
    if missing == "labels":
        (tree / "y_train.npy").unlink()
        text = "logits alone, and there is no"
    else:
        for file in (tree / "experiment-3_12" / "logits").glob("*"):
            file.unlink()
        text = "experiment-3_12: neither scores/*.npy nor logits/*.npy"
    assert text in refused(capsys, "membership", str(tree))
