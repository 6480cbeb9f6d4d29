"""Figures of advantage-based routing: one score gradient taken apart, and where it vanishes."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import Tensor

from attention_dynamics.checks import described, require_shapes
from attention_dynamics.figures import COLOURS, annotated_heatmap

# Column of the data, title, label of the colour bar. The gradient has the factor 1/T in it, like the compatibility.
PANELS = {
    "weights": (r"weights $\alpha_{ij}$", "probability"),
    "compatibility": (r"compatibility $b_{ij}$", "nats per unit weight"),
    "advantage": (r"advantage $b_{ij} - E_{\alpha_i}[b]$", "nats per unit weight"),
    "score_gradient": (r"score gradient $\partial L / \partial s_{ij}$", "nats per unit score"),
}


def routing(
    weights: Tensor, compatibility: Tensor, advantage: Tensor, score_gradient: Tensor, mask: Tensor
) -> tuple[Figure, pd.DataFrame]:
    """The four (T, T) matrices of law L1, queries down and keys across, blank where `mask` (T, T) is False.

    Compatibility and advantage share one colour scale. The data has one row for each allowed pair.
    Raises ValueError for matrices of several shapes, NaN, or a mask that is not boolean or allows nothing.
    """
    require_shapes(
        weights=(weights, "queries keys"),
        compatibility=(compatibility, "queries keys"),
        advantage=(advantage, "queries keys"),
        score_gradient=(score_gradient, "queries keys"),
    )
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != weights.shape or not mask.any():
        raise ValueError(
            f"mask must be a boolean tensor of shape {tuple(weights.shape)} with a True entry, got {described(mask)}"
        )
    matrices = dict(zip(PANELS, (weights, compatibility, advantage, score_gradient), strict=True))
    query, key = mask.nonzero().numpy().T
    data = pd.DataFrame(
        {"query": query, "key": key, **{name: matrix[mask].numpy() for name, matrix in matrices.items()}}
    )
    shared = float(data[["compatibility", "advantage"]].abs().max().max())
    limits = {"weights": 1.0, "compatibility": shared, "advantage": shared}
    figure, axes = plt.subplots(1, 4, figsize=(8.6, 3.3), sharey=True, layout="compressed")
    for panel, (name, (title, unit)) in zip(axes, PANELS.items(), strict=True):
        shown = np.full(mask.shape, np.nan)
        shown[query, key] = data[name]
        # "z" prints a rounded -0.00 as 0.00.
        image = annotated_heatmap(panel, shown, title, signed=name != "weights", fmt="{:z.2f}", limit=limits.get(name))
        panel.set_xlabel("key $j$")
        figure.colorbar(image, ax=panel, location="bottom", label=unit, aspect=14, ticks=plt.MaxNLocator(4))
    axes[0].set_ylabel("query $i$")
    return figure, data


def saturation(
    gap: Tensor, weight: Tensor, score_gradient: Tensor, value_gradients: Tensor
) -> tuple[Figure, pd.DataFrame]:
    """Sizes of the score gradient and of both value gradients against the score gap of two positions.

    gap, weight, score_gradient (G,); value_gradients (G, 2), norms, the helpful position first.
    Raises ValueError for other shapes or NaN.
    """
    require_shapes(
        gap=(gap, "G"),
        weight=(weight, "G"),
        score_gradient=(score_gradient, "G"),
        value_gradients=(value_gradients, "G 2"),
    )
    if not score_gradient.any():
        raise ValueError("score_gradient must not vanish everywhere, since its size is drawn on a logarithmic axis")
    data = pd.DataFrame(
        {
            "gap": gap.numpy(),
            "weight": weight.numpy(),
            "score_gradient": score_gradient.abs().numpy(),
            "value_gradient_helpful": value_gradients[:, 0].numpy(),
            "value_gradient_other": value_gradients[:, 1].numpy(),
        }
    )
    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    lines = {
        "score_gradient": (r"score, $|\partial L/\partial s_0|$", "-", "sgd"),
        "value_gradient_helpful": (r"value of position 0, $\Vert\partial L/\partial v_0\Vert$", "--", "em_like"),
        "value_gradient_other": (r"value of position 1, $\Vert\partial L/\partial v_1\Vert$", "-.", "control"),
    }
    for name, (label, style, colour) in lines.items():
        axes.plot(data["gap"], data[name], style, color=COLOURS[colour], label=label)
    axes.set(yscale="log", xlabel=r"score gap $s_0 - s_1$", ylabel="size of the gradient (nats per unit)")
    for side, text in (
        (0.01, "all weight on position 1,\nwhich misleads"),
        (0.99, "all weight on position 0,\nwhich helps"),
    ):
        axes.text(
            side,
            0.04,
            text,
            transform=axes.transAxes,
            ha="left" if side < 0.5 else "right",
            fontsize=7.5,
            color=COLOURS["neutral"],
        )
    axes.set_ylim(data["score_gradient"][data["score_gradient"] > 0].min() / 30, 10)
    figure.legend(loc="outside upper center", ncols=3)
    return figure, data
