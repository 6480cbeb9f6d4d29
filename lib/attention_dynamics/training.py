"""Full-batch gradient descent on a stack of heads, with a step size for each of the four matrices."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_dynamics import THREADS
from attention_dynamics.attention import Head, require_head
from attention_dynamics.checks import require_count, require_labels, require_number
from attention_dynamics.laws import negative_log_likelihood


@dataclass(frozen=True)
class StepSizes:
    """Step sizes of one schedule: W_Q and W_K (routing), W_V (content), W_O. Zero freezes a matrix.

    Raises ValueError for a negative or non-finite step size.
    """

    query: float
    key: float
    value: float
    output: float

    def __post_init__(self):
        for name in Head._fields:
            require_number(f"step size of {name}", getattr(self, name), 0, math.inf)


@dataclass(frozen=True)
class Run:
    """What R runs of S steps recorded. Row t is before step t; row S is after the last step.

    loss, entropy (S+1, R): mean cross-entropy and mean predictive entropy, nats; accuracy (S+1, R): fraction
    snapshots: the heads before each step that was asked for; head: the heads after the last step
    """

    loss: Tensor
    entropy: Tensor
    accuracy: Tensor
    snapshots: dict[int, Head]
    head: Head

    def columns(self, runs: slice) -> "Run":
        """The part of the record that belongs to these runs."""
        return Run(
            self.loss[:, runs],
            self.entropy[:, runs],
            self.accuracy[:, runs],
            {step: Head(*(tensor[runs] for tensor in head)) for step, head in self.snapshots.items()},
            Head(*(tensor[runs] for tensor in self.head)),
        )


def descend(
    head: Head,
    logits: Callable[[Head], Tensor],
    targets: Tensor,
    step_sizes: list[StepSizes],
    steps: int,
    snapshots: Iterable[int] = (),
    threads: int = THREADS,
) -> Run:
    """`steps` steps of plain gradient descent on R independent heads at once, all four matrices updated together.

    head: matrices with a leading run dimension R; `logits(head)` gives (R, T, C); targets (R, T);
    step_sizes: one entry for each run; snapshots: steps in 0..steps before which the heads are kept;
    threads: how many compute; the last bit of a sum depends on it. Where several processes work, one for each.
    Raises ValueError for counts that do not match and FloatingPointError, naming runs and step, if a loss
    stops being finite.
    """
    require_count("steps", steps, 0)
    require_count("threads", threads, 1)
    require_head(head)
    runs = len(head.query)
    if not all(isinstance(sizes, StepSizes) for sizes in step_sizes):
        raise ValueError(f"step_sizes must be StepSizes, got {[type(sizes).__name__ for sizes in step_sizes]}")
    if len(step_sizes) != runs:
        raise ValueError(f"step_sizes must have one entry for each of {runs} runs, got {len(step_sizes)}")
    require_labels("targets", targets, head.output.shape[-1])
    if len(targets) != runs:
        raise ValueError(f"targets must have one row for each of {runs} runs, got {len(targets)}")
    snapshots = set(snapshots)
    if not snapshots <= set(range(steps + 1)):
        raise ValueError(f"snapshots must lie in 0..{steps}, got {sorted(snapshots - set(range(steps + 1)))}")
    rates = [
        head.query.new_tensor([getattr(sizes, name) for sizes in step_sizes])[:, None, None] for name in Head._fields
    ]
    record = {name: head.query.new_empty(steps + 1, runs) for name in ("loss", "entropy", "accuracy")}
    kept = {}
    head = Head(*(tensor.detach().clone().requires_grad_() for tensor in head))
    with fixed_threads(threads):
        for step in range(steps + 1):
            if step in snapshots:
                kept[step] = Head(*(tensor.detach().clone() for tensor in head))
            now = logits(head)
            if step == 0 and now.shape != (*targets.shape, head.output.shape[-1]):
                raise ValueError(
                    f"logits must have shape {(*targets.shape, head.output.shape[-1])}, got {tuple(now.shape)}"
                )
            log_probabilities = torch.log_softmax(now, -1)
            loss = negative_log_likelihood(log_probabilities, targets)
            if not loss.requires_grad:
                raise ValueError("logits must be computed from the head that it is given, got a constant")
            record["loss"][step] = loss.detach()
            record["entropy"][step] = predictive_entropy(log_probabilities.detach())
            record["accuracy"][step] = (log_probabilities.argmax(-1) == targets).to(loss.dtype).mean(-1)
            if not torch.isfinite(loss).all():
                lost = (~torch.isfinite(loss)).nonzero().flatten().tolist()
                raise FloatingPointError(
                    f"loss of run(s) {lost} is not finite before step {step}: smaller steps than {step_sizes[lost[0]]} are needed"
                )
            if step < steps:
                gradients = torch.autograd.grad(loss.sum(), head)
                with torch.no_grad():
                    for tensor, rate, gradient in zip(head, rates, gradients, strict=True):
                        tensor -= rate * gradient
    return Run(**record, snapshots=kept, head=Head(*(tensor.detach() for tensor in head)))


def predictive_entropy(log_probabilities: Tensor) -> Tensor:
    """(...,) mean over positions of the entropy of p_i, in nats, from log p (..., T, C)."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1).mean(-1)


@contextmanager
def fixed_threads(threads: int = THREADS) -> Iterator[None]:
    """Compute with `threads` threads, whatever the machine or the environment says, and put the setting back."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
