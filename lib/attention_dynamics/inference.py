"""Tasks of inference whose posterior varies along a sequence, with the exact prediction at every position.

A task draws fresh sequences as often as it is asked. Where a key asks for its label, the input of position t holds the
previous key and its label, and the key that is asked for now: [x_{t-1}, y_{t-1}, x_t], one-hot each, the first two
zero at t = 0. So each position holds one pair that later ones can look up.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_dynamics.checks import require_count, require_number
from attention_dynamics.tasks import forward_filter, sticky_transition, symbol_embeddings


class Batch(NamedTuple):
    """inputs (B, T, d), targets (B, T) integers, log_posterior (B, T, C): log p(y_t | inputs up to t), exact, float64,
    -inf where impossible."""

    inputs: Tensor
    targets: Tensor
    log_posterior: Tensor


class Task(NamedTuple):
    """width d of the inputs, number of classes C, length T, and `draw(size, generator)`, a fresh Batch."""

    width: int
    n_classes: int
    length: int
    draw: Callable[[int, torch.Generator], Batch]


def bijection(n_labels: int = 8) -> Task:
    """Bijection by elimination: each of n keys is asked for once, in random order, and has a label of its own.

    What is left is equally likely: the posterior at position t has entropy log(n - t), a function of the position.
    Raises ValueError for fewer than two labels.
    """
    require_count("n_labels", n_labels, 2)

    def draw(size: int, generator: torch.Generator) -> Batch:
        return _pairs(_permutations(size, n_labels, generator), _permutations(size, n_labels, generator), True)

    return Task(3 * n_labels, n_labels, n_labels, draw)


def repeated_bijection(n_labels: int = 8, length: int = 16) -> Task:
    """The same with keys drawn with replacement: a key that came before has the label it had, any other one of those left.

    The entropy is 0 or the log of the number of labels not yet shown. Raises ValueError for fewer than two labels or
    no position.
    """
    require_count("n_labels", n_labels, 2)
    require_count("length", length, 1)

    def draw(size: int, generator: torch.Generator) -> Batch:
        keys = torch.randint(n_labels, (size, length), generator=generator)
        return _pairs(_permutations(size, n_labels, generator), keys, True)

    return Task(3 * n_labels, n_labels, length, draw)


def associative_recall(n_keys: int = 8, n_labels: int = 8, length: int = 16) -> Task:
    """Keys drawn with replacement whose labels are independent: the entropy is 0 for a key that came before, else the
    log of the number of labels. Raises ValueError for fewer than two labels, no key or no position."""
    require_count("n_keys", n_keys, 1)
    require_count("n_labels", n_labels, 2)
    require_count("length", length, 1)

    def draw(size: int, generator: torch.Generator) -> Batch:
        keys = torch.randint(n_keys, (size, length), generator=generator)
        return _pairs(torch.randint(n_labels, (size, n_keys), generator=generator), keys, False, n_labels)

    return Task(2 * n_keys + n_labels, n_labels, length, draw)


def noisy_chain(noise: float = 3.0, length: int = 24) -> Task:
    """The sticky chain under noise that one input does not see through: x_t = mu[y_{t-1}] + noise * N(0, I), asked for
    y_t. The posterior is the forward filter's. Embeddings and chain are those of the sticky experiment.

    Raises ValueError for noise that is not positive or no position.
    """
    require_number("noise", noise, 0, math.inf)
    if noise == 0:
        raise ValueError("noise must be positive, got 0")
    require_count("length", length, 1)
    transition, embeddings = sticky_transition(), symbol_embeddings()

    def draw(size: int, generator: torch.Generator) -> Batch:
        start = torch.full((size, len(transition)), 1 / len(transition))
        hidden = _chain(start, transition.expand(size, -1, -1), length + 1, generator)
        disturbance = torch.randn(size, length, embeddings.shape[-1], generator=generator)
        inputs = embeddings[hidden[:, :-1]] + noise * disturbance
        return Batch(inputs, hidden[:, 1:], forward_filter(inputs, transition, embeddings, noise))

    return Task(embeddings.shape[-1], len(transition), length, draw)


class HiddenMarkov(NamedTuple):
    """M hidden Markov models: start (M, S), transition (M, S, S) rows P(h_t | h_{t-1}), emission (M, S, O)."""

    start: Tensor
    transition: Tensor
    emission: Tensor


def hidden_markov_models(n_models: int = 8, n_states: int = 3, n_symbols: int = 4, seed: int = 0) -> HiddenMarkov:
    """Models with each row drawn from a Dirichlet distribution with all parameters 1/2, far from uniform, float64.
    Raises ValueError for a size below 1 (symbols: 2) or a negative seed."""
    require_count("n_models", n_models, 1)
    require_count("n_states", n_states, 1)
    require_count("n_symbols", n_symbols, 2)
    require_count("seed", seed, 0)
    generator = torch.Generator().manual_seed(seed)

    def rows(*shape: int) -> Tensor:
        # A squared standard normal is a gamma variable of shape 1/2, up to scale; normalised, a Dirichlet one.
        gamma = torch.randn(*shape, generator=generator, dtype=torch.float64).square()
        return gamma / gamma.sum(-1, keepdim=True)

    return HiddenMarkov(
        rows(n_models, n_states), rows(n_models, n_states, n_states), rows(n_models, n_states, n_symbols)
    )


def hidden_markov(models: HiddenMarkov, header: bool, length: int = 16) -> Task:
    """Each sequence comes from one of M models, all equally likely. Position t sees symbol o_t (position 0: none) and is
    asked for o_{t+1}.

    header: the input of position 0 holds the parameters of the sequence's model, so that they can be read; without it they
    have to be inferred from the sequence, and the posterior averages the models' forward filters by their evidence.
    Raises ValueError for no position.
    """
    require_count("length", length, 1)
    n_models, _, n_symbols = models.emission.shape
    described = torch.cat([table.flatten(1) for table in models], 1).float()

    def draw(size: int, generator: torch.Generator) -> Batch:
        which = torch.randint(n_models, (size,), generator=generator)
        hidden = _chain(models.start[which], models.transition[which], length, generator)
        rates = models.emission[which].gather(1, hidden.unsqueeze(-1).expand(-1, -1, n_symbols))
        symbols = torch.multinomial(rates.flatten(0, 1), 1, generator=generator).view(size, length)
        seen = F.pad(F.one_hot(symbols[:, :-1], n_symbols).float(), (0, 0, 1, 0))
        opening = described[which] if header else described.new_zeros(size, 0)
        inputs = torch.cat([seen, F.pad(opening.unsqueeze(1), (0, 0, 0, length - 1))], -1)
        return Batch(inputs, symbols, mixture_filter(models, symbols, which if header else None))

    return Task(n_symbols + (described.shape[-1] if header else 0), n_symbols, length, draw)


def mixture_filter(models: HiddenMarkov, symbols: Tensor, which: Tensor | None = None) -> Tensor:
    """(B, T, O) log p(o_t | o_1..o_{t-1}) for symbols (B, T): by the model `which` (B,) of each sequence, or, if None,
    averaged over all models by their posterior. Forward recursion in log space, float64."""
    log_start, log_transition, log_emission = (table.log() for table in models)
    # (B, M, S): log of p(model m, h_t = s, o_1..o_{t-1}).
    joint = log_start.expand(len(symbols), -1, -1)
    if which is not None:
        own = F.one_hot(which, len(log_start)).bool().unsqueeze(-1)
        joint = joint.masked_fill(~own, -math.inf)
    predictions = []
    for symbol in symbols.unbind(-1):
        by_symbol = torch.logsumexp((joint.unsqueeze(-1) + log_emission).flatten(1, 2), 1)
        predictions.append(torch.log_softmax(by_symbol, -1))
        joint = joint + log_emission[..., symbol].permute(2, 0, 1)
        joint = torch.logsumexp(joint.unsqueeze(-1) + log_transition, -2)
    return torch.stack(predictions, -2)


def _permutations(size: int, n: int, generator: torch.Generator) -> Tensor:
    """(size, n) independent random permutations of 0..n-1."""
    return torch.rand(size, n, generator=generator).argsort(-1)


def _chain(start: Tensor, transition: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """(B, length) states of Markov chains with start (B, S) and transition (B, S, S)."""
    states = [torch.multinomial(start, 1, generator=generator)]
    for _ in range(length - 1):
        rows = transition.gather(1, states[-1].unsqueeze(-1).expand(-1, -1, transition.shape[-1]))
        states.append(torch.multinomial(rows.squeeze(1), 1, generator=generator))
    return torch.cat(states, -1)


def _pairs(labels: Tensor, keys: Tensor, exclusive: bool, n_labels: int | None = None) -> Batch:
    """The batch that asks for keys (B, T) whose labels are `labels` (B, n). exclusive: no two keys have the same label."""
    n_keys = labels.shape[-1]
    n_labels = n_labels or n_keys
    targets = labels.gather(-1, keys)
    asked, told = F.one_hot(keys, n_keys), F.one_hot(targets, n_labels)
    before = asked.cumsum(1) - asked  # how often each key came before
    shown = told.cumsum(1) - told
    known = (before * asked).sum(-1, keepdim=True) > 0
    possible = torch.where(known, told > 0, (shown == 0) | (not exclusive))
    log_posterior = possible.double().log() - possible.sum(-1, keepdim=True).double().log()
    previous = F.pad(torch.cat([asked, told], -1)[:, :-1], (0, 0, 1, 0))
    return Batch(torch.cat([previous, asked], -1).float(), targets, log_posterior)


TASKS = {
    "bijection": bijection(),
    "repeated_bijection": repeated_bijection(),
    "associative_recall": associative_recall(),
    "noisy_chain": noisy_chain(),
    "hmm_inferred": hidden_markov(hidden_markov_models(), header=False),
    "hmm_header": hidden_markov(hidden_markov_models(), header=True),
}
