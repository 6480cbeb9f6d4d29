"""One attention head: its parameters, its forward pass, and the record of that pass.

Tokens are rows. A parameter matrix therefore has shape (d_in, d_out) and acts from the right,
`queries = inputs @ query`; it is the transpose of the paper's W_Q, W_K, W_V, W_O.
Leading dimensions (`...`) are independent sequences, heads or runs and broadcast.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_dynamics.checks import (
    described,
    require_compatible,
    require_count,
    require_floating,
    require_number,
    require_size,
)

# The fused CPU kernel is fastest when the head width is a multiple of its vector width.
FUSED_WIDTH = 16


class Head(NamedTuple):
    """The four parameter matrices of a head, or four tensors that go with them (gradients, step sizes).

    query  : (..., d_x, d_k)  the paper's W_Q, transposed
    key    : (..., d_x, d_k)  W_K
    value  : (..., d_x, d_v)  W_V
    output : (..., d_v, C)    W_O
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True)
class Trace:
    """What one forward pass computed. Tq queries look at Tk keys (Tq = Tk in self-attention).

    queries (..., Tq, d_k), keys (..., Tk, d_k), values (..., Tk, d_v)
    scores  (..., Tq, Tk)  s_ij = q_i.k_j / sqrt(d_k), -inf where masked
    weights (..., Tq, Tk)  alpha_ij = softmax_j(s_ij)
    context (..., Tq, d_v) g_i = sum_j alpha_ij v_j
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    scores: Tensor
    weights: Tensor
    context: Tensor


def initial_head(
    d_x: int,
    d_k: int,
    d_v: int,
    n_classes: int,
    generator: torch.Generator,
    scale: float = 0.1,
    dtype: torch.dtype = torch.float32,
) -> Head:
    """Draw a head with entries scale * N(0, 1), in the order W_Q, W_K, W_V, W_O.

    Raises ValueError for a size below one, a negative scale or a dtype that is not floating.
    """
    for name, size in (("d_x", d_x), ("d_k", d_k), ("d_v", d_v), ("n_classes", n_classes)):
        require_count(name, size, 1)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point torch.dtype, got {dtype!r}")
    require_number("scale", scale, 0, math.inf)
    shapes = ((d_x, d_k), (d_x, d_k), (d_x, d_v), (d_v, n_classes))
    return Head(*(scale * torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes))


def stack_heads(heads: list[Head]) -> Head:
    """Stack heads of equal shape along a new leading dimension (runs or parallel heads). Raises ValueError for no
    heads or for unequal shapes."""
    if not heads:
        raise ValueError("heads must hold at least one head, got an empty list")
    for head in heads:
        require_head(head)
    shapes = {tuple(tuple(tensor.shape) for tensor in head) for head in heads}
    if len(shapes) > 1:
        raise ValueError(f"heads must have equal shapes, got {sorted(shapes)}")
    return Head(*(torch.stack(tensors) for tensors in zip(*heads, strict=True)))


def require_head(head: Head) -> None:
    """Raise ValueError unless `head` is a Head whose four matrices fit each other."""
    if not isinstance(head, Head):
        raise ValueError(f"head must be a Head, got {type(head).__name__}")
    for name, tensor in head._asdict().items():
        if not isinstance(tensor, Tensor) or tensor.dim() < 2:
            raise ValueError(f"{name} must be a tensor of at least 2 dimensions, got {described(tensor)}")
    d_x, d_k = head.query.shape[-2:]
    require_size("key", head.key, -2, d_x, "the query matrix's d_x")
    require_size("key", head.key, -1, d_k, "the query matrix's d_k")
    require_size("value", head.value, -2, d_x, "the query matrix's d_x")
    require_size("output", head.output, -2, head.value.shape[-1], "the value matrix's d_v")
    require_compatible(**head._asdict())


def causal_mask(length: int) -> Tensor:
    """(T, T) boolean, True where query i may see key j, that is j <= i. Raises ValueError for length < 1."""
    require_count("length", length, 1)
    return torch.ones(length, length, dtype=torch.bool).tril()


def project(head: Head, inputs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Queries from `inputs` (..., Tq, d_x), keys and values from `memory` (..., Tk, d_x), or from `inputs` if None.

    Raises ValueError for a head whose matrices do not fit, a width other than the head's, or values that are not finite.
    """
    require_head(head)
    memory = inputs if memory is None else memory
    for name, tensor in (("inputs", inputs), ("memory", memory)):
        require_floating(name, tensor)
        require_size(name, tensor, -1, head.query.shape[-2], "the head's d_x")
    require_compatible(inputs=inputs, memory=memory, **head._asdict())
    return inputs @ head.query, memory @ head.key, memory @ head.value


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Trace:
    """Softmax attention with every intermediate kept.

    queries (..., Tq, d_k), keys (..., Tk, d_k), values (..., Tk, d_v);
    mask boolean, broadcastable to (..., Tq, Tk), True where attention is allowed.
    Raises ValueError for shapes that do not fit and for a query that may attend to nothing.
    """
    for name, tensor in (("queries", queries), ("keys", keys), ("values", values)):
        require_floating(name, tensor)
    require_size("keys", keys, -1, queries.shape[-1], "the queries' d_k")
    require_size("values", values, -2, keys.shape[-2], "one value for each key")
    if keys.shape[-2] == 0:
        raise ValueError("keys must hold at least one key, got none")
    if queries.shape[-1] == 0:
        raise ValueError("queries must have a width of at least 1, got 0")
    require_compatible(queries=queries, keys=keys, values=values)
    scores = queries @ keys.mT / math.sqrt(queries.shape[-1])
    require_floating("scores", scores)  # finite queries and keys can be too large together
    if mask is not None:
        require_mask(mask, scores)
        scores = scores.masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, -1)
    return Trace(queries, keys, values, scores, weights, weights @ values)


