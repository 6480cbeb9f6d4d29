"""Summaries of attention and of the paths that values take."""

import numpy as np
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from attention_dynamics.checks import require_count, require_floating, require_stochastic


def attention_entropy(weights: Tensor) -> Tensor:
    """(..., Tq) entropy of each row of alpha (..., Tq, Tk), in nats: -sum_j alpha_ij log alpha_ij, 0 for one position
    and log Tk for uniform attention. Raises ValueError for rows that are no probabilities."""
    require_stochastic("weights", weights)
    return torch.special.entr(weights).sum(-1)


def path_length(path: Tensor) -> Tensor:
    """(...) Euclidean length of each path; path (S, ..., d) holds S points along it. Raises ValueError for
    fewer than two points."""
    _require_path(path)
    return path.diff(dim=0).norm(dim=-1).sum(0)


def straightness(path: Tensor) -> Tensor:
    """(...) net displacement over path length, in [0, 1]: 1 for a straight line. NaN for a path that never moves.
    Raises ValueError for fewer than two points."""
    _require_path(path)
    return (path[-1] - path[0]).norm(dim=-1) / path_length(path)


def principal_components(points: Tensor, n_components: int = 2) -> tuple[Tensor, np.ndarray]:
    """Coordinates (..., n_components) of `points` (..., d) on their leading principal components, and the
    fraction of the variance that each explains. Signs are fixed by scikit-learn's convention.

    Raises ValueError for more components than the points allow, or for points that are all the same.
    """
    require_floating("points", points)
    require_count("n_components", n_components, 1)
    rows = points.detach().reshape(-1, points.shape[-1])
    if n_components > min(rows.shape):
        raise ValueError(
            f"n_components must be at most {min(rows.shape)} for {tuple(rows.shape)} points, got {n_components}"
        )
    _require_spread(rows)
    pca = PCA(n_components, svd_solver="full").fit(rows.double().numpy())
    coordinates = torch.from_numpy(pca.transform(rows.double().numpy()))
    return coordinates.reshape(*points.shape[:-1], n_components), pca.explained_variance_ratio_


def participation_ratio(points: Tensor) -> Tensor:
    """(...) (sum l)^2 / sum l^2 of the covariance eigenvalues l of points (..., n, d): the effective number of
    dimensions that the points fill, between 1 and min(n - 1, d). Raises ValueError for points that are all the same."""
    require_floating("points", points)
    _require_spread(points)
    singular = torch.linalg.svdvals(points - points.mean(-2, keepdim=True))
    spectrum = (singular / singular[..., :1]).square()  # of the first, so that no square is too large or too small
    return spectrum.sum(-1).square() / spectrum.square().sum(-1)


def _require_path(path: Tensor) -> None:
    require_floating("path", path)
    if len(path) < 2:
        raise ValueError(f"path must hold at least 2 points, got {len(path)}")


def _require_spread(points: Tensor) -> None:
    if not (points != points[..., :1, :]).flatten(-2).any(-1).all():
        raise ValueError("points must differ from each other, got all the same")
