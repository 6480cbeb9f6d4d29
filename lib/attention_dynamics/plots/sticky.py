"""Figures of the sticky Markov experiment."""

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from attention_dynamics.checks import require_count, require_names, require_shapes, require_steps
from attention_dynamics.figures import BAND, COLOURS, mean_band
from attention_dynamics.geometry import principal_components
from attention_dynamics.training import Run

LABELS = {"sgd": "SGD", "em_like": "EM-like", "control": "control: large step for all"}
STYLES = {"sgd": "-", "em_like": "--", "control": ":"}
METRICS = {"loss": "cross-entropy (nats)", "entropy": "predictive entropy (nats)", "accuracy": "accuracy (fraction)"}


def learning_curves(
    runs: dict[str, Run], floor: float, paper: dict[str, dict[str, float]], every: int = 10
) -> tuple[Figure, pd.DataFrame]:
    """Loss, predictive entropy and accuracy of each schedule over steps, with the band over seeds.

    floor: entropy rate of the chain, nats; paper: the final numbers that the paper prints, by metric and schedule.
    Raises ValueError for no schedule or an unknown one, fewer than two seeds, or `every` below 1.
    """
    require_names("runs", runs, LABELS)
    require_count("every", every, 1)
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 3.6))
    tables = []
    for metric, axes in zip(METRICS, panels, strict=True):
        for name, run in runs.items():
            samples = getattr(run, metric).numpy()
            steps = np.unique(np.append(np.arange(0, len(samples), every), len(samples) - 1))
            table = mean_band(samples[steps])
            axes.plot(steps, table["mean"], STYLES[name], color=COLOURS[name], label=LABELS[name])
            axes.fill_between(steps, table["low"], table["high"], color=COLOURS[name], alpha=0.18, linewidth=0)
            if name in paper.get(metric, {}):
                axes.plot(
                    steps[-1], paper[metric][name], "o", mfc="white", color=COLOURS[name], ms=6, clip_on=False, zorder=5
                )
            tables.append(table.assign(metric=metric, schedule=name, step=steps))
        axes.set(xlabel="gradient step", ylabel=METRICS[metric])
        if metric != "accuracy":
            axes.axhline(math.log(8), color=COLOURS["neutral"], linewidth=0.9, linestyle=(0, (1, 3)))
            axes.axhline(floor, color=COLOURS["neutral"], linewidth=0.9)
            low, high = axes.get_ylim()
            axes.set_ylim(min(low, floor - 0.02), high + 0.03)
            axes.annotate(
                "log 8: uniform guess",
                (1, math.log(8)),
                (-2, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                ha="right",
                fontsize=7,
            )
            axes.annotate(
                "entropy rate of the chain",
                (0, floor),
                (3, 3),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=7,
            )
    handles, labels = panels[0].get_legend_handles_labels()
    handles.append(plt.matplotlib.patches.Patch(color=COLOURS["neutral"], alpha=0.25))
    labels.append(BAND)
    if paper:
        handles.append(plt.Line2D([], [], marker="o", mfc="white", color=COLOURS["neutral"], linestyle="none"))
        labels.append("paper's final number")
    figure.legend(handles, labels, loc="outside upper center", ncols=5)
    return figure, pd.concat(tables)[["metric", "schedule", "step", "mean", "low", "high"]]


def speed_curve(runs: dict[str, Run], level: float) -> tuple[Figure, pd.DataFrame]:
    """Each seed's loss under SGD and EM-like, with the level that defines the speed-up and where it is met.

    Raises ValueError unless both runs are there.
    """
    if not {"sgd", "em_like"} <= set(runs):
        raise ValueError(f"runs must hold sgd and em_like, got {', '.join(map(str, runs)) or 'none'}")
    figure, axes = plt.subplots(figsize=(6.2, 3.6))
    tables = []
    for name in ("sgd", "em_like"):
        loss = runs[name].loss.numpy()
        axes.plot(
            loss,
            STYLES[name],
            color=COLOURS[name],
            linewidth=0.9,
            label=[f"{LABELS[name]}, one line a seed"] + [None] * (loss.shape[1] - 1),
        )
        for seed, column in enumerate(loss.T):
            tables.append(
                pd.DataFrame({"schedule": name, "run": seed, "step": range(len(column)), "loss": column})[::10]
            )
            below = np.flatnonzero(column < level)
            if name == "em_like" and len(below):
                axes.plot(
                    below[0],
                    level,
                    "v",
                    color="black",
                    ms=5,
                    zorder=5,
                    label="EM-like meets the level" if seed == 0 else None,
                )
    axes.axhline(level, color=COLOURS["neutral"], linewidth=1, label="level: SGD's mean final loss")
    axes.set(xlabel="gradient step", ylabel="cross-entropy (nats)")
    axes.legend()
    return figure, pd.concat(tables)


def value_trajectories(values: dict[str, Tensor], steps: list[int]) -> tuple[Figure, pd.DataFrame, np.ndarray]:
    """Paths of the symbols' values of one seed, (S, n, d_v) for each schedule, on common principal components.

    The first panel magnifies SGD's paths. Also returns the variance explained by the two components, fitted to
    the points of all schedules at once. Raises ValueError for an unknown schedule, shapes that differ, NaN, or steps
    that do not match.
    """
    names = list(values)
    require_names("values", names, LABELS)
    require_shapes(**{f"values[{name!r}]": (values[name], "S n d_v") for name in names})
    require_steps(steps, len(values[names[0]]))
    stacked = np.stack([values[name].numpy() for name in names])
    coordinates, explained = principal_components(values[names[0]].new_tensor(stacked))
    coordinates = coordinates.numpy()
    figure, panels = plt.subplots(1, len(names) + 1, figsize=(8.6, 3.3))
    tables = []
    shown = [(names[0], f"{LABELS[names[0]]}, magnified"), *((name, LABELS[name]) for name in names)]
    for axes, (name, title) in zip(panels, shown, strict=True):
        paths = coordinates[names.index(name)]
        for symbol in range(paths.shape[1]):
            colour = plt.get_cmap("viridis")(symbol / max(paths.shape[1] - 1, 1) * 0.9)
            axes.plot(*paths[:, symbol].T, color=colour, linewidth=1.3)
            axes.plot(*paths[0, symbol], "o", mfc="white", color=colour, ms=4)
            axes.plot(*paths[-1, symbol], "o", color=colour, ms=4)
            # The number stands ahead of the path, where nothing else is.
            moved = paths[-1, symbol] - paths[0, symbol]
            ahead = moved / (np.linalg.norm(moved) or 1)
            axes.annotate(
                str(symbol),
                paths[-1, symbol],
                8 * ahead,
                textcoords="offset points",
                fontsize=7,
                ha="center",
                va="center",
            )
        axes.set(
            title=title,
            xlabel=f"PC 1 ({explained[0]:.0%} of variance)",
            ylabel=f"PC 2 ({explained[1]:.0%} of variance)",
        )
        axes.margins(0.12)
    limits = [np.array([coordinates[..., axis].min(), coordinates[..., axis].max()]) for axis in (0, 1)]
    for axes in panels[1:]:
        axes.set_xlim(*(limits[0] + np.ptp(limits[0]) * np.array([-0.08, 0.12])))
        axes.set_ylim(*(limits[1] + np.ptp(limits[1]) * np.array([-0.08, 0.12])))
    handles = [
        plt.Line2D([], [], marker="o", color=COLOURS["neutral"], linestyle="none", mfc=fill)
        for fill in ("white", COLOURS["neutral"])
    ]
    figure.legend(
        handles,
        ["value before training", "value after training; the number is the symbol"],
        loc="outside upper center",
        ncols=2,
    )
    for index, name in enumerate(names):
        for symbol in range(coordinates.shape[2]):
            path = coordinates[index, :, symbol]
            tables.append(
                pd.DataFrame({"schedule": name, "symbol": symbol, "step": steps, "pc1": path[:, 0], "pc2": path[:, 1]})
            )
    return figure, pd.concat(tables), explained
