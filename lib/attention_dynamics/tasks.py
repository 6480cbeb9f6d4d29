"""The tasks: sequences with known statistics."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from attention_dynamics.checks import (
    require_count,
    require_floating,
    require_number,
    require_shapes,
    require_size,
    require_stochastic,
)


class Sequence(NamedTuple):
    """inputs (T, d_x) x_t and targets (T,) y_t, integers."""

    inputs: Tensor
    targets: Tensor


def sticky_transition(n_symbols: int = 8, self_prob: float = 0.3) -> Tensor:
    """(n, n) transition matrix of the sticky chain, rows P(y_t | y_{t-1}).

    Row i weighs j = i by `self_prob` and any other j by 1/d at circular distance d, is normalised, is mixed as
    (1 - self_prob) * row + self_prob * identity, and is normalised again. With the defaults the diagonal
    is 0.3498. Raises ValueError unless n_symbols >= 2 and 0 <= self_prob <= 1.
    """
    require_count("n_symbols", n_symbols, 2)
    require_number("self_prob", self_prob, 0, 1)
    index = torch.arange(n_symbols)
    gap = (index[:, None] - index).abs()
    distance = torch.minimum(gap, n_symbols - gap)
    rows = torch.where(distance == 0, self_prob, 1 / distance.clamp(min=1))
    rows = rows / rows.sum(-1, keepdim=True)
    rows = (1 - self_prob) * rows + self_prob * torch.eye(n_symbols)
    return rows / rows.sum(-1, keepdim=True)


def symbol_embeddings(n_symbols: int = 8, d_x: int = 20, seed: int = 0) -> Tensor:
    """(n, d_x) standard normal embeddings mu, one row for each symbol. Raises ValueError for a size below 1
    (symbols: 2) or a negative seed."""
    require_count("n_symbols", n_symbols, 2)
    require_count("d_x", d_x, 1)
    require_count("seed", seed, 0)
    return torch.randn(n_symbols, d_x, generator=torch.Generator().manual_seed(seed))


def sticky_sequence(
    transition: Tensor, embeddings: Tensor, length: int, generator: torch.Generator, noise: float = 1.0
) -> Sequence:
    """A chain y_0..y_{length-1} and its noisy inputs x_t = mu[y_{t-1}] + noise * N(0, I), targets y_t, t = 1..length-1.

    Draws in the order of the reference protocol, where `noise` is 1: start symbol, symbols one by one, noise.
    Raises ValueError for a matrix that is not stochastic, embeddings that do not match it, length < 2 or negative noise.
    """
    _require_transition(transition)
    require_shapes(embeddings=(embeddings, f"{len(transition)} d_x"))
    require_count("length", length, 2)
    require_number("noise", noise, 0, math.inf)
    symbols = torch.empty(length, dtype=torch.long)
    symbols[0] = torch.randint(len(transition), (1,), generator=generator)
    for t in range(1, length):
        symbols[t] = torch.multinomial(transition[symbols[t - 1]], 1, generator=generator)
    disturbance = torch.randn(length - 1, embeddings.shape[-1], generator=generator)
    return Sequence(embeddings[symbols[:-1]] + noise * disturbance, symbols[1:])


def stationary_distribution(transition: Tensor) -> Tensor:
    """(n,) probability vector pi with pi P = pi; of several, the one of least norm. Raises ValueError for a matrix
    that is not stochastic."""
    _require_transition(transition)
    n = len(transition)
    # The system (P^T - I) pi = 0 with sum(pi) = 1, solved by least squares.
    system = torch.cat(
        [transition.mT.double() - torch.eye(n, dtype=torch.float64), torch.ones(1, n, dtype=torch.float64)]
    )
    right = torch.zeros(n + 1, 1, dtype=torch.float64)
    right[-1] = 1
    return torch.linalg.lstsq(system, right).solution.squeeze(-1).to(transition.dtype)


def entropy_rate(transition: Tensor) -> float:
    """Entropy of y_t given y_{t-1} under the stationary distribution, in nats: the loss of an observer who sees
    y_{t-1} without noise, which no model of the chain can beat on average on fresh data."""
    return float(stationary_distribution(transition) @ torch.special.entr(transition).sum(-1))


def forward_filter(inputs: Tensor, transition: Tensor, embeddings: Tensor, noise: float = 1.0) -> Tensor:
    """(..., T, n) log p(y_t = k | x_1..x_t), float64: the exact prediction of the observer who knows the chain, the
    embeddings and the noise, and sees the inputs (..., T, d_x). No predictor from the same inputs has a lower expected
    loss. transition (n, n), embeddings (..., n, d_x) with the inputs' leading dimensions or none.

    The forward recursion in log space, y_0 uniform: the belief in y_{t-1} is multiplied by N(x_t; mu_k, noise^2 I) and
    carried through the transition matrix. Raises ValueError for shapes that do not fit, NaN, or noise that is not positive.
    """
    _require_transition(transition)
    require_floating("inputs", inputs)
    require_floating("embeddings", embeddings)
    require_size("embeddings", embeddings, -2, transition.shape[-1], "one row for each symbol")
    require_size("inputs", inputs, -1, embeddings.shape[-1], "the embeddings' d_x")
    require_number("noise", noise, 0, math.inf)
    if noise == 0:
        raise ValueError("noise must be positive, got 0")
    log_transition = transition.double().log()
    # The part of the log density that depends on the symbol; the rest falls out when the belief is normalised.
    distance = torch.cdist(inputs.double(), embeddings.double(), compute_mode="donot_use_mm_for_euclid_dist")
    log_likelihood = -0.5 * (distance / noise).square()
    prediction = log_likelihood.new_full(log_likelihood[..., 0, :].shape, -math.log(len(transition)))
    predictions = []
    for evidence in log_likelihood.unbind(-2):
        belief = torch.log_softmax(prediction + evidence, -1)
        prediction = torch.logsumexp(belief.unsqueeze(-1) + log_transition, -2)
        predictions.append(prediction)
    return torch.stack(predictions, -2)


def divergence(reference: Tensor, log_probabilities: Tensor) -> Tensor:
    """(..., T) KL(reference || model) in nats, from log probabilities (..., T, n) of both. Zero probability of the
    reference counts zero. Raises ValueError for shapes that differ."""
    if reference.shape != log_probabilities.shape:
        raise ValueError(
            f"reference must have the model's shape {tuple(log_probabilities.shape)}, got {tuple(reference.shape)}"
        )
    probability = reference.exp()
    return torch.where(probability > 0, probability * (reference - log_probabilities), 0).sum(-1)


def _require_transition(transition: Tensor) -> None:
    require_stochastic("transition", transition)
    if transition.dim() != 2 or transition.shape[0] != transition.shape[1]:
        raise ValueError(f"transition must be a square matrix, got shape {tuple(transition.shape)}")