def require_mask(mask: Tensor, scores: Tensor) -> None:
    """Raise ValueError unless `mask` is boolean, fits `scores` and leaves every query something to attend to."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise ValueError(f"mask must be a boolean tensor, True where attention is allowed, got {described(mask)}")
    try:
        fits = torch.broadcast_shapes(mask.shape, scores.shape) == scores.shape
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(f"mask must broadcast to the scores' shape {tuple(scores.shape)}, got {tuple(mask.shape)}")
    if not mask.any(-1).all():
        raise ValueError("mask must leave every query at least one key, got a fully masked row")


def fused_causal_context(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal context g (..., T, d_v) by PyTorch's fused kernel: the same as `attend(..., causal_mask(T)).context`
    without ever holding a (T, T) matrix.

    queries and keys (R, T, d_k), values (R, T, d_v). Heads are zero-padded to one common width, which changes
    neither scores nor context. Raises ValueError for other shapes; values are not inspected, this is the hot path.
    """
    for name, tensor in (("queries", queries), ("keys", keys), ("values", values)):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.dim() != 3:
            raise ValueError(
                f"{name} must be a floating-point tensor of 3 dimensions (runs, T, width), got {described(tensor)}"
            )
    require_compatible(queries=queries, keys=keys, values=values)
    require_size("keys", keys, -1, queries.shape[-1], "the queries' d_k")
    if not queries.shape[:2] == keys.shape[:2] == values.shape[:2]:
        raise ValueError(
            "fused attention takes queries, keys and values of one length, got "
            f"{[tuple(tensor.shape[:2]) for tensor in (queries, keys, values)]}"
        )
    d_k, d_v = queries.shape[-1], values.shape[-1]
    if d_k == 0:
        raise ValueError("queries must have a width of at least 1, got 0")
    width = -(-max(d_k, d_v) // FUSED_WIDTH) * FUSED_WIDTH
    padded = [F.pad(tensor, (0, width - tensor.shape[-1])).unsqueeze(-3) for tensor in (queries, keys, values)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        context = F.scaled_dot_product_attention(*padded, is_causal=True, scale=1 / math.sqrt(d_k))
    return context.squeeze(-3)[..., :d_v]


def plain_causal_context(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same context with the (T, T) matrix materialised: the baseline that the fused path is held against."""
    return attend(queries, keys, values, causal_mask(queries.shape[-2])).context
