"""Figures of the controls: many seeds, fresh data, whose step it is, the speed-up as a curve, and what memory is worth."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from attention_dynamics.checks import require_names, require_table
from attention_dynamics.figures import BAND, COLOURS, SEQUENTIAL, mean_band, write_cell

LABELS = {"sgd": "SGD", "em_like": "EM-like", "control": "large step for all"}
DATA = {"train": ("-", "training sequence"), "fresh": ("--", "fresh sequence")}
FLOORS = {
    "uniform": ("uniform guess", (0, (1, 3))),
    "linear": ("linear softmax of $x_t$", (0, (5, 2, 1, 2))),
    "filter": ("exact filter", "-"),
}


def means_of_five(draws: pd.DataFrame, paper: dict[str, float]) -> tuple[Figure, pd.DataFrame]:
    """Histograms of means of five seeds drawn from all of ours (columns by schedule), with the paper's numbers."""
    require_table("draws", draws, ("sgd", "em_like"))
    figure, axes = plt.subplots(figsize=(6.4, 3.2))
    bins = np.linspace(draws.min().min(), draws.max().max(), 60)
    for name, samples in draws.items():
        axes.hist(samples, bins, density=True, alpha=0.45, color=COLOURS[name], label=f"{LABELS[name]}, here")
        if name in paper:
            axes.axvline(paper[name], color=COLOURS[name], linestyle="--", label=f"{LABELS[name]}, the paper's number")
    axes.set(xlabel="final cross-entropy, mean of five seeds (nats)", ylabel="density (1/nats)")
    figure.legend(loc="outside upper center", ncols=2)
    return figure, draws.describe(percentiles=[0.025, 0.5, 0.975]).rename_axis("statistic").reset_index()


def differences(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """One dot a seed: SGD's final loss less EM-like's, for each variant and sequence (columns variant, sequence, seed,
    difference), with the mean and its interval (columns mean, low, high)."""
    require_table("table", table, ("variant", "sequence", "seed", "difference", "mean", "low", "high"))
    figure, axes = plt.subplots(figsize=(6.4, 2.8))
    groups = list(table.groupby(["variant", "sequence"], sort=False))
    for line, ((_, sequence), rows) in enumerate(groups):
        colour = COLOURS["sgd" if sequence == "train" else "em_like"]
        offset = np.linspace(-0.18, 0.18, len(rows))
        axes.plot(rows["difference"], line + offset, "o", color=colour, ms=3, alpha=0.6)
        first = rows.iloc[0]
        axes.plot([first["low"], first["high"]], [line, line], color="black", linewidth=2)
        axes.plot(first["mean"], line, "|", color="black", ms=14)
    axes.set_yticks(range(len(groups)), [f"{variant},\n{DATA[sequence][1]}" for (variant, sequence), _ in groups])
    axes.invert_yaxis()
    axes.axvline(0, color=COLOURS["neutral"], linewidth=0.8)
    axes.set_xlabel("SGD's final cross-entropy less EM-like's, same seed (nats)")
    handles = [
        plt.Line2D([], [], marker="o", linestyle="none", color=COLOURS["neutral"], ms=3),
        plt.Line2D([], [], color="black", linewidth=2),
    ]
    figure.legend(handles, ["one seed", "mean and 95 % bootstrap interval"], loc="outside upper center", ncols=2)
    return figure, table


def held_out(curves: pd.DataFrame, floors: dict[str, float]) -> tuple[Figure, pd.DataFrame]:
    """Loss (left) and divergence from the filter (right) over steps on both sequences, mean and band over seeds.

    curves: rows of `controls.trained` with a column schedule; floors: mean fresh loss of each predictor in FLOORS.
    """
    columns = [f"{sequence}_{score}" for sequence in DATA for score in ("loss", "divergence")]
    require_table("curves", curves, ("schedule", "seed", "step", *columns))
    require_names("schedules", set(curves["schedule"]), LABELS)
    require_names("floors", floors, FLOORS)
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.8))
    tables = []
    for axes, score, label in zip(
        panels, ("loss", "divergence"), ("cross-entropy (nats)", "KL(filter || model) (nats)"), strict=True
    ):
        for (schedule, rows), (sequence, (style, _)) in (
            (group, pair) for group in curves.groupby("schedule", sort=False) for pair in DATA.items()
        ):
            wide = rows.pivot(index="step", columns="seed", values=f"{sequence}_{score}")
            band = mean_band(wide.to_numpy())
            axes.plot(wide.index, band["mean"], style, color=COLOURS[schedule])
            axes.fill_between(wide.index, band["low"], band["high"], color=COLOURS[schedule], alpha=0.18, linewidth=0)
            tables.append(band.assign(step=wide.index, schedule=schedule, sequence=sequence, score=score))
        axes.set(xlabel="gradient step", ylabel=label)
    for name, level in floors.items():
        panels[0].axhline(level, color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS[name][1])
    panels[1].set_ylim(bottom=0)
    schedules = list(dict.fromkeys(curves["schedule"]))
    handles = [plt.Line2D([], [], color=COLOURS[name]) for name in schedules]
    handles += [plt.Line2D([], [], color="black", linestyle=style) for style, _ in DATA.values()]
    handles += [plt.matplotlib.patches.Patch(color=COLOURS["neutral"], alpha=0.25)]
    handles += [plt.Line2D([], [], color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS[n][1]) for n in floors]
    labels = [LABELS[name] for name in schedules] + [label for _, label in DATA.values()]
    labels += [BAND, *(f"{FLOORS[name][0]}, fresh" for name in floors)]
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    return figure, pd.concat(tables)[["score", "schedule", "sequence", "step", "mean", "low", "high"]]


