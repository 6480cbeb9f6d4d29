"""The paper's sticky Markov experiment, by the protocol of the authors' released script."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attention_dynamics import THREADS
from attention_dynamics.attention import Head, fused_causal_context, initial_head, stack_heads
from attention_dynamics.checks import require_seeds, require_shapes
from attention_dynamics.tasks import sticky_sequence, sticky_transition, symbol_embeddings
from attention_dynamics.training import Run, StepSizes, descend

D_K, D_V, N_SYMBOLS = 10, 15, 8
SEEDS = (42, 2024, 1337, 7777, 9999)
SCHEDULES = {"sgd": StepSizes(0.01, 0.01, 0.01, 0.01), "em_like": StepSizes(0.01, 0.01, 0.1, 0.01)}


class Problem(NamedTuple):
    """R seeds at once: inputs (R, T, d_x), targets (R, T), initial head with leading dimension R,
    the noiseless embeddings (R, n, d_x) and the transition matrix (n, n)."""

    inputs: Tensor
    targets: Tensor
    head: Head
    embeddings: Tensor
    transition: Tensor


def sticky_problem(
    seeds: Iterable[int] = SEEDS,
    length: int = 2000,
    self_prob: float = 0.3,
    noise: float = 1.0,
    embedding_seeds: Iterable[int] | None = None,
) -> Problem:
    """Data and initial heads of the reference protocol.

    Seed s draws the sequence of `length` symbols; seed s again draws the weights. The embeddings come from
    `embedding_seeds`, one for each run; None is the protocol's own, seed 0 for all. Raises ValueError for seeds that are
    none, repeated or negative, for another number of embedding seeds, length < 2, a `self_prob` outside [0, 1] or
    negative noise.
    """
    transition = sticky_transition(N_SYMBOLS, self_prob)
    seeds = require_seeds(seeds)
    embedding_seeds = [0] * len(seeds) if embedding_seeds is None else list(embedding_seeds)
    if len(embedding_seeds) != len(seeds):
        raise ValueError(f"embedding_seeds must hold one for each of {len(seeds)} seeds, got {len(embedding_seeds)}")
    embeddings = torch.stack([symbol_embeddings(N_SYMBOLS, seed=seed) for seed in embedding_seeds])
    sequences, heads = [], []
    for seed, rows in zip(seeds, embeddings, strict=True):
        sequences.append(sticky_sequence(transition, rows, length, torch.Generator().manual_seed(seed), noise))
        heads.append(initial_head(rows.shape[-1], D_K, D_V, N_SYMBOLS, torch.Generator().manual_seed(seed)))
    inputs, targets = (torch.stack(tensors) for tensors in zip(*sequences, strict=True))
    return Problem(inputs, targets, stack_heads(heads), embeddings, transition)


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
    Raises ValueError for a loss without rows or runs or that is not finite, or levels that are not finite or neither one nor one a run."""
    require_shapes(loss=(loss, "rows R"))
    if not bool(torch.isfinite(torch.as_tensor(level)).all()):
        raise ValueError("level must be finite, got NaN or infinity")
    if isinstance(level, Tensor) and level.shape not in ((), loss.shape[1:]):
        raise ValueError(
            f"level must be one number or one for each of {loss.shape[1]} runs, got shape {tuple(level.shape)}"
        )
    below = loss < level
    return torch.where(below.any(0), below.int().argmax(0), len(loss) - 1)
