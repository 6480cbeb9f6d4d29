"""The sticky chain: its matrix, its statistics, and the order of its random draws."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_dynamics.tasks import (
    entropy_rate,
    stationary_distribution,
    sticky_sequence,
    sticky_transition,
    symbol_embeddings,
)

NAN = math.nan
CYCLE = torch.tensor([[0.0, 1.0], [1.0, 0.0]])


def random_chain(n, seed):
    rows = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.01
    return rows / rows.sum(-1, keepdim=True)


def test_the_papers_matrix():
    """The facts that the paper's protocol implies: diagonal 0.3498 (not 0.3), entropy 1.8292 nats in every row."""
    transition = sticky_transition()
    # Row 0 by hand: weights 0.3, 1, 1/2, 1/3, 1/4, 1/3, 1/2, 1 over their sum, mixed 0.7 to 0.3 with the identity.
    weights = torch.tensor([0.3, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 3, 1 / 2, 1])
    row = 0.7 * weights / weights.sum()
    row[0] += 0.3
    for i in range(8):
        assert torch.allclose(transition[i], row.roll(i), atol=1e-7)
        entropy = -sum(p * math.log(p) for p in transition[i].tolist())
        assert abs(entropy - 1.8292) < 5e-5
    assert abs(float(transition[0, 0]) - 0.3498) < 5e-5
    assert abs(entropy_rate(transition) - 1.8292) < 5e-5


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(2, 12), st.floats(0, 1))
def test_every_sticky_matrix_is_stochastic_and_circulant(n, self_prob):
    transition = sticky_transition(n, self_prob)
    assert (transition >= 0).all() and torch.allclose(transition.sum(-1), torch.ones(n), atol=1e-6)
    assert all(torch.allclose(transition[i], transition[0].roll(i), atol=1e-6) for i in range(n))


def test_a_chain_that_never_moves():
    assert torch.equal(sticky_transition(5, 1.0), torch.eye(5))
    assert torch.allclose(stationary_distribution(torch.eye(5)), torch.full((5,), 0.2)), "of many the one of least norm"
    assert abs(entropy_rate(torch.eye(5))) < 1e-9
    assert entropy_rate(CYCLE) == 0 and not math.copysign(1, entropy_rate(CYCLE)) < 0


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(2, 7), st.integers(0, 2**32))
def test_stationary_distribution_is_the_limit_of_the_powers(n, seed):
    transition = random_chain(n, seed)
    limit = torch.linalg.matrix_power(transition, 4096)[0]  # entries of at least 0.01 / n mix long before
    assert torch.allclose(stationary_distribution(transition), limit, atol=1e-10)


def test_entropy_rate_is_the_growth_of_block_entropy():
    """H(y_1..y_n) - H(y_1..y_{n-1}) of the stationary chain, by enumeration of all words."""
    transition = random_chain(3, 0)
    words = stationary_distribution(transition)
    entropies = []
    for _ in range(3):
        entropies.append(float(torch.special.entr(words).sum()))
        words = (words.unsqueeze(-1) * transition.repeat(len(words) // 3, 1)).flatten()
    assert abs(entropies[2] - entropies[1] - entropy_rate(transition)) < 1e-12


def test_the_draws_are_those_of_the_protocol():
    """Against a straight-line script on the global generator: start by randint, single multinomial draws, then noise."""
    transition, embeddings = sticky_transition(), symbol_embeddings()
    torch.manual_seed(0)
    assert torch.equal(embeddings, torch.randn(8, 20))
    torch.manual_seed(11)
    symbols = [torch.randint(8, (1,)).item()]
    for _ in range(99):
        symbols.append(torch.multinomial(transition[symbols[-1]], 1).item())
    noise = torch.randn(99, 20)
    inputs, targets = sticky_sequence(transition, embeddings, 100, torch.Generator().manual_seed(11))
    assert targets.tolist() == symbols[1:]
    assert torch.equal(inputs, torch.stack([embeddings[s] for s in symbols[:-1]]) + noise)


def test_transitions_come_with_their_probabilities():
    """Counts of 20 000 transitions against the matrix: within 5 standard errors of a binomial proportion."""
    transition = sticky_transition(4, 0.3)
    embeddings = 100 * torch.eye(4)  # far apart, so that the input tells the previous symbol
    inputs, targets = sticky_sequence(transition, embeddings, 20_000, torch.Generator().manual_seed(0))
    counts = torch.zeros(4, 4).index_put((inputs.argmax(-1), targets), torch.ones(len(targets)), accumulate=True)
    visits = counts.sum(-1, keepdim=True)
    error = (transition * (1 - transition) / visits).sqrt()
    assert ((counts / visits - transition).abs() < 5 * error).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sticky_transition(1), "n_symbols must be an integer of at least 2, got 1"),
        (lambda: sticky_transition(8, 1.5), r"self_prob must lie in \[0, 1\] and be finite, got 1.5"),
        (lambda: sticky_transition(8, NAN), "self_prob must lie in"),
        (lambda: sticky_transition(8, "0.3"), "self_prob must lie in"),
        (lambda: symbol_embeddings(8, 20, -1), "seed must be an integer of at least 0"),
        (lambda: stationary_distribution(CYCLE.expand(2, 2, 2)), "transition must be a square matrix"),
        (lambda: symbol_embeddings(8, 0), "d_x must be an integer of at least 1"),
        (
            lambda: sticky_sequence(2 * CYCLE, torch.ones(2, 3), 9, torch.Generator()),
            "transition must have rows that sum to 1",
        ),
        (
            lambda: sticky_sequence(CYCLE - 1, torch.ones(2, 3), 9, torch.Generator()),
            "transition must have no negative",
        ),
        (
            lambda: sticky_sequence(CYCLE[:1], torch.ones(2, 3), 9, torch.Generator()),
            "transition must be a square matrix",
        ),
        (lambda: sticky_sequence(CYCLE, torch.ones(3, 3), 9, torch.Generator()), "embeddings must have size 2"),
        (lambda: sticky_sequence(CYCLE, torch.ones(2, 3) * NAN, 9, torch.Generator()), "embeddings must be finite"),
        (
            lambda: sticky_sequence(CYCLE, torch.ones(2, 3), 1, torch.Generator()),
            "length must be an integer of at least 2",
        ),
        (lambda: stationary_distribution(CYCLE * NAN), "transition must be finite"),
        (lambda: stationary_distribution(CYCLE[:1]), "transition must be a square matrix"),
        (lambda: entropy_rate(CYCLE[:1]), "transition must be a square matrix"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
