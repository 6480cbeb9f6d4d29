"""The sticky chain: its matrix, its statistics, and the order of its random draws."""

import itertools
import math

import pytest
import torch
from hmmlearn.hmm import GaussianHMM
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_dynamics.tasks import (
    divergence,
    entropy_rate,
    forward_filter,
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


def enumerated_prediction(inputs, transition, embeddings, noise):
    """p(y_t | x_1..x_t) by summing the joint probability over every path of symbols y_0..y_t."""
    n, rows = len(transition), []
    for t in range(1, len(inputs) + 1):
        mass = [0.0] * n
        for path in itertools.product(range(n), repeat=t + 1):
            joint = 1 / n
            for step, (before, after) in enumerate(itertools.pairwise(path)):
                gap = inputs[step] - embeddings[before]
                joint *= math.exp(-0.5 * float(gap @ gap) / noise**2) * float(transition[before, after])
            mass[path[-1]] += joint
        rows.append([part / sum(mass) for part in mass])
    return torch.tensor(rows, dtype=torch.float64)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(2, 3), st.integers(1, 4), st.floats(0.5, 4), st.integers(0, 2**32))
def test_the_filter_is_the_sum_over_all_paths(n, length, noise, seed):
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    inputs = noise * torch.randn(length, 2, generator=generator, dtype=torch.float64)
    transition = random_chain(n, seed)
    found = forward_filter(inputs, transition, embeddings, noise)
    assert torch.allclose(found.exp(), enumerated_prediction(inputs, transition, embeddings, noise), atol=1e-12)
    stacked = forward_filter(torch.stack([inputs, inputs.flip(0)]), transition, embeddings, noise)
    assert torch.allclose(stacked[0], found, atol=1e-12), "sequences do not mix"


def test_the_filter_is_that_of_an_independent_library():
    """hmmlearn's smoothed belief at the last position of each beginning of the sequence is the filtered one."""
    transition, embeddings = sticky_transition().double(), symbol_embeddings(d_x=3).double()
    inputs, _ = sticky_sequence(transition, embeddings, 60, torch.Generator().manual_seed(1), 2.0)
    model = GaussianHMM(8, "spherical")
    model.startprob_, model.transmat_ = torch.full((8,), 1 / 8).numpy(), transition.numpy()
    model.means_, model.covars_ = embeddings.numpy(), torch.full((8,), 4.0).numpy()
    beliefs = torch.stack(
        [torch.from_numpy(model.predict_proba(inputs[:t].numpy())[-1]) for t in range(1, len(inputs) + 1)]
    )
    found = forward_filter(inputs, transition, embeddings, 2.0)
    assert torch.allclose(found.exp(), beliefs @ transition, atol=1e-9)


def test_the_filter_survives_long_sequences_and_impossible_transitions():
    """In log space nothing underflows: 5000 positions far from every embedding, and a chain with forbidden moves."""
    inputs = 100 * torch.randn(5000, 2, generator=torch.Generator().manual_seed(0))
    found = forward_filter(inputs, CYCLE, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 0.5)
    assert torch.allclose(found.exp().sum(-1), torch.ones(5000, dtype=torch.float64))


def test_no_other_predictor_beats_the_filter():
    """On 20 000 fresh symbols, against the filters of an observer with a wrong noise, and against the true one's own
    entropy: expected loss is entropy, and the divergence is the price of the wrong belief."""
    transition, embeddings = sticky_transition(), symbol_embeddings(d_x=4)
    inputs, targets = sticky_sequence(transition, embeddings, 20_000, torch.Generator().manual_seed(3), 2.0)
    right = forward_filter(inputs, transition, embeddings, 2.0)
    loss = -right.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    error = float(loss.std() / len(loss) ** 0.5)
    assert abs(float((loss + (right.exp() * right).sum(-1)).mean())) < 5 * error
    for noise in (0.7, 6.0):
        wrong = forward_filter(inputs, transition, embeddings, noise)
        excess = -wrong.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - loss
        price = divergence(right, wrong)
        assert float(price.mean()) > 0.005
        assert abs(float((excess - price).mean())) < 5 * float((excess - price).std()) / len(loss) ** 0.5


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.integers(2, 9), st.integers(0, 2**32))
def test_divergence_is_that_of_torch_distributions(n, seed):
    one, other = torch.randn(2, 3, 5, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = divergence(one.log_softmax(-1), other.log_softmax(-1))
    expected = torch.distributions.kl_divergence(*(torch.distributions.Categorical(logits=t) for t in (one, other)))
    assert torch.allclose(found, expected, atol=1e-12) and (found >= 0).all()
    certain = torch.tensor([0.0, -math.inf])
    assert float(divergence(certain, torch.tensor([0.5, 0.5]).log())) == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sticky_sequence(CYCLE, torch.ones(2, 3), 9, torch.Generator(), -1.0), "noise must lie in"),
        (lambda: forward_filter(torch.ones(4, 3), CYCLE, torch.ones(2, 2)), "inputs must have size 2 in dimension -1"),
        (lambda: forward_filter(torch.ones(4, 3), CYCLE, torch.ones(3, 3)), "embeddings must have size 2"),
        (lambda: forward_filter(torch.ones(4, 3) * NAN, CYCLE, torch.ones(2, 3)), "inputs must be finite"),
        (lambda: forward_filter(torch.ones(4, 3), 2 * CYCLE, torch.ones(2, 3)), "transition must have rows"),
        (lambda: forward_filter(torch.ones(4, 3), CYCLE, torch.ones(2, 3), 0.0), "noise must be positive, got 0"),
        (lambda: divergence(torch.ones(4, 2), torch.ones(4, 3)), "reference must have the model's shape"),
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
        (
            lambda: sticky_sequence(CYCLE, torch.ones(3, 3), 9, torch.Generator()),
            "embeddings must have shape .2, d_x., got .3, 3.",
        ),
        (
            lambda: sticky_sequence(CYCLE, torch.ones(1, 2, 3), 9, torch.Generator()),
            "embeddings must have shape .2, d_x.",
        ),
        (lambda: sticky_sequence(CYCLE, torch.ones(2, 3) * NAN, 9, torch.Generator()), "embeddings must be finite"),
        (
            lambda: sticky_sequence(CYCLE, torch.ones(2, 3), 1, torch.Generator()),
            "length must be an integer of at least 2",
        ),
        (lambda: stationary_distribution(CYCLE * NAN), "transition must be finite"),
        (lambda: stationary_distribution(CYCLE[:1]), "transition must be a square matrix"),
        (lambda: entropy_rate([[1.0]]), "transition must be a floating-point tensor, got list"),
        (lambda: entropy_rate(CYCLE[:1]), "transition must be a square matrix"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
