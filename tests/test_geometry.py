"""The summaries against numpy and scipy, their invariances and their edges."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from attention_dynamics.geometry import (
    attention_entropy,
    participation_ratio,
    path_length,
    principal_components,
    straightness,
)

SIZES = st.integers(2, 8)
NAN = math.nan


def points(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(SIZES, SIZES, st.integers(0, 2**32))
def test_attention_entropy_is_scipys(n, d, seed):
    weights = torch.softmax(3 * points(n, d, seed), -1)
    assert np.allclose(attention_entropy(weights), stats.entropy(weights.numpy(), axis=-1), rtol=0, atol=1e-12)


def test_attention_entropy_at_its_ends():
    assert attention_entropy(torch.eye(3)).tolist() == [0, 0, 0]
    assert torch.allclose(attention_entropy(torch.full((1, 5), 0.2)), torch.tensor(math.log(5)))


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(4, 9), st.integers(2, 6), st.integers(0, 2**32))
def test_principal_components_are_numpys_eigenvectors(n, d, seed):
    cloud = points(n, d, seed)
    coordinates, explained = principal_components(cloud)
    values = np.linalg.eigvalsh(np.cov(cloud.numpy().T))[::-1]
    assert np.allclose(explained, values[:2] / values.sum(), rtol=0, atol=1e-10)
    assert np.allclose(coordinates.var(0, correction=1), values[:2], rtol=0, atol=1e-10)
    again, _ = principal_components(cloud.reshape(1, n, d) + 3.0)
    assert again.shape == (1, n, 2) and torch.allclose(again[0], coordinates, atol=1e-9), "a shift changes nothing"


@settings(deadline=None, derandomize=True, max_examples=25)
@given(SIZES, st.integers(2, 5), st.integers(0, 2**32))
def test_length_and_straightness(n, d, seed):
    path = points(n, d, seed)
    steps = [math.dist(a, b) for a, b in zip(path.tolist(), path.tolist()[1:])]
    assert abs(float(path_length(path)) - sum(steps)) < 1e-12
    assert abs(float(straightness(path)) - math.dist(path[0], path[-1]) / sum(steps)) < 1e-12
    rotation = torch.linalg.qr(points(d, d, seed + 1)).Q
    assert torch.allclose(path_length(path @ rotation), path_length(path), atol=1e-10)
    assert torch.allclose(straightness(5 * path @ rotation), straightness(path), atol=1e-10)


def test_a_line_is_straight_and_a_loop_is_not():
    line = torch.linspace(0, 1, 7, dtype=torch.float64)[:, None] * torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert abs(float(path_length(line)) - 5) < 1e-12 and abs(float(straightness(line)) - 1) < 1e-12
    loop = torch.cat([line, line.flip(0)])
    assert float(straightness(loop)) == 0
    assert torch.isnan(straightness(torch.ones(3, 2)))
    assert path_length(torch.stack([line, 2 * line], 1)).shape == (2,)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(4, 9), st.integers(2, 6), st.integers(0, 2**32))
def test_participation_ratio_is_that_of_the_covariance(n, d, seed):
    cloud = points(n, d, seed)
    values = np.linalg.eigvalsh(np.cov(cloud.numpy().T))
    ratio = float(participation_ratio(cloud))
    assert abs(ratio - values.sum() ** 2 / (values**2).sum()) < 1e-9
    assert 1 - 1e-9 <= ratio <= min(n - 1, d) + 1e-9


def test_participation_ratio_counts_dimensions():
    corners = torch.cat([torch.eye(3), -torch.eye(3)])
    assert abs(float(participation_ratio(corners)) - 3) < 1e-5
    assert abs(float(participation_ratio(corners[:, :1])) - 1) < 1e-5
    for scale in (1e-30, 1e30):
        assert abs(float(participation_ratio(scale * corners)) - 3) < 1e-5, "no square over- or underflows"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_entropy(torch.ones(2, 3)), "weights must have rows that sum to 1"),
        (lambda: attention_entropy(torch.ones(3) / 3), "weights must have at least 2 dimensions"),
        (lambda: path_length(torch.ones(1, 2)), "path must hold at least 2 points, got 1"),
        (lambda: straightness(torch.ones(3, 2) * NAN), "path must be finite"),
        (lambda: principal_components(torch.ones(3, 2), 3), "n_components must be at most 2"),
        (lambda: principal_components(torch.ones(3, 2), 0), "n_components must be an integer of at least 1"),
        (lambda: principal_components(torch.ones(3, 2).long()), "points must be a floating-point tensor"),
        (lambda: principal_components(torch.ones(3, 2)), "points must differ from each other"),
        (lambda: participation_ratio(torch.ones(3, 2) * NAN), "points must be finite"),
        (lambda: participation_ratio(torch.ones(3, 2)), "points must differ from each other"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
