"""The toy simulation: queries of several classes compete for the values of a small memory, and the loop between routing
and content is cut on either side."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attention_dynamics.attention import Head, Trace, attend, initial_head, project, require_head, stack_heads
from attention_dynamics.checks import require_count, require_labels, require_seeds, require_stochastic
from attention_dynamics.laws import cross_entropy
from attention_dynamics.training import Run, StepSizes, descend

N_CLASSES, QUERIES_PER_CLASS, N_MEMORY, D_X, D_K, D_V = 4, 4, 8, 16, 8, 16


class Competition(NamedTuple):
    """R seeds at once: queries' inputs (R, Tq, d_x), memory (R, Tk, d_x), targets (R, Tq), initial head."""

    inputs: Tensor
    memory: Tensor
    targets: Tensor
    head: Head


def competition(seeds: Iterable[int]) -> Competition:
    """Sixteen random query tokens, four of each of four classes, and a memory of eight random tokens, for each seed.

    All tokens are standard normal, so nothing in them tells a class: the head must learn which query wants what. The
    head's routing and value matrices start at 0.1 * N(0, 1), attention nearly uniform. Its output matrix has orthonormal
    columns, one direction for each class, and is meant to stay fixed, so that content is in the values alone.
    Raises ValueError for seeds that are none, repeated or negative.
    """
    seeds = require_seeds(seeds)
    inputs, memory, heads = [], [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        inputs.append(torch.randn(N_CLASSES * QUERIES_PER_CLASS, D_X, generator=generator, dtype=torch.float64))
        memory.append(torch.randn(N_MEMORY, D_X, generator=generator, dtype=torch.float64))
        head = initial_head(D_X, D_K, D_V, N_CLASSES, generator, dtype=torch.float64)
        heads.append(head._replace(output=torch.linalg.qr(head.output).Q))
    targets = torch.arange(N_CLASSES).repeat_interleave(QUERIES_PER_CLASS).expand(len(seeds), -1)
    return Competition(torch.stack(inputs), torch.stack(memory), targets, stack_heads(heads))


def arms(step_size: float = 1.0) -> dict[str, StepSizes]:
    """Both sides free, and the loop cut on either side; the output matrix is fixed in all. Raises ValueError for a
    step size that is negative or not finite."""
    return {
        "free": StepSizes(step_size, step_size, step_size, 0.0),
        "frozen_routing": StepSizes(0.0, 0.0, step_size, 0.0),
        "frozen_values": StepSizes(step_size, step_size, 0.0, 0.0),
    }


def run_arm(task: Competition, sizes: StepSizes, steps: int, snapshots: Iterable[int] = ()) -> Run:
    """Train every seed of `task` with these step sizes; see `descend` for the record and for what is refused."""
    return descend(
        task.head,
        lambda head: forward(task, head).context @ head.output,
        task.targets,
        [sizes] * len(task.inputs),
        steps,
        snapshots,
    )


def forward(task: Competition, head: Head) -> Trace:
    """The record of the forward pass, queries (R, Tq, d_k) against memory: weights (R, Tq, Tk), context (R, Tq, d_v).
    Raises ValueError for a head that does not fit the task."""
    return attend(*project(head, task.inputs, task.memory))


def specialisation(weights: Tensor, targets: Tensor, n_classes: int) -> Tensor:
    """(...) mutual information, in nats, between the class of a query drawn at random and the position it attends to.

    With p(j | c) the mean of alpha_ij over the queries of class c, p(c) their share and p(j) = sum_c p(c) p(j | c):
    sum_c p(c) KL(p(. | c) || p(.)). Zero if all classes attend alike, log n_classes if no two share a position.
    weights (..., Tq, Tk), targets (..., Tq). Raises ValueError for weights that are no probabilities or bad labels.
    """
    require_count("n_classes", n_classes, 2)
    require_stochastic("weights", weights)
    require_labels("targets", targets, n_classes)
    if weights.shape[-2] == 0:
        raise ValueError("weights must hold at least one query, got none")
    if targets.shape != weights.shape[:-1]:
        raise ValueError(
            f"targets must have shape {tuple(weights.shape[:-1])}, one class for each query, got {tuple(targets.shape)}"
        )
    members = torch.nn.functional.one_hot(targets, n_classes).to(weights.dtype)
    joint = members.mT @ weights / weights.shape[-2]  # p(c, j)
    product = joint.sum(-1, keepdim=True) * joint.sum(-2, keepdim=True)
    return torch.special.xlogy(joint, joint / product.where(joint > 0, 1)).sum((-1, -2))


class Forces(NamedTuple):
    """Squared gradient norms (R,) of routing (W_Q, W_K) and of content (W_V), and their coupling (R,), see `forces`."""

    routing: Tensor
    content: Tensor
    coupling: Tensor


def forces(task: Competition, head: Head) -> Forces:
    """The squared forces F_r = |grad_r L|^2 and F_c = |grad_c L|^2, and how each changes the other under gradient flow.

    Moving the content alone, dc/dt = -grad_c L, changes F_r / 2 at the rate -grad_r L . (d^2 L / dr dc) grad_c L. Moving
    the routing alone changes F_c / 2 at the same rate, since the mixed derivative is symmetric. This common number
    is the coupling: positive, each side strengthens the force on the other; negative, it weakens it.
    Raises ValueError for a head that does not fit the task.
    """
    require_head(head)
    head = Head(*(tensor.detach().requires_grad_() for tensor in head))
    routing, content = (head.query, head.key), (head.value,)
    loss = cross_entropy(forward(task, head).context @ head.output, task.targets).sum()
    grad_routing = torch.autograd.grad(loss, routing, create_graph=True)
    grad_content = torch.autograd.grad(loss, content, create_graph=True)
    along_content = sum((grad * grad.detach()).sum() for grad in grad_content)
    mixed = torch.autograd.grad(along_content, routing)  # (d^2 L / dr dc) grad_c L
    coupling = -sum((grad.detach() * change).sum((-1, -2)) for grad, change in zip(grad_routing, mixed, strict=True))
    squared = [sum(grad.detach().square().sum((-1, -2)) for grad in grads) for grads in (grad_routing, grad_content)]
    return Forces(*squared, coupling)
