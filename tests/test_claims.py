"""Intervals against their formulas, every rule at its boundary, and the ledger's way through a file."""

import dataclasses
import json
import math

import numpy as np
import pytest
from scipy import stats

from attention_dynamics import claims
from attention_dynamics.claims import NOT_REPRODUCED, QUALIFIED, REPRODUCED, Interval

REASONS = {verdict: f"because {verdict}" for verdict in claims.VERDICTS}


def row(id="L1", **changes):
    arguments = {
        "id": id, "statement": "a | b", "ours": 1.0, "unit": "nats", "judgement": claims.Judgement(QUALIFIED, "a rule"),
        "reasons": REASONS, "control": "none", "notebook": "01_a", "tolerance": 0.1,
    }  # fmt: skip
    return claims.claim(**(arguments | changes))


def test_mean_interval_is_students():
    samples = np.array([1.0, 2.5, 2.0, 4.0])
    half = stats.t.ppf(0.975, 3) * samples.std(ddof=1) / 2
    interval = claims.mean_interval(samples)
    assert np.allclose([interval.low, interval.high], [samples.mean() - half, samples.mean() + half])
    assert interval.method == "Student's t over 4 seeds"


def test_mean_interval_covers_as_often_as_it_says():
    """2000 draws of five normal samples: 95 % within 5 standard errors of a proportion, sqrt(0.95 * 0.05 / 2000)."""
    draws = np.random.default_rng(0).normal(3.0, 2.0, (2000, 5))
    intervals = [claims.mean_interval(samples) for samples in draws]
    covered = np.mean([interval.low <= 3.0 <= interval.high for interval in intervals])
    assert abs(covered - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 2000)


def test_prediction_interval_holds_the_next_mean_as_often_as_it_says():
    """2000 pairs of five normal samples, as above: the interval from the first five holds the mean of the second."""
    draws = np.random.default_rng(1).normal(3.0, 2.0, (2000, 2, 5))
    hits = [
        interval.low <= new.mean() <= interval.high
        for old, new in draws
        for interval in [claims.prediction_interval(old)]
    ]
    assert abs(np.mean(hits) - 0.95) < 5 * math.sqrt(0.95 * 0.05 / 2000)


def test_bootstrap_prediction_is_centred_and_wider():
    samples = np.random.default_rng(2).normal(3.0, 2.0, 12)
    interval = claims.bootstrap_interval(12, lambda index: float(samples[index].mean()))
    prediction = claims.bootstrap_prediction(12, lambda index: float(samples[index].mean()))
    assert abs((prediction.low + prediction.high) / 2 - samples.mean()) < 0.05
    # The difference of two means has twice the variance of one.
    assert abs((prediction.high - prediction.low) / (interval.high - interval.low) - math.sqrt(2)) < 0.05


def test_paired_interval_is_scipys():
    first, second = np.random.default_rng(3).normal(size=(2, 7))
    interval = claims.paired_interval(first, second)
    exact = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert np.allclose([interval.low, interval.high], [exact.low, exact.high])
    assert interval.method == "paired Student's t over 7 seeds"


def test_bootstrap_interval_of_a_mean_is_its_percentiles():
    """The exact bootstrap distribution of the mean of three numbers, by enumeration of all 27 resamples."""
    samples = np.array([0.0, 1.0, 5.0])
    every = sorted(np.mean([samples[i], samples[j], samples[k]]) for i in range(3) for j in range(3) for k in range(3))
    interval = claims.bootstrap_interval(3, lambda index: float(samples[index].mean()))
    # 2.5 % of 27 resamples is less than one of them: the ends are the smallest and the largest mean.
    assert (interval.low, interval.high) == (every[0], every[-1])
    assert claims.bootstrap_interval(3, lambda index: float(samples[index].mean())) == interval, (
        "a fixed stream of draws"
    )


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ({"a": 0.0, "b": 1e-9}, REPRODUCED),
        ({"a": 1.1e-9}, NOT_REPRODUCED),
        ({"a": math.nan}, NOT_REPRODUCED),
        ({}, NOT_REPRODUCED),
    ],
)
def test_an_identity_holds_if_every_check_does(errors, verdict):
    judgement = claims.judge_identity(errors, 1e-9)
    assert judgement.verdict == verdict and "1e-09" in judgement.rule


