"""The paper's sticky Markov experiment, by the protocol of the authors' released script."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attention_dynamics import THREADS
from attention_dynamics.attention import Head, fused_causal_context, initial_head, stack_heads
from attention_dynamics.checks import require_floating, require_seeds
from attention_dynamics.tasks import sticky_sequence, sticky_transition, symbol_embeddings
from attention_dynamics.training import Run, StepSizes, descend

D_K, D_V, N_SYMBOLS = 10, 15, 8
SEEDS = (42, 2024, 1337, 7777, 9999)
SCHEDULES = {"sgd": StepSizes(0.01, 0.01, 0.01, 0.01), "em_like": StepSizes(0.01, 0.01, 0.1, 0.01)}


class Problem(NamedTuple):
    """R seeds at once: inputs (R, T, d_x), targets (R, T), initial head with leading dimension R,
    the noiseless embeddings (n, d_x) and the transition matrix (n, n)."""

    inputs: Tensor
    targets: Tensor
    head: Head
    embeddings: Tensor
    transition: Tensor


def sticky_problem(seeds: Iterable[int] = SEEDS, length: int = 2000, self_prob: float = 0.3) -> Problem:
    """Data and initial heads of the reference protocol.

    The embeddings come from seed 0 for all runs. Seed s draws the sequence; seed s again draws the weights.
    Raises ValueError for seeds that are none, repeated or negative, length < 2 or a `self_prob` outside [0, 1].
    """
    transition, embeddings = sticky_transition(N_SYMBOLS, self_prob), symbol_embeddings(N_SYMBOLS)
    seeds = require_seeds(seeds)
    sequences, heads = [], []
    for seed in seeds:
        sequences.append(sticky_sequence(transition, embeddings, length, torch.Generator().manual_seed(seed)))
        heads.append(initial_head(embeddings.shape[-1], D_K, D_V, N_SYMBOLS, torch.Generator().manual_seed(seed)))
    head = stack_heads(heads)
    inputs, targets = (torch.stack(tensors) for tensors in zip(*sequences, strict=True))
    return Problem(inputs, targets, head, embeddings, transition)


def sticky_runs(
    problem: Problem,
    schedules: dict[str, StepSizes],
    steps: int = 1000,
    snapshots: Iterable[int] = (),
    attention: Callable[[Tensor, Tensor, Tensor], Tensor] = fused_causal_context,
    threads: int = THREADS,
) -> dict[str, Run]:
    """Train every seed of `problem` under every schedule, all in one stack of tensors.

    attention: the causal context from queries, keys, values; threads: as for `descend`. Returns one Run with R columns
    for each schedule.
    Raises ValueError for no schedule or for what `descend` refuses.
    """
    if not schedules:
        raise ValueError("schedules must hold at least one schedule, got none")
    runs, arms = len(problem.inputs), len(schedules)
    inputs, targets = (
        tensor.repeat(arms, 1, *[1] * (tensor.dim() - 2)) for tensor in (problem.inputs, problem.targets)
    )
    head = Head(*(tensor.repeat(arms, 1, 1) for tensor in problem.head))

    def logits(head: Head) -> Tensor:
        return attention(inputs @ head.query, inputs @ head.key, inputs @ head.value) @ head.output

    step_sizes = [sizes for sizes in schedules.values() for _ in range(runs)]
    run = descend(head, logits, targets, step_sizes, steps, snapshots, threads)
    return {name: run.columns(slice(arm * runs, (arm + 1) * runs)) for arm, name in enumerate(schedules)}


def first_step_below(loss: Tensor, level: Tensor | float) -> Tensor:
    """(R,) first row of `loss` (S+1, R) that is below `level`; S, the whole budget, for a run that never is.
    Raises ValueError for a loss without runs or that is not finite."""
    require_floating("loss", loss)
    below = loss < level
    return torch.where(below.any(0), below.int().argmax(0), len(loss) - 1)