def allocations(table: pd.DataFrame, linear: float) -> tuple[Figure, pd.DataFrame]:
    """For each allocation of the large step (columns allocation, final, best: with _low and _high): fresh loss at the end
    of the budget and at its lowest; beside it the steps to the level (column reached and its ends)."""
    measures = ("final", "best", "reached")
    require_table("table", table, ("allocation", *(f"{m}{end}" for m in measures for end in ("", "_low", "_high"))))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.9), sharey=True)
    height = np.arange(len(table))
    for axes, name, colour, mark, shift in (
        (left, "final", "sgd", "o", -0.12),
        (left, "best", "em_like", "s", 0.12),
        (right, "reached", "sgd", "o", 0),
    ):
        ends = [table[name] - table[f"{name}_low"], table[f"{name}_high"] - table[name]]
        label = {"final": "at the end", "best": "at its lowest", "reached": None}[name]
        axes.errorbar(
            table[name], height + shift, xerr=ends, fmt=mark, color=COLOURS[colour], ms=4.5, linewidth=1.2, label=label
        )
    left.axvline(linear, color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["linear"][1])
    left.plot([], [], color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["linear"][1], label=FLOORS["linear"][0])
    # A schedule that has learned its sequence by heart would press all others together: its mark is at the edge.
    edge = np.log(8) + 0.06
    low = min(table[["final_low", "best_low"]].min().min(), linear) - 0.01
    left.set(xlabel="cross-entropy on the fresh sequence (nats)", xlim=(low, edge))
    for line, value in zip(height, table["final"], strict=True):
        if value > edge:
            left.annotate(f"{value:.2f} →", (edge, line), (-3, 5), textcoords="offset points", ha="right", fontsize=7)
    left.axvline(np.log(8), color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["uniform"][1])
    left.plot(
        [], [], color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["uniform"][1], label=FLOORS["uniform"][0]
    )
    left.set_yticks(height, table["allocation"])
    left.invert_yaxis()
    right.set(xlabel="steps to SGD's mean final training loss", xlim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure, table


def plane(table: pd.DataFrame, marked: dict[str, tuple[float, float]]) -> tuple[Figure, pd.DataFrame]:
    """Heat maps over the step for all but the values (column rest) and for the values (column value): lowest fresh loss
    (column best) and steps to the level (column reached, blank where NaN).

    marked: points (rest, value) by label. The line is the diagonal, one step for all.
    """
    require_table("table", table, ("rest", "value", "best", "reached"))
    points = set(zip(table["rest"], table["value"], strict=True))
    if strangers := [name for name, point in marked.items() if point not in points]:
        raise ValueError(f"marked must hold points of the table, got {', '.join(strangers)}")
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 4.4), layout="compressed", sharey=True)
    for axes, name, label in zip(
        panels, ("best", "reached"), ("lowest fresh cross-entropy (nats)", "steps to the level"), strict=True
    ):
        wide = table.pivot(index="value", columns="rest", values=name)
        image = axes.imshow(
            wide,
            origin="lower",
            cmap=SEQUENTIAL + ("_r" if name == "best" else ""),
            norm=LogNorm() if name == "reached" else None,
        )
        axes.grid(False)
        axes.set_xticks(range(wide.shape[1]), [f"{step:g}" for step in wide.columns])
        axes.set_yticks(range(wide.shape[0]), [f"{step:g}" for step in wide.index])
        axes.plot(
            [-0.5, wide.shape[1] - 0.5], [-0.5, wide.shape[0] - 0.5], color="white", linewidth=0.9, linestyle="--"
        )
        axes.set_xlabel("step for $W_Q, W_K, W_O$")
        for (row, column), number in np.ndenumerate(wide.to_numpy()):
            if np.isfinite(number):
                text = f"{number:.3f}" if name == "best" else f"{number:.0f}"
                write_cell(axes, image, row, column, text, number)
        for rest, value in marked.values():
            at = (wide.columns.get_loc(rest), wide.index.get_loc(value))
            axes.add_patch(plt.Rectangle((at[0] - 0.5, at[1] - 0.5), 1, 1, fill=False, color="red", linewidth=1.8))
        figure.colorbar(image, ax=axes, location="bottom", label=label, aspect=30)
    panels[0].set_ylabel("step for $W_V$")
    handles = [
        plt.Rectangle((0, 0), 1, 1, fill=False, color="red", linewidth=1.8),
        plt.Line2D([], [], color=COLOURS["neutral"], linestyle="--"),
    ]
    figure.legend(
        handles,
        [f"the paper's points: {', '.join(marked)}", "diagonal: one step for all"],
        loc="outside upper center",
        ncols=2,
    )
    return figure, table


