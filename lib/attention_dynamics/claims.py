"""The ledger: what the paper claims, what was measured here, and a verdict that a stated rule computes."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from attention_dynamics.paths import write_whole

REPRODUCED, QUALIFIED, NOT_REPRODUCED = "reproduced", "qualified", "not reproduced"
VERDICTS = (REPRODUCED, QUALIFIED, NOT_REPRODUCED)
CONFIDENCE = 0.95
RESAMPLES = 9999


@dataclass(frozen=True)
class Interval:
    """95 % confidence interval and how it was made."""

    low: float
    high: float
    method: str


@dataclass(frozen=True)
class Judgement:
    """A verdict and the rule that gave it."""

    verdict: str
    rule: str


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    id: the paper-facts id, with a suffix where a claim has several numbers (X2-loss-sgd)
    ours, paper: the value here and in the paper, in `unit`; paper None where it gives no number
    interval: over seeds, None where nothing is random
    control: what could have refuted the claim, and what it gave
    tolerance: largest change of `ours` between two machines that is no deviation, in `unit`
    """

    id: str
    statement: str
    paper: float | None
    ours: float
    unit: str
    interval: Interval | None
    seeds: list[int]
    verdict: str
    rule: str
    reason: str
    control: str
    notebook: str
    figure: str | None
    tolerance: float


def claim(
    id: str,
    statement: str,
    ours: float,
    unit: str,
    judgement: Judgement,
    reasons: dict[str, str],
    control: str,
    notebook: str,
    tolerance: float,
    paper: float | None = None,
    interval: Interval | None = None,
    seeds: Sequence[int] = (),
    figure: str | None = None,
) -> Claim:
    """Make a ledger row; `reasons` has one sentence for each verdict that the rule can give.

    Raises ValueError for a value or an interval end that is not finite, a tolerance that is not positive, or a verdict without a reason.
    """
    numbers = [ours, *([] if paper is None else [paper]), *([] if interval is None else [interval.low, interval.high])]
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"claim {id} must have finite values, got {numbers}")
    if not 0 < tolerance < math.inf:
        raise ValueError(f"tolerance of claim {id} must be positive and finite, got {tolerance}")
    if not control.strip():
        raise ValueError(f"control of claim {id} must say what could have refuted it, got {control!r}")
    if interval is not None and not interval.low <= interval.high:
        raise ValueError(f"interval of claim {id} must have low <= high, got {interval.low} to {interval.high}")
    if judgement.verdict not in VERDICTS:
        raise ValueError(f"verdict of claim {id} must be one of {', '.join(VERDICTS)}, got {judgement.verdict!r}")
    if judgement.verdict not in reasons:
        raise ValueError(
            f"reasons of claim {id} must hold one for the verdict {judgement.verdict!r}, got {sorted(reasons)}"
        )
    return Claim(
        id,
        statement,
        paper,
        float(ours),
        unit,
        interval,
        list(seeds),
        judgement.verdict,
        judgement.rule,
        reasons[judgement.verdict],
        control,
        notebook,
        figure,
        tolerance,
    )


def half_width(samples: np.ndarray) -> np.ndarray:
    """(...) half the width of Student's t interval of the mean of samples (..., R) over R seeds, 95 %."""
    n = samples.shape[-1]
    return stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * samples.std(-1, ddof=1) / np.sqrt(n)


def mean_interval(samples: Sequence[float], over: str = "seeds") -> Interval:
    """Student's t interval of the mean. Raises ValueError for fewer than two finite samples.

    over: what the samples are independent draws of, for the method's text.
    """
    samples = _samples(samples)
    mean, half = samples.mean(), half_width(samples)
    return Interval(float(mean - half), float(mean + half), f"Student's t over {len(samples)} {over}")


