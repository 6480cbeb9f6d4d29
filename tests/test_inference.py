"""The tasks of inference: every exact prediction against brute-force enumeration of what could have happened."""

import itertools
import math

import pytest
import torch

from attention_dynamics import inference
from attention_dynamics.tasks import sticky_transition, symbol_embeddings

TOLERANCE = 1e-12  # float64 against float64, sums of at most a few thousand terms


def drawn(task, seed, size=5):
    return task.draw(size, torch.Generator().manual_seed(seed))


def keys_and_labels(batch, n_keys):
    """Read the pairs back from the inputs: keys of now, and previous pairs."""
    return batch.inputs[..., -n_keys:].argmax(-1), batch.targets


def by_counting(batch, n_keys, n_labels, worlds):
    """(B, T, C) share of the equally likely worlds, maps from keys to labels, that agree with all before position t."""
    keys, labels = keys_and_labels(batch, n_keys)
    result = torch.zeros(*labels.shape, n_labels, dtype=torch.float64)
    for b, t in itertools.product(*map(range, labels.shape)):
        for world in worlds:
            if all(world[keys[b, s]] == labels[b, s] for s in range(t)):
                result[b, t, world[keys[b, t]]] += 1
    return result / result.sum(-1, keepdim=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", [inference.bijection, lambda n: inference.repeated_bijection(n, 6)])
def test_bijections_against_all_permutations(make, seed):
    n = 2 + seed
    batch = drawn(make(n), seed)
    expected = by_counting(batch, n, n, list(itertools.permutations(range(n))))
    torch.testing.assert_close(batch.log_posterior.exp(), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("seed", "n_keys", "n_labels"), [(0, 3, 2), (1, 2, 4), (2, 1, 3)])
def test_recall_against_all_maps(seed, n_keys, n_labels):
    batch = drawn(inference.associative_recall(n_keys, n_labels, 5), seed)
    expected = by_counting(batch, n_keys, n_labels, list(itertools.product(range(n_labels), repeat=n_keys)))
    torch.testing.assert_close(batch.log_posterior.exp(), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["bijection", "repeated_bijection", "associative_recall"])
def test_inputs_hold_the_pair_before_and_the_key_asked_for(name):
    task = inference.TASKS[name]
    batch = drawn(task, 7)
    n = task.n_classes
    keys, labels = keys_and_labels(batch, n)
    assert (batch.inputs[:, 0, : 2 * n] == 0).all()
    assert (batch.inputs[:, 1:, :n].argmax(-1) == keys[:, :-1]).all()
    assert (batch.inputs[:, 1:, n : 2 * n].argmax(-1) == labels[:, :-1]).all()


def test_the_bijections_entropy_is_the_log_of_what_is_left():
    entropy = torch.special.entr(drawn(inference.bijection(8), 0).log_posterior.exp()).sum(-1)
    expected = torch.arange(8, 0, -1).double().log().expand_as(entropy)
    torch.testing.assert_close(entropy, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("noise", "length"), [(2.0, 1), (3.0, 3), (4.0, 4)])
def test_the_noisy_chain_against_all_paths(noise, length):
    batch = drawn(inference.noisy_chain(noise, length), length, size=2)
    transition, embeddings = sticky_transition().double(), symbol_embeddings().double()
    expected = torch.zeros(2, 8, dtype=torch.float64)
    for path in itertools.product(range(8), repeat=length):
        weight = torch.full((2,), 1 / 8, dtype=torch.float64)
        for t, symbol in enumerate(path):
            weight *= transition[path[t - 1], symbol] if t else 1
            weight *= (-(batch.inputs[:, t].double() - embeddings[symbol]).square().sum(-1) / (2 * noise**2)).exp()
        expected += weight.unsqueeze(-1) * transition[path[-1]]
    expected /= expected.sum(-1, keepdim=True)
    # The chain's matrix is float32: its rows sum to one within 1e-7, and the filter does not normalise again.
    torch.testing.assert_close(batch.log_posterior[:, -1].exp(), expected, atol=1e-7, rtol=0)


def test_the_noisy_chain_has_the_chains_statistics():
    """Transitions counted on many sequences: 24 000 of them give each of 64 frequencies a standard error below 0.0092."""
    batch = drawn(inference.noisy_chain(2.0, 12), 0, size=2000)
    before, after = batch.targets[:, :-1].flatten(), batch.targets[:, 1:].flatten()
    counts = torch.zeros(8, 8).index_put_((before, after), torch.tensor(1.0), accumulate=True)
    assert (counts / counts.sum(-1, keepdim=True) - sticky_transition()).abs().max() < 5 * 0.0092
    residual = batch.inputs[:, 1:] - symbol_embeddings()[batch.targets[:, :-1]]
    assert abs(float(residual.std()) - 2.0) < 0.02  # 440 000 normals: standard error 0.002


@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_hidden_markov_models_against_all_paths_and_models(header, seed):
    models = inference.hidden_markov_models(3, 2, 3, seed)
    length, size = 4, 3
    batch = drawn(inference.hidden_markov(models, header, length), seed, size)
    described = torch.cat([table.flatten(1) for table in models], 1).float()
    for b, t in itertools.product(range(size), range(length)):
        expected = torch.zeros(3, dtype=torch.float64)
        for m in range(3):
            if header and not torch.equal(batch.inputs[b, 0, 3:], described[m]):
                continue
            for path in itertools.product(range(2), repeat=t + 1):
                weight = models.start[m, path[0]]
                for s in range(t):
                    weight = weight * models.emission[m, path[s], batch.targets[b, s]]
                    weight = weight * models.transition[m, path[s], path[s + 1]]
                expected += weight * models.emission[m, path[t]]
        torch.testing.assert_close(batch.log_posterior[b, t].exp(), expected / expected.sum(), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("header", [True, False])
def test_hidden_markov_inputs_show_the_symbols_before(header):
    batch = drawn(inference.TASKS["hmm_header" if header else "hmm_inferred"], 3)
    assert (batch.inputs[:, 0, :4] == 0).all()
    assert (batch.inputs[:, 1:, :4].argmax(-1) == batch.targets[:, :-1]).all()
    assert (batch.inputs[:, 1:, 4:] == 0).all()
    assert batch.inputs.shape[-1] == inference.TASKS["hmm_header" if header else "hmm_inferred"].width


@pytest.mark.parametrize("name", inference.TASKS)
def test_every_posterior_is_calibrated_and_reproducible(name):
    """Of any exact prediction the expected loss is its own mean entropy. Over independent sequences the difference has
    mean zero: it must lie within five standard errors."""
    task = inference.TASKS[name]
    batch = drawn(task, 11, size=3000)
    assert batch.inputs.shape == (3000, task.length, task.width)
    assert batch.log_posterior.shape == (3000, task.length, task.n_classes)
    torch.testing.assert_close(torch.logsumexp(batch.log_posterior, -1), torch.zeros(3000, task.length).double())
    loss = -batch.log_posterior.gather(-1, batch.targets.unsqueeze(-1)).squeeze(-1)
    excess = (loss - torch.special.entr(batch.log_posterior.exp()).sum(-1)).mean(-1)
    assert abs(float(excess.mean())) <= 5 * float(excess.std()) / math.sqrt(3000) + TOLERANCE
    assert torch.equal(drawn(task, 11, size=3000).inputs, batch.inputs)
    assert not torch.equal(drawn(task, 12, size=3000).inputs, batch.inputs)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: inference.bijection(1), "n_labels must be an integer of at least 2, got 1"),
        (lambda: inference.repeated_bijection(4, 0), "length must be an integer of at least 1, got 0"),
        (lambda: inference.associative_recall(0), "n_keys must be an integer of at least 1, got 0"),
        (lambda: inference.noisy_chain(0), "noise must be positive, got 0"),
        (lambda: inference.noisy_chain(-1.0), "noise must lie in"),
        (lambda: inference.hidden_markov_models(seed=-1), "seed must be an integer of at least 0, got -1"),
        (lambda: inference.hidden_markov_models(n_symbols=1), "n_symbols must be an integer of at least 2, got 1"),
    ],
)
def test_bad_sizes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