def speed(curves: pd.DataFrame, paper: tuple[float, float] | None) -> tuple[Figure, pd.DataFrame]:
    """Speed-up over SGD against the budget: in steps (left) and in length of the path of the weights (right).

    curves: columns measure (steps, moved), schedule, budget, mean, low, high; paper: its budget and speed-up.
    """
    require_table("curves", curves, ("measure", "schedule", "budget", "mean", "low", "high"))
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.4), sharex=True)
    for axes, measure, label in zip(
        panels, ("steps", "moved"), ("budget / steps to SGD's loss", "SGD's path / path to SGD's loss"), strict=True
    ):
        for schedule, rows in curves[curves["measure"] == measure].groupby("schedule", sort=False):
            axes.plot(rows["budget"], rows["mean"], color=COLOURS[schedule], label=LABELS[schedule])
            axes.fill_between(
                rows["budget"], rows["low"], rows["high"], color=COLOURS[schedule], alpha=0.2, linewidth=0
            )
        axes.axhline(1, color=COLOURS["neutral"], linewidth=0.8)
        axes.set(xlabel="budget (gradient steps)", ylabel=label)
        axes.set_ylim(bottom=0)
    handles, labels = panels[0].get_legend_handles_labels()
    if paper:
        panels[0].plot(*paper, "o", mfc="white", color="black", ms=6, clip_on=False)
        handles.append(plt.Line2D([], [], marker="o", mfc="white", color="black", linestyle="none"))
        labels.append("the paper's number")
    handles.append(plt.matplotlib.patches.Patch(color=COLOURS["neutral"], alpha=0.25))
    figure.legend(handles, [*labels, "95 % bootstrap interval"], loc="outside upper center", ncols=4)
    return figure, curves


def alternation(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Loss over rounds or steps of each way to train (columns way, update, train_loss, fresh_loss: means over seeds)."""
    require_table("table", table, ("way", "update", "train_loss", "fresh_loss"))
    figure, panels = plt.subplots(1, 2, figsize=(8.6, 3.4), sharex=True)
    colours = ("sgd", "em_like", "control", "frozen_routing")
    for axes, sequence in zip(panels, DATA, strict=True):
        for colour, (way, rows) in zip(colours, table.groupby("way", sort=False), strict=False):
            axes.plot(rows["update"], rows[f"{sequence}_loss"], color=COLOURS[colour], label=way)
        axes.axhline(np.log(8), color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["uniform"][1])
        axes.set(xscale="log", xlabel="updates of routing", ylabel=f"cross-entropy, {DATA[sequence][1]} (nats)")
        axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    handles, labels = panels[0].get_legend_handles_labels()
    handles.append(plt.Line2D([], [], color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["uniform"][1]))
    figure.legend(handles, [*labels, FLOORS["uniform"][0]], loc="outside upper center", ncols=3)
    return figure, table


def memory(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Against the noise: entropy of the filter's prediction, and each predictor's divergence from it on fresh data.

    table: columns noise, entropy, spread (standard deviation over positions), and mean divergence of memoryless, linear
    and head, each with _low and _high.
    """
    lines = {
        "memoryless": ("exact, from $x_t$ alone", "^:", "control"),
        "linear": (FLOORS["linear"][0], "s--", "sgd"),
        "head": ("attention head, at its lowest", "o-", "em_like"),
    }
    ends = [f"{name}{end}" for name in lines for end in ("", "_low", "_high")]
    require_table("table", table, ("noise", "entropy", "spread", *ends))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.4))
    left.errorbar(
        table["noise"],
        table["entropy"],
        table["spread"],
        fmt="o-",
        color=COLOURS["sgd"],
        ms=4,
        capsize=3,
        linewidth=1.2,
    )
    left.axhline(np.log(8), color=COLOURS["neutral"], linewidth=0.9, linestyle=FLOORS["uniform"][1])
    left.annotate("log 8", (table["noise"].min(), np.log(8)), (0, -10), textcoords="offset points", fontsize=7)
    left.set(
        xlabel="noise (standard deviation)",
        ylabel="entropy of the filter's prediction (nats)\nmean ± s.d. over positions",
    )
    for name, (label, style, colour) in lines.items():
        right.plot(table["noise"], table[name], style, color=COLOURS[colour], ms=4, label=label)
        right.fill_between(
            table["noise"], table[f"{name}_low"], table[f"{name}_high"], color=COLOURS[colour], alpha=0.18, linewidth=0
        )
    right.set(xlabel="noise (standard deviation)", ylabel="KL(filter || predictor), fresh (nats)")
    handles, labels = right.get_legend_handles_labels()
    handles.append(plt.matplotlib.patches.Patch(color=COLOURS["neutral"], alpha=0.25))
    figure.legend(handles, [*labels, BAND], loc="outside upper center", ncols=4)
    return figure, table
