"""Refusals of bad input: each names the argument, what it got and what would be right."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor


def require_floating(name: str, tensor: Tensor, min_dims: int = 2) -> None:
    """Raise ValueError unless `tensor` is a finite floating tensor with at least `min_dims` dimensions."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"{name} must be a floating-point tensor, got {kind}")
    if tensor.dim() < min_dims:
        raise ValueError(f"{name} must have at least {min_dims} dimensions, got shape {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def require_size(name: str, tensor: Tensor, dim: int, size: int, why: str) -> None:
    """Raise ValueError unless `tensor.shape[dim] == size`; `why` says where the size comes from."""
    if tensor.shape[dim] != size:
        raise ValueError(f"{name} must have size {size} in dimension {dim} ({why}), got shape {tuple(tensor.shape)}")


def require_labels(name: str, labels: Tensor, n_classes: int) -> None:
    """Raise ValueError unless `labels` holds integers in 0..n_classes-1."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype in (torch.bool, torch.complex64):
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise ValueError(f"{name} must be a tensor of integers, got {kind}")
    if labels.numel() and not (0 <= int(labels.min()) and int(labels.max()) < n_classes):
        raise ValueError(
            f"{name} must lie in 0..{n_classes - 1}, got values from {int(labels.min())} to {int(labels.max())}"
        )


def require_stochastic(name: str, matrix: Tensor) -> None:
    """Raise ValueError unless every row of `matrix` is a probability vector."""
    require_floating(name, matrix)
    if (matrix < 0).any():
        raise ValueError(f"{name} must have no negative entries, got {float(matrix.min()):.4g}")
    sums = matrix.sum(-1)
    # Rows that were normalised in float32 miss one by a few units in the last place.
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-5, rtol=0):
        worst = float(sums.flatten()[(sums - 1).abs().argmax()])
        raise ValueError(f"{name} must have rows that sum to 1, got a row sum of {worst:.6g}")


def require_count(name: str, value: int, minimum: int) -> None:
    """Raise ValueError unless `value` is an integer of at least `minimum`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValueError(f"{name} must be an integer of at least {minimum}, got {value!r}")


def require_number(name: str, value: float, low: float, high: float) -> None:
    """Raise ValueError unless `value` is a finite number in [low, high]."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not low <= value <= high
        or value in (-math.inf, math.inf)
    ):
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}] and be finite, got {value!r}")


def require_seeds(seeds: Iterable[int]) -> list[int]:
    """The seeds as a list. Raise ValueError unless they are at least one, distinct integers of at least 0."""
    seeds = list(seeds)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must hold at least one seed and none twice, got {seeds}")
    for seed in seeds:
        require_count("seeds", seed, 0)
    return seeds


def require_compatible(**tensors: Tensor) -> None:
    """Raise ValueError unless the tensors have one dtype and leading dimensions (all but the last two) that broadcast."""
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    if len(set(dtypes.values())) > 1:
        raise ValueError(f"{' and '.join(tensors)} must have one dtype, got {', '.join(map(str, dtypes.values()))}")
    shapes = [tuple(tensor.shape[:-2]) for tensor in tensors.values()]
    try:
        torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(f"{' and '.join(tensors)} must have leading dimensions that broadcast, got {shapes}") from None
