"""Figures of the value gradient: first-order predictions, and values moving under the queries that use them."""

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from attention_dynamics.checks import require_shapes, require_table
from attention_dynamics.figures import COLOURS

LABELLED = 0.15  # smallest weight whose arrow is labelled
QUERIES = ("sgd", "em_like", "control")  # colour of each of three queries
LINES = {
    "loss": ("loss", "o-", "sgd"),
    "b, both terms": ("compatibility, both terms", "s--", "em_like"),
    "b, value term alone": ("compatibility, value term alone", "^:", "control"),
}


def first_order(table: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Error of each prediction (columns named in LINES) against the step size (column eta), both logarithmic.

    Raises ValueError for a table without these columns.
    """
    require_table("table", table, ("eta", *LINES))
    if not (table[["eta", *LINES]] > 0).all().all():
        raise ValueError("table must hold positive numbers, since both axes are logarithmic")
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for name, (label, style, colour) in LINES.items():
        axes.plot(table["eta"], table[name], style, color=COLOURS[colour], label=label, markersize=4)
    start = table.iloc[-1]
    for slope, name in ((1, "b, value term alone"), (2, "loss")):
        guide = 0.25 * start[name] * (table["eta"] / start["eta"]) ** slope
        axes.plot(table["eta"], guide, color=COLOURS["neutral"], linewidth=0.8, label=None)
        axes.annotate(
            f"slope {slope}", (table["eta"].iloc[0], guide.iloc[0]), (4, -3), textcoords="offset points", fontsize=7.5
        )
    axes.set(xscale="log", yscale="log", xlabel=r"step size $\eta$", ylabel="error of the prediction (nats)")
    axes.margins(x=0.12)
    axes.legend()
    return figure, table


def value_step(path: Tensor, pulls: Tensor, classes: Tensor, weights: Tensor) -> tuple[Figure, pd.DataFrame]:
    """Left: the pull of each query on each value and their sum; right: where the values go.

    path (S, values, 2); pulls (queries, values, 2) at the first point of the path; classes (C, 2), the direction of each
    class in value space, query c wanting class c, and three queries; weights (queries, values).
    Raises ValueError for other shapes or NaN.
    """
    require_shapes(
        path=(path, "S values 2"), pulls=(pulls, "3 values 2"), classes=(classes, "3 2"), weights=(weights, "3 values")
    )
    path, pulls, classes, weights = (tensor.numpy() for tensor in (path, pulls, classes, weights))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 4.4), layout="compressed")
    reach = 1.12 * abs(path).max()
    magnify = 5.0
    arrows = {"angles": "xy", "scale_units": "xy", "scale": 1 / magnify}
    for c, direction in enumerate(classes):
        for axes in (left, right):
            axes.plot(
                *zip((0, 0), 2 * reach * direction, strict=True),
                color=COLOURS[QUERIES[c]],
                linewidth=0.8,
                linestyle=(0, (1, 3)),
            )
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        right.text(*0.85 * reach * direction, f"class {c}", ha="center", va="center", fontsize=7.5, bbox=box)
    for j, start in enumerate(path[0]):
        left.quiver(*start, *pulls[:, j].sum(0), color="0.75", width=0.02, **arrows)
        for i, pull in enumerate(pulls[:, j]):
            left.quiver(*start, *pull, color=COLOURS[QUERIES[i]], width=0.006, **arrows)
            if weights[i, j] >= LABELLED and pull.any():
                tip = start + magnify * pull
                shift = (7 if abs(pull[1]) > abs(pull[0]) else 3) * pull / (pull @ pull) ** 0.5
                left.annotate(
                    f"{i}: {weights[i, j]:.2f}",
                    tip,
                    shift,
                    textcoords="offset points",
                    ha="right" if pull[0] < -abs(pull[1]) else "left" if pull[0] > abs(pull[1]) else "center",
                    va="center",
                    fontsize=7,
                    color=COLOURS[QUERIES[i]],
                )
        main = int(weights[:, j].argmax()) if weights[:, j].max() > 0.5 else None
        right.plot(*path[:, j].T, color=COLOURS["neutral"], linewidth=1.2)
        right.plot(*path[-1, j], "o", color="black" if main is None else COLOURS[QUERIES[main]], ms=6)
        for axes in (left, right):
            axes.plot(*start, "o", mfc="white", color="black", ms=4)
            axes.annotate(f"$v_{j}$", start, (-6, 7), textcoords="offset points", ha="right")
    for axes, limit in ((left, 1.6), (right, reach)):
        axes.set(
            aspect="equal",
            xlabel="first value component",
            ylabel="second value component",
            xlim=(-limit, limit),
            ylim=(-limit, limit),
        )
    left.set_title(rf"one step, $\eta$ = {magnify:.0f}, and the pulls it sums")
    right.set_title(f"{len(path) - 1} steps; filled: the end, in the colour of the main user")
    handles = [plt.Line2D([], [], color=COLOURS[colour]) for colour in QUERIES]
    labels = [f"query {i}, wants class {i}" for i in range(3)]
    handles += [
        plt.Line2D([], [], color="0.75", linewidth=4),
        plt.Line2D([], [], color=COLOURS["neutral"], linestyle=(0, (1, 3))),
    ]
    handles.append(plt.Line2D([], [], marker="o", color="black", linestyle="none"))
    labels += ["sum of the pulls", "direction of a class", "no main user"]
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    rows = [
        {"kind": "pull", "value": j, "query": i, "weight": weights[i, j], "x": x, "y": y}
        for j in range(pulls.shape[1])
        for i, (x, y) in enumerate(pulls[:, j])
    ]
    rows += [
        {"kind": "path", "value": j, "step": step, "x": x, "y": y}
        for j in range(path.shape[1])
        for step, (x, y) in enumerate(path[:, j])
    ]
    return figure, pd.DataFrame(rows)
