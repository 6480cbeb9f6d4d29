"""The closed-form gradients of an attention head under cross-entropy (claims L1, L2, L3).

Every function works on any leading dimensions. `upstream` is u_i = dL/dg_i, (..., Tq, d_v);
`weights` is alpha_ij, (..., Tq, Tk). Gradients carry the unit of the loss, nats, per unit of their variable.
Every function raises ValueError for shapes or dtypes that do not fit, for values that are not finite, and for weights
whose rows are no probabilities.
"""

import math

import torch
from torch import Tensor

from attention_dynamics.attention import Head, Trace, require_head
from attention_dynamics.checks import (
    require_compatible,
    require_floating,
    require_labels,
    require_size,
    require_stochastic,
)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(...,) mean over positions of -log p_i[y_i], in nats, one value for each leading index.

    logits (..., T, C), targets (..., T) integers in 0..C-1. Raises ValueError otherwise.
    """
    _require_targets(logits, targets)
    return negative_log_likelihood(torch.log_softmax(logits, -1), targets)


def negative_log_likelihood(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """(...,) mean over positions of -log p_i[y_i], in nats, from log p (..., T, C) and targets (..., T). Raises
    ValueError for labels out of range or of another shape; log p itself is not inspected, training has it watched."""
    require_labels("targets", targets, log_probabilities.shape[-1])
    _require_one_each(log_probabilities, targets)
    return -log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1).mean(-1)


def logit_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """(..., T, C) dL/dlogits = (p_i - e_{y_i}) / T of `cross_entropy`, summed over leading indices."""
    _require_targets(logits, targets)
    one_hot = torch.nn.functional.one_hot(targets, logits.shape[-1]).to(logits.dtype)
    return (torch.softmax(logits, -1) - one_hot) / logits.shape[-2]


def softmax_jacobian(weights: Tensor) -> Tensor:
    """(..., Tq, Tk, Tk) d alpha_ij / d s_il = alpha_ij (delta_jl - alpha_il), for every row i."""
    require_stochastic("weights", weights)
    return torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)


def compatibility(upstream: Tensor, values: Tensor) -> Tensor:
    """(..., Tq, Tk) b_ij = u_i . v_j, how much the loss grows as v_j enters the context of query i."""
    require_floating("upstream", upstream)
    require_floating("values", values)
    require_size("values", values, -1, upstream.shape[-1], "the upstream gradient's d_v")
    require_compatible(upstream=upstream, values=values)
    return upstream @ values.mT


def mean_compatibility(weights: Tensor, compatibility: Tensor) -> Tensor:
    """(..., Tq, 1) E_{alpha_i}[b] = sum_j alpha_ij b_ij, equal to u_i . g_i."""
    require_stochastic("weights", weights)
    require_floating("compatibility", compatibility)
    require_size("compatibility", compatibility, -1, weights.shape[-1], "one column for each key")
    require_size("compatibility", compatibility, -2, weights.shape[-2], "one row for each query")
    require_compatible(weights=weights, compatibility=compatibility)
    return (weights * compatibility).sum(-1, keepdim=True)


def advantage(weights: Tensor, compatibility: Tensor) -> Tensor:
    """(..., Tq, Tk) b_ij - E_{alpha_i}[b]. Under descent a position whose advantage is negative gains attention."""
    return compatibility - mean_compatibility(weights, compatibility)


def score_gradient(weights: Tensor, upstream: Tensor, values: Tensor) -> Tensor:
    """(..., Tq, Tk) dL/ds_ij = alpha_ij (b_ij - E_{alpha_i}[b]) (law L1). Each row sums to zero."""
    return weights * advantage(weights, compatibility(upstream, values))


def value_gradient(weights: Tensor, upstream: Tensor) -> Tensor:
    """(..., Tk, d_v) dL/dv_j = sum_i alpha_ij u_i (law L2)."""
    require_stochastic("weights", weights)
    require_floating("upstream", upstream)
    require_size("upstream", upstream, -2, weights.shape[-2], "one row for each query")
    require_compatible(weights=weights, upstream=upstream)
    return weights.mT @ upstream


def query_gradient(score_gradient: Tensor, keys: Tensor) -> Tensor:
    """(..., Tq, d_k) dL/dq_i = sum_j dL/ds_ij k_j / sqrt(d_k) (law L3)."""
    require_floating("score_gradient", score_gradient)
    require_floating("keys", keys)
    if keys.shape[-1] == 0:
        raise ValueError("keys must have a width of at least 1, got 0")
    require_size("keys", keys, -2, score_gradient.shape[-1], "one key for each column of the score gradient")
    require_compatible(score_gradient=score_gradient, keys=keys)
    return score_gradient @ keys / math.sqrt(keys.shape[-1])


def key_gradient(score_gradient: Tensor, queries: Tensor) -> Tensor:
    """(..., Tk, d_k) dL/dk_j = sum_i dL/ds_ij q_i / sqrt(d_k) (law L3)."""
    require_floating("score_gradient", score_gradient)
    require_floating("queries", queries)
    require_size("queries", queries, -2, score_gradient.shape[-2], "one query for each row of the score gradient")
    return query_gradient(score_gradient.mT, queries)


def responsibility(weights: Tensor) -> Tensor:
    """(..., Tk) sum_i alpha_ij, the total attention that position j receives."""
    require_stochastic("weights", weights)
    return weights.sum(-2)


def head_gradients(
    head: Head, trace: Trace, inputs: Tensor, logit_gradient: Tensor, memory: Tensor | None = None
) -> Head:
    """dL/dW for all four matrices, by L1-L3 and the chain rule.

    dL/dW_Q = sum_i x_i (dL/dq_i)^T, and likewise W_K, W_V (over the rows of `memory`, or of `inputs` if None)
    and W_O = sum_i g_i (dL/dlogits_i)^T; u_i = W_O dL/dlogits_i. Each result has the shape of its matrix: indices
    over which the matrix was broadcast are summed.
    logit_gradient (..., Tq, C), see `logit_gradient`. Raises ValueError for shapes that do not fit.
    """
    memory = inputs if memory is None else memory
    require_head(head)
    if not isinstance(trace, Trace):
        raise ValueError(f"trace must be a Trace, got {type(trace).__name__}")
    for name, tensor, matrix in (("queries", trace.queries, head.query), ("values", trace.values, head.value)):
        require_size(name, tensor, -1, matrix.shape[-1], "the width of the head's matrix")
    require_floating("inputs", inputs)
    require_floating("memory", memory)
    require_floating("logit_gradient", logit_gradient)
    require_size("logit_gradient", logit_gradient, -1, head.output.shape[-1], "the number of classes")
    for name, tensor in (("inputs", inputs), ("memory", memory)):
        require_size(name, tensor, -1, head.query.shape[-2], "the head's d_x")
    require_compatible(
        inputs=inputs, memory=memory, logit_gradient=logit_gradient, weights=trace.weights, output=head.output
    )
    require_size("inputs", inputs, -2, trace.queries.shape[-2], "the trace's number of queries")
    require_size("memory", memory, -2, trace.keys.shape[-2], "the trace's number of keys")
    upstream = logit_gradient @ head.output.mT
    by_scores = score_gradient(trace.weights, upstream, trace.values)
    return Head(
        query=(inputs.mT @ query_gradient(by_scores, trace.keys)).sum_to_size(head.query.shape),
        key=(memory.mT @ key_gradient(by_scores, trace.queries)).sum_to_size(head.key.shape),
        value=(memory.mT @ value_gradient(trace.weights, upstream)).sum_to_size(head.value.shape),
        output=(trace.context.mT @ logit_gradient).sum_to_size(head.output.shape),
    )


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Largest deviation of `found` over the largest entry of `exact`. Raises ValueError for unequal or empty shapes."""
    if not (isinstance(found, Tensor) and isinstance(exact, Tensor) and exact.numel()):
        raise ValueError("found and exact must be tensors with at least one entry")
    if found.shape != exact.shape:
        raise ValueError(f"found must have the shape of exact {tuple(exact.shape)}, got {tuple(found.shape)}")
    return float((found - exact).abs().max() / exact.abs().max())


def _require_targets(logits: Tensor, targets: Tensor) -> None:
    require_floating("logits", logits)
    if logits.shape[-2] == 0:
        raise ValueError("logits must hold at least one position, got none")
    require_labels("targets", targets, logits.shape[-1])
    _require_one_each(logits, targets)


def _require_one_each(logits: Tensor, targets: Tensor) -> None:
    if targets.shape != logits.shape[:-1]:
        raise ValueError(
            f"targets must have the logits' shape without classes {tuple(logits.shape[:-1])}, got {tuple(targets.shape)}"
        )
