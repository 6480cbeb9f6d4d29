"""Refusals of bad input: each names the argument, what it got and what would be right."""

import math
from collections.abc import Collection, Iterable

import pandas as pd
import torch
from torch import Tensor


def require_floating(name: str, tensor: Tensor, min_dims: int = 2) -> None:
    """Raise ValueError unless `tensor` is a finite floating tensor with at least `min_dims` dimensions."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor, got {described(tensor)}")
    if tensor.dim() < min_dims:
        raise ValueError(f"{name} must have at least {min_dims} dimensions, got shape {tuple(tensor.shape)}")
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def described(value: object) -> str:
    """What a refusal says of a value that should have been a tensor of a certain kind, in one line."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def require_size(name: str, tensor: Tensor, dim: int, size: int, why: str) -> None:
    """Raise ValueError unless `tensor.shape[dim] == size`; `why` says where the size comes from."""
    if tensor.shape[dim] != size:
        raise ValueError(f"{name} must have size {size} in dimension {dim} ({why}), got shape {tuple(tensor.shape)}")


def require_labels(name: str, labels: Tensor, n_classes: int) -> None:
    """Raise ValueError unless `labels` holds int64 integers, PyTorch's type of indices, in 0..n_classes-1."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        raise ValueError(f"{name} must be a tensor of integers, torch.int64, got {described(labels)}")
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
    if not isinstance(seeds, Iterable):
        raise ValueError(f"seeds must be a list of integers, got {seeds!r}")
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


def require_shapes(**tensors: tuple[Tensor, str]) -> None:
    """Raise ValueError unless each tensor is finite, floating, and of its shape, written as "S values 2".

    A word is any size of at least 1, the same wherever it stands; a number is itself.
    """
    sizes: dict[str, int] = {}
    for name, (tensor, shape) in tensors.items():
        words = shape.split()
        require_floating(name, tensor, 0)
        fits = tensor.dim() == len(words) and all(
            size >= 1 and size == (int(word) if word.isdigit() else sizes.setdefault(word, size))
            for word, size in zip(words, tensor.shape, strict=True)
        )
        if not fits:
            known = ", ".join(f"{word} = {sizes[word]}" for word in words if word in sizes)
            raise ValueError(
                f"{name} must have shape ({', '.join(words)}){known and f' with {known}'}, got {tuple(tensor.shape)}"
            )


def require_names(name: str, given: Collection[str], known: Collection[str]) -> None:
    """Raise ValueError unless `given` holds at least one name and none but `known` ones."""
    if not given or not set(given) <= set(known):
        raise ValueError(f"{name} must be named among {', '.join(known)}, got {', '.join(map(str, given)) or 'none'}")


def require_steps(steps: Collection[int], count: int) -> None:
    """Raise ValueError unless `steps` are `count` increasing integers of at least 0."""
    steps = list(steps)
    if len(steps) != count or any(a >= b for a, b in zip(steps, steps[1:], strict=False)) or min(steps, default=0) < 0:
        raise ValueError(f"steps must be {count} increasing integers of at least 0, got {steps}")


def require_table(name: str, table: pd.DataFrame, columns: Collection[str] = ()) -> None:
    """Raise ValueError unless `table` is a data frame with at least one row and these columns."""
    if not isinstance(table, pd.DataFrame) or table.empty:
        raise ValueError(f"{name} must be a pandas data frame with at least one row, got {type(table).__name__}")
    if not set(columns) <= set(table.columns):
        raise ValueError(f"{name} must have the columns {', '.join(columns)}, got {', '.join(map(str, table.columns))}")