@pytest.mark.parametrize(
    ("ours", "interval", "verdict"),
    [
        (2.0584, (2.0, 2.1), REPRODUCED),
        (2.0585, (2.0, 2.1), REPRODUCED),
        (2.0575, (2.0, 2.05), REPRODUCED),
        (2.0586, (2.0, 2.1), QUALIFIED),
        (2.031, (2.0, 2.058), QUALIFIED),
        (2.031, (2.0, 2.0579), NOT_REPRODUCED),
    ],
)
def test_a_number_of_the_paper_comes_back_to_its_last_digit_or_lies_in_the_spread(ours, interval, verdict):
    assert claims.judge_number(ours, 2.058, 3, Interval(*interval, "")).verdict == verdict


def test_a_whole_number_comes_back_to_a_half():
    assert claims.judge_number(430.5, 430, 0, Interval(0, 1, "")).verdict == REPRODUCED
    assert claims.judge_number(430.6, 430, 0, Interval(0, 1, "")).verdict == NOT_REPRODUCED


@pytest.mark.parametrize(
    ("low", "survived", "verdict"),
    [
        (0.01, True, REPRODUCED),
        (0.01, False, QUALIFIED),
        (0.0, True, NOT_REPRODUCED),
        (-0.01, True, NOT_REPRODUCED),
        (math.nan, True, NOT_REPRODUCED),
    ],
)
def test_an_effect_needs_its_interval_and_its_control(low, survived, verdict):
    judgement = claims.judge_effect(Interval(low, 1.0, ""), {"the control": survived})
    assert judgement.verdict == verdict and "the control" in judgement.rule


@pytest.mark.parametrize(
    ("core", "rest", "verdict"),
    [(True, True, REPRODUCED), (True, False, QUALIFIED), (False, True, NOT_REPRODUCED), (False, False, NOT_REPRODUCED)],
)
def test_a_claim_of_two_readings(core, rest, verdict):
    assert claims.judge_conditions({"weak": core}, {"strict": rest}).verdict == verdict


def test_a_verdict_brings_its_own_reason():
    assert row().reason == "because qualified"


def test_records_come_back_as_they_were(tmp_path):
    first = [
        row("L1", interval=Interval(0.5, 1.5, "t"), seeds=[1, 2], paper=0.9, figure="01_f"),
        row("L2-a", ours=-1e-12),
    ]
    claims.record(first, "01_a", tmp_path)
    second = [row("X1", notebook="02_b", ours=1 / 3)]
    claims.record(second, "02_b", tmp_path / "")
    back = claims.read(tmp_path)
    assert back[:2] == first and back[2] == dataclasses.replace(second[0], ours=round(1 / 3, 10))
    claims.write_ledger(back, tmp_path)
    assert [entry["id"] for entry in json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))] == [
        "L1",
        "L2-a",
        "X1",
    ]
    assert claims.read(tmp_path) == back, "the ledger is no record of its own"


def test_tables_escape_and_drop_empty_columns():
    lines = claims.markdown([row()]).splitlines()
    assert lines[0] == "| claim | statement | ours | unit | verdict | reason |" and r"a \| b" in lines[2]
    wide = claims.markdown([row(paper=2.0, interval=Interval(1, 2, "")), row("L2", notebook="02_b")]).splitlines()
    assert wide[0].startswith("| claim | statement | paper | ours | 95 % interval |") and wide[0].endswith(
        "| notebook |"
    )
    assert "| 2 | 1 | 1 to 2 | nats |" in wide[2]
    summary = claims.summary([row(), row("X2-long")]).splitlines()
    assert len({len(line) for line in summary}) == 1 and all(line.count("|") == 8 for line in summary)


