"""Figures of the toy simulation: who attends where, where values go, and the loop between the two."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from attention_dynamics.checks import require_labels, require_names, require_shapes, require_size, require_steps
from attention_dynamics.figures import BAND, COLOURS, SEQUENTIAL, mean_band
from attention_dynamics.geometry import principal_components

LABELS = {
    "free": "both free",
    "frozen_routing": "routing frozen",
    "frozen_values": "values frozen",
    "one_class": "no competition: one class",
}
COLOUR_OF = {
    "free": "sgd",
    "frozen_routing": "frozen_routing",
    "frozen_values": "frozen_values",
    "one_class": "control",
}
STYLES = {"free": "-", "frozen_routing": "--", "frozen_values": "-.", "one_class": ":"}
CLASS_MARKS = "os^D"
CLASS_COLOURS = ("sgd", "em_like", "control", "frozen_routing")


def heatmaps(weights: dict[str, Tensor], steps: list[int], targets: Tensor) -> tuple[Figure, pd.DataFrame]:
    """Attention of one seed, (S, Tq, Tk) for each arm, at S steps. Memory positions are ordered by the class that
    uses them most at the end of the first arm, and in the same order everywhere; lines part the classes of queries.

    targets (Tq,), labels. Raises ValueError for an unknown arm, shapes or steps that do not match, NaN or bad labels.
    """
    require_names("weights", weights, LABELS)
    require_shapes(**{f"weights[{name!r}]": (path, "S Tq Tk") for name, path in weights.items()})
    count, queries, _ = next(iter(weights.values())).shape
    require_steps(steps, count)
    require_labels("targets", targets, queries)
    require_size("targets", targets, 0, queries, "one class for each query")
    if (targets.diff() < 0).any():
        raise ValueError("targets must be sorted, so that the queries of a class stand together")
    classes = targets.numpy()
    first = next(iter(weights.values()))[-1].numpy()
    use = np.stack([first[classes == c].mean(0) for c in np.unique(classes)])
    order = np.lexsort((-use.max(0), use.argmax(0)))
    figure, panels = plt.subplots(
        len(weights),
        len(steps),
        figsize=(8.6, 2.6 * len(weights)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="compressed",
    )
    rows = []
    for line, (name, path) in zip(panels, weights.items(), strict=True):
        for axes, step, matrix in zip(line, steps, path.numpy(), strict=True):
            image = axes.imshow(matrix[:, order], cmap=SEQUENTIAL, vmin=0, vmax=1, aspect="auto")
            axes.grid(False)
            for edge in np.flatnonzero(np.diff(classes)):
                axes.axhline(edge + 0.5, color="white", linewidth=0.8)
            axes.set_title(f"{LABELS[name]}, step {step}")
            rows += [
                {"arm": name, "step": step, "query": i, "memory": int(j), "weight": matrix[i, j]}
                for i in range(len(matrix))
                for j in order
            ]
        middles = [float(np.flatnonzero(classes == c).mean()) for c in np.unique(classes)]
        line[0].set_yticks(middles, [f"class {c}" for c in np.unique(classes)])
        line[0].set_ylabel("query")
    for axes in panels[-1]:
        axes.set(xlabel="memory position", xticks=[])
    figure.colorbar(image, ax=panels, label=r"attention weight $\alpha_{ij}$", shrink=0.6)
    return figure, pd.DataFrame(rows)


def value_paths(paths: dict[str, Tensor], users: dict[str, Tensor], steps: list[int]) -> tuple[Figure, pd.DataFrame]:
    """Values of one seed, (S, Tk, d_v) for each arm, on the principal components of all of them.

    users: for each arm the class that attends most to each position at the end (Tk,), of four.
    Raises ValueError for an unknown arm, shapes or steps that do not match, NaN or bad classes.
    """
    names = list(paths)
    require_names("paths", names, LABELS)
    require_shapes(**{f"paths[{name!r}]": (path, "S Tk d_v") for name, path in paths.items()})
    count, positions, _ = paths[names[0]].shape
    require_steps(steps, count)
    if set(users) != set(names):
        raise ValueError(f"users must hold the arms {', '.join(names)}, got {', '.join(map(str, users)) or 'none'}")
    for name in names:
        require_labels(f"users[{name!r}]", users[name], len(CLASS_MARKS))
        require_size(f"users[{name!r}]", users[name], 0, positions, "one class for each position")
    coordinates, explained = principal_components(torch.stack([paths[name] for name in names]))
    coordinates = coordinates.numpy()
    figure, (panels,) = plt.subplots(
        1, len(names), figsize=(8.6, 4.2), sharex=True, sharey=True, squeeze=False, layout="compressed"
    )
    rows = []
    for axes, name, path in zip(panels, names, coordinates, strict=True):
        for j in range(path.shape[1]):
            c = int(users[name][j])
            colour = COLOURS[CLASS_COLOURS[c]]
            axes.plot(*path[:, j].T, color=colour, linewidth=1.2)
            axes.plot(*path[0, j], "o", mfc="white", color=colour, ms=4)
            axes.plot(*path[-1, j], CLASS_MARKS[c], color=colour, ms=6)
            rows += [
                {"arm": name, "position": j, "main_user": c, "step": step, "pc1": x, "pc2": y}
                for step, (x, y) in zip(steps, path[:, j], strict=True)
            ]
        axes.set(title=LABELS[name], xlabel=f"PC 1 ({explained[0]:.0%} of variance)")
    panels[0].set_ylabel(f"PC 2 ({explained[1]:.0%} of variance)")
    handles = [
        plt.Line2D([], [], marker=mark, color=COLOURS[colour])
        for mark, colour in zip(CLASS_MARKS, CLASS_COLOURS, strict=True)
    ]
    labels = [f"end, used most by class {c}" for c in range(len(handles))]
    handles.append(plt.Line2D([], [], marker="o", mfc="white", color=COLOURS["neutral"], linestyle="none"))
    figure.legend(handles, [*labels, "start"], loc="outside upper center", ncols=5)
    return figure, pd.DataFrame(rows)


def loop(
    curves: dict[str, dict[str, Tensor]], steps: list[int], highest: dict[str, float]
) -> tuple[Figure, pd.DataFrame]:
    """Measures over steps, mean and band over seeds: curves[measure][arm] is (S, R) at S steps.

    highest: the largest value that a measure can take, drawn as a line.
    Raises ValueError for no measure, an unknown arm, shapes that do not match the steps, or NaN.
    """
    if not curves:
        raise ValueError("curves must hold at least one measure, got none")
    for measure, arms in curves.items():
        require_names(f"curves[{measure!r}]", arms, LABELS)
        require_shapes(**{f"curves[{measure!r}][{name!r}]": (samples, "S R") for name, samples in arms.items()})
        require_steps(steps, len(next(iter(arms.values()))))
    figure, (panels,) = plt.subplots(1, len(curves), figsize=(8.6, 3.5), squeeze=False)
    tables = []
    for axes, (measure, arms) in zip(panels, curves.items(), strict=True):
        for name, samples in arms.items():
            band = mean_band(samples.numpy())
            colour = COLOURS[COLOUR_OF[name]]
            axes.plot(steps, band["mean"], STYLES[name], color=colour, label=LABELS[name])
            axes.fill_between(steps, band["low"], band["high"], color=colour, alpha=0.2, linewidth=0)
            tables.append(band.assign(measure=measure, arm=name, step=steps))
        if measure in highest:
            axes.axhline(highest[measure], color=COLOURS["neutral"], linewidth=0.8, linestyle=(0, (1, 3)))
        _step_axis(axes, steps)
        axes.set_ylabel(measure)
    shown = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    shown[BAND] = plt.matplotlib.patches.Patch(color=COLOURS["neutral"], alpha=0.25)
    shown["largest possible"] = plt.Line2D([], [], color=COLOURS["neutral"], linewidth=0.8, linestyle=(0, (1, 3)))
    figure.legend(shown.values(), shown.keys(), loc="outside upper center", ncols=3)
    return figure, pd.concat(tables)[["measure", "arm", "step", "mean", "low", "high"]]


def coupling(relative: Tensor, specialisation: Tensor, steps: list[int]) -> tuple[Figure, pd.DataFrame]:
    """Relative coupling of routing and content (S, R) over steps, and the share of seeds in which it is positive.

    Raises ValueError for shapes that do not match, NaN, or fewer than two seeds.
    """
    require_shapes(relative=(relative, "S R"), specialisation=(specialisation, "S R"))
    require_steps(steps, len(relative))
    if not specialisation.mean(-1)[-1] > 0:
        raise ValueError("specialisation must end above zero, since its course is drawn as a part of that")
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.2))
    colour = COLOURS["sgd"]
    band = mean_band(relative.numpy())
    left.plot(steps, band["mean"], color=colour, label="mean over seeds")
    left.fill_between(steps, band["low"], band["high"], color=colour, alpha=0.2, linewidth=0, label=BAND)
    left.axhline(0, color=COLOURS["neutral"], linewidth=0.8)
    left.set(ylabel="relative coupling\n(per unit of training time)")
    left.legend(loc="lower left")
    share = (relative > 0).double().mean(-1).numpy()
    grown = specialisation.mean(-1).numpy() / specialisation.mean(-1)[-1].item()
    right.plot(steps, share, color=colour, label="share of seeds with positive coupling")
    right.plot(steps, grown, "--", color=COLOURS["em_like"], label="specialisation, of its final mean")
    right.set(ylabel="fraction", ylim=(-0.03, 1.35), yticks=[0, 0.25, 0.5, 0.75, 1])
    right.legend(loc="upper left")
    for axes in (left, right):
        _step_axis(axes, steps)
    return figure, band.assign(step=steps, share_positive=share, specialisation=grown)


def _step_axis(axes: Axes, steps: list[int]) -> None:
    """Linear to step 10, logarithmic beyond, so that step 0 has a place."""
    axes.set_xscale("symlog", linthresh=10)
    axes.set(xlabel="gradient step", xlim=(0, steps[-1]))
    axes.set_xticks([0, *(tick for tick in (10, 100, 1000, 10_000) if tick <= steps[-1])])
    axes.get_xaxis().set_major_formatter(plt.ScalarFormatter())