def paired_interval(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Student's t interval of the mean of first - second, paired by seed. Raises ValueError for unequal lengths and
    for fewer than two finite differences."""
    if len(first) != len(second):
        raise ValueError(f"paired samples must have equal length, got {len(first)} and {len(second)}")
    interval = mean_interval(np.subtract(first, second))
    return Interval(interval.low, interval.high, f"paired Student's t over {len(first)} seeds")


def prediction_interval(samples: Sequence[float]) -> Interval:
    """Where the mean of as many *new* seeds should lie, 95 %: wider than the interval of the mean by sqrt(2), since both
    means vary. Raises ValueError for fewer than two finite samples."""
    samples = _samples(samples)
    mean, half = samples.mean(), math.sqrt(2) * half_width(samples)
    return Interval(float(mean - half), float(mean + half), f"prediction by Student's t for {len(samples)} new seeds")


def bootstrap_interval(n_seeds: int, statistic: Callable[[np.ndarray], float]) -> Interval:
    """Percentile bootstrap over seeds: `statistic` takes an array of seed positions, drawn with replacement.

    For statistics that are no mean. With few seeds such an interval is too narrow; the method's text says how many.
    Raises ValueError for fewer than two seeds or a statistic that is not finite.
    """
    low, high = _bootstrap(n_seeds, 1, statistic)
    return Interval(low, high, f"percentile bootstrap, {RESAMPLES} resamples of {n_seeds} seeds")


def bootstrap_prediction(n_seeds: int, statistic: Callable[[np.ndarray], float]) -> Interval:
    """Where the statistic of as many *new* seeds should lie, 95 %: its value here, plus the percentiles of the difference
    between two independent resamples. Raises as `bootstrap_interval`."""
    low, high = _bootstrap(n_seeds, 2, lambda first, second: statistic(first) - statistic(second))
    here = statistic(np.arange(n_seeds))
    return Interval(
        here + low, here + high, f"prediction by bootstrap, {RESAMPLES} pairs of resamples of {n_seeds} seeds"
    )


def _bootstrap(n_seeds: int, resamples: int, statistic: Callable[..., float]) -> tuple[float, float]:
    if not isinstance(n_seeds, int) or n_seeds < 2:
        raise ValueError(f"n_seeds must be an integer of at least 2, got {n_seeds!r}")

    def finite(*indices: np.ndarray) -> float:
        value = statistic(*(index.astype(int) for index in indices))
        if not math.isfinite(value):
            raise ValueError(f"statistic must be finite, got {value} for some resample")
        return value

    result = stats.bootstrap(
        (np.arange(n_seeds),) * resamples,
        finite,
        vectorized=False,
        confidence_level=CONFIDENCE,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def judge_identity(errors: dict[str, float], tolerance: float, kind: str = "relative error") -> Judgement:
    """For a law: `errors` has the largest error, of this kind, of each independent check. Raises ValueError for an
    error that is negative."""
    if any(error < 0 for error in errors.values()):
        raise ValueError(f"errors must not be negative, got {errors}")
    verdict = REPRODUCED if errors and all(error <= tolerance for error in errors.values()) else NOT_REPRODUCED
    return Judgement(
        verdict,
        f"reproduced if the largest {kind} of each of {len(errors)} checks ({'; '.join(errors)}) is at most {tolerance:g}, else not reproduced",
    )


def judge_number(ours: float, paper: float, digits: int, prediction: Interval) -> Judgement:
    """For a printed number of a deterministic protocol: it should come back to the last printed digit, since the
    seeds are the same; where it does not, `prediction` tells whether as many other draws could have given it.
    Raises ValueError for a number that is not finite."""
    if not (math.isfinite(ours) and math.isfinite(paper)):
        raise ValueError(f"ours and paper must be finite, got {ours} and {paper}")
    half_digit = 0.5 * 10.0**-digits
    if abs(ours - paper) <= half_digit * (1 + 1e-9):
        verdict = REPRODUCED
    else:
        verdict = QUALIFIED if prediction.low <= paper <= prediction.high else NOT_REPRODUCED
    rule = (
        f"reproduced if within {half_digit:g} of the paper's number (its last digit; the seeds are the same); qualified if "
        f"the paper's number lies in {prediction.low:.4g} to {prediction.high:.4g}, the 95 % {prediction.method}; else not reproduced"
    )
    return Judgement(verdict, rule)


def judge_effect(interval: Interval, controls: dict[str, bool]) -> Judgement:
    """For a claimed positive difference: `controls` says of each control whether the claim survived it.
    Raises ValueError for no control."""
    if not controls:
        raise ValueError("controls must name at least one control, got none")
    if not interval.low > 0:
        verdict = NOT_REPRODUCED
    else:
        verdict = REPRODUCED if all(controls.values()) else QUALIFIED
    return Judgement(
        verdict,
        f"reproduced if the 95 % interval of the difference lies above 0 and the claim survives its controls ({'; '.join(controls)}); qualified if only the first; else not reproduced",
    )


def judge_conditions(core: dict[str, bool], rest: dict[str, bool]) -> Judgement:
    """For a claim that can be taken more or less strictly: `core` is its least reading, `rest` what its words also say.
    Raises ValueError for an empty core."""
    if not core:
        raise ValueError("core must name at least one condition, got none")
    if strangers := {name: value for name, value in (core | rest).items() if not isinstance(value, bool | np.bool_)}:
        raise ValueError(f"conditions must be True or False, got {strangers}")
    verdict = NOT_REPRODUCED if not all(core.values()) else REPRODUCED if all(rest.values()) else QUALIFIED
    return Judgement(
        verdict,
        f"reproduced if {' and '.join((*core, *rest))}; qualified if only {' and '.join(core)}; else not reproduced",
    )


def record(claims: Iterable[Claim], notebook: str, folder: str | Path) -> None:
    """Write the claims of one notebook to folder/{NN}_claims.json, NN the notebook's number.

    Raises ValueError for no claims, for a repeated id and for a claim of another notebook.
    """
    claims = list(claims)
    ids = [row.id for row in claims]
    if not claims or len(set(ids)) < len(ids):
        raise ValueError(f"claims must be distinct and at least one, got ids {ids}")
    strangers = [row.id for row in claims if row.notebook != notebook]
    if strangers:
        raise ValueError(f"claims must be of notebook {notebook}, got others: {strangers}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{notebook.split('_')[0]}_claims.json", dump([asdict(row) for row in claims]))


def write_ledger(claims: list[Claim], folder: str | Path) -> None:
    """Write all claims to folder/claims.json and, as a table, to folder/claims.md."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "claims.json", dump([asdict(row) for row in claims]))
    write_whole(folder / "claims.md", markdown(claims).encode())


def dump(rows: list[dict]) -> bytes:
    """Claims as JSON; numbers keep ten digits, more than any tolerance looks at."""
    rounded = json.loads(json.dumps(rows), parse_float=lambda text: float(f"{float(text):.10g}"))
    return (json.dumps(rounded, indent=1, ensure_ascii=False) + "\n").encode()


def read(folder: str | Path) -> list[Claim]:
    """All claims recorded in `folder`, by notebook. Raises FileNotFoundError if there are none, ValueError for a
    record that is not one or an id that two notebooks use."""
    files = sorted(Path(folder).glob("[0-9][0-9]_claims.json"))
    if not files:
        raise FileNotFoundError(f"no NN_claims.json in {folder}: run the notebooks that come before")
    claims = [row for file in files for row in read_file(file)]
    ids = [row.id for row in claims]
    repeated = sorted({id for id in ids if ids.count(id) > 1})
    if repeated:
        raise ValueError(f"claims must have one record each, got several of {repeated}")
    return claims


def read_file(file: Path) -> list[Claim]:
    """The claims of one notebook's record. Raises ValueError naming the file if it is not a record."""
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        claims = [Claim(**{**row, "interval": row["interval"] and Interval(**row["interval"])}) for row in rows]
    except (UnicodeDecodeError, json.JSONDecodeError, TypeError, KeyError) as error:
        raise ValueError(f"{file} must hold claim records: {error}") from None
    for row in claims:
        if row.verdict not in VERDICTS:
            raise ValueError(f"{file} must have a verdict of {VERDICTS} for {row.id}, got {row.verdict!r}")
    return claims


def deviations(committed: list[Claim], regenerated: list[Claim]) -> list[str]:
    """One line for each claim that came, went, changed its verdict, or left its committed value by more than its
    committed tolerance."""
    old, new = ({row.id: row for row in claims} for claims in (committed, regenerated))
    lines = [f"{id}: recorded before, not now" for id in old if id not in new]
    lines += [f"{id}: not recorded before" for id in new if id not in old]
    for id in old:
        if id not in new:
            continue
        before, after = old[id], new[id]
        if not abs(after.ours - before.ours) <= before.tolerance:
            lines.append(
                f"{id}: {after.ours:.6g} is not within {before.tolerance:g} of the committed {before.ours:.6g} {before.unit}"
            )
        if after.verdict != before.verdict:
            lines.append(f"{id}: verdict is '{after.verdict}', committed is '{before.verdict}'")
    return lines


def summary(claims: list[Claim]) -> str:
    """The ledger in short, as an aligned Markdown table that also reads well in a terminal."""
    header = ("claim", "statement", "paper", "ours", "95 % interval", "unit", "verdict")
    rows = [
        (row.id, row.statement, _number(row.paper), _number(row.ours), _ends(row), row.unit, row.verdict)
        for row in claims
    ]
    widths = [max(len(cells[column]) for cells in (header, *rows)) for column in range(len(header))]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return "".join(
        "| "
        + " | ".join(cell.replace("|", "/").ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |\n"
        for line in lines
    )


def markdown(claims: list[Claim]) -> str:
    """The ledger as a Markdown table, one row a claim, without the columns in which every row is empty or, for the
    notebook, the same."""
    columns = {
        "claim": [row.id for row in claims],
        "statement": [row.statement for row in claims],
        "paper": [_number(row.paper) for row in claims],
        "ours": [_number(row.ours) for row in claims],
        "95 % interval": [_ends(row) for row in claims],
        "unit": [row.unit for row in claims],
        "verdict": [f"**{row.verdict}**" for row in claims],
        "reason": [row.reason for row in claims],
        "notebook": [row.notebook.split("_")[0] for row in claims] if len({row.notebook for row in claims}) > 1 else [],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    lines = [tuple(columns), tuple("---" for _ in columns), *zip(*columns.values(), strict=True)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _ends(row: Claim) -> str:
    return "" if row.interval is None else f"{row.interval.low:.4g} to {row.interval.high:.4g}"


def _samples(samples: Sequence[float]) -> np.ndarray:
    array = np.asarray(samples, dtype=float)
    if array.ndim != 1 or len(array) < 2 or not np.isfinite(array).all():
        raise ValueError(f"samples must be at least two finite numbers, got {str(samples).splitlines()[0]}")
    return array