def test_deviations_name_what_changed():
    old = [row("A"), row("B"), row("C"), row("D")]
    new = [row("A", ours=1.09), row("B", ours=1.11), row("C", judgement=claims.Judgement(REPRODUCED, "")), row("E")]
    assert claims.deviations(old, new) == [
        "D: recorded before, not now",
        "E: not recorded before",
        "B: 1.11 is not within 0.1 of the committed 1 nats",
        "C: verdict is 'reproduced', committed is 'qualified'",
    ]
    assert claims.deviations(old, old) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: row(ours=math.nan), "claim L1 must have finite values"),
        (lambda: row(interval=Interval(0, math.inf, "")), "claim L1 must have finite values"),
        (lambda: row(tolerance=0), "tolerance of claim L1 must be positive and finite, got 0"),
        (lambda: row(tolerance=math.inf), "tolerance of claim L1 must be positive and finite, got inf"),
        (lambda: row(control=" "), "control of claim L1 must say what could have refuted it"),
        (lambda: row(interval=Interval(2, 1, "")), "interval of claim L1 must have low <= high"),
        (lambda: claims.judge_effect(Interval(1, 2, ""), {}), "controls must name at least one control"),
        (lambda: claims.judge_conditions({}, {}), "core must name at least one condition"),
        (lambda: claims.judge_number(math.nan, 1.0, 2, Interval(0, 1, "")), "ours and paper must be finite"),
        (lambda: claims.paired_interval([1.0, 2.0], [1.0]), "paired samples must have equal length, got 2 and 1"),
        (lambda: claims.prediction_interval([1.0]), "samples must be at least two finite numbers"),
        (lambda: claims.bootstrap_interval(3, lambda index: math.nan), "statistic must be finite"),
        (lambda: claims.bootstrap_prediction(1, float), "n_seeds must be an integer of at least 2, got 1"),
        (lambda: row(reasons={}), "reasons of claim L1 must hold one for the verdict 'qualified'"),
        (lambda: claims.mean_interval([1.0]), "samples must be at least two finite numbers"),
        (lambda: claims.mean_interval([1.0, math.nan]), "samples must be at least two finite numbers"),
        (lambda: claims.mean_interval([[1.0, 2.0]]), "samples must be at least two finite numbers"),
        (lambda: claims.bootstrap_interval(1, float), "n_seeds must be an integer of at least 2, got 1"),
        (lambda: claims.bootstrap_interval(2.5, float), "n_seeds must be an integer of at least 2, got 2.5"),
        (lambda: claims.judge_conditions({"a": "False"}, {}), "conditions must be True or False, got .'a': 'False'."),
        (lambda: claims.judge_identity({"a": -5.0}, 1e-6), "errors must not be negative"),
        (
            lambda: row(judgement=claims.Judgement("maybe", "a rule"), reasons={"maybe": "because"}),
            "verdict of claim L1 must be one of reproduced, qualified, not reproduced, got 'maybe'",
        ),
        (lambda: claims.record([], "01_a", "x"), "claims must be distinct and at least one"),
        (lambda: claims.record([row(), row()], "01_a", "x"), "claims must be distinct"),
        (lambda: claims.record([row()], "02_b", "x"), r"claims must be of notebook 02_b, got others: \['L1'\]"),
    ],
)
def test_bad_input_is_refused(call, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        call()
    assert not list(tmp_path.iterdir())


def test_folders_and_files_that_hold_no_records_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no NN_claims.json in"):
        claims.read(tmp_path)
    for text in (b"{", b"[1]", b'[{"id": "L1"}]', b"\xff\x00"):
        (tmp_path / "01_claims.json").write_bytes(text)
        with pytest.raises(ValueError, match="01_claims.json must hold claim records"):
            claims.read(tmp_path)
    claims.record([row()], "01_a", tmp_path)
    claims.record([row(notebook="02_b")], "02_b", tmp_path)
    with pytest.raises(ValueError, match=r"one record each, got several of \['L1'\]"):
        claims.read(tmp_path)
    text = (tmp_path / "01_claims.json").read_text(encoding="utf-8").replace('"qualified"', '"maybe"')
    (tmp_path / "01_claims.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="must have a verdict of .* for L1, got 'maybe'"):
        claims.read(tmp_path)
