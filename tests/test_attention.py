"""The forward pass against PyTorch's own, the fused path against the plain one, and what is refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_dynamics.attention import (
    attend,
    causal_mask,
    fused_causal_context,
    initial_head,
    plain_causal_context,
    project,
    stack_heads,
)

# Float32 sums of T products, done in another order: the norms of context and gradients agree to a few times 1e-7 * sqrt(T).
FUSED = 1e-5


def draw(*shapes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes]


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**32), st.booleans())
def test_attend_is_torchs_attention(n_queries, n_keys, d_k, d_v, seed, masked):
    queries, keys, values = draw(
        (2, n_queries, d_k), (2, n_keys, d_k), (2, n_keys, d_v), seed=seed, dtype=torch.float64
    )
    mask = None
    if masked:
        mask = torch.rand(n_queries, n_keys, generator=torch.Generator().manual_seed(seed)) < 0.5
        mask[:, 0] = True
    trace = attend(queries, keys, values, mask)
    exact = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, mask)
    assert (trace.context - exact).abs().max() < 1e-12
    assert (trace.weights.sum(-1) - 1).abs().max() < 1e-14
    if masked:
        assert (trace.weights[:, ~mask] == 0).all() and (trace.scores[:, ~mask] == -math.inf).all()


@pytest.mark.parametrize(
    ("length", "d_k", "d_v"), [(1, 1, 1), (2, 3, 5), (17, 16, 16), (33, 17, 8), (130, 10, 40), (1999, 10, 15)]
)
def test_the_fused_path_is_the_plain_path_in_value_and_gradient(length, d_k, d_v):
    shapes = ((3, length, d_k), (3, length, d_k), (3, length, d_v))
    variables = [tensor.requires_grad_() for tensor in draw(*shapes, seed=length)]
    (pull,) = draw((3, length, d_v), seed=1)
    results = {}
    for context in (fused_causal_context, plain_causal_context):
        out = context(*variables)
        results[context] = [out, *torch.autograd.grad((out * pull).sum(), variables)]
    for fused, plain in zip(*results.values(), strict=True):
        assert fused.shape == plain.shape
        # In a single position the score gradient is exactly zero, so a float32 rounding of either path is all there is.
        assert (fused - plain).norm() <= FUSED * plain.norm().clamp(min=1e-2)


def test_causal_rows_do_not_see_the_future():
    inputs, changed = draw((6, 4))[0], draw((6, 4))[0]
    changed[4:] += 1
    head = initial_head(4, 3, 2, 5, torch.Generator().manual_seed(0))
    before, after = (fused_causal_context(*(t.unsqueeze(0) for t in project(head, x))) for x in (inputs, changed))
    assert torch.equal(before[:, :4], after[:, :4]) and not torch.equal(before[:, 4:], after[:, 4:])


def test_heads_are_drawn_in_the_order_of_the_protocol():
    torch.manual_seed(7)
    expected = [0.1 * torch.randn(shape) for shape in ((4, 3), (4, 3), (4, 2), (2, 5))]
    head = initial_head(4, 3, 2, 5, torch.Generator().manual_seed(7))
    assert all(torch.equal(*pair) for pair in zip(head, expected, strict=True))
    stack = stack_heads([head, head])
    assert [tuple(tensor.shape) for tensor in stack] == [(2, 4, 3), (2, 4, 3), (2, 4, 2), (2, 2, 5)]


Q, K, V = draw((4, 3), (5, 3), (5, 2))
HEAD = initial_head(4, 3, 2, 5, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend(Q, K[:, :2], V), "keys must have size 3 in dimension -1"),
        (lambda: attend(Q, K, V[:4]), "values must have size 5 in dimension -2"),
        (lambda: attend(Q * math.nan, K, V), "queries must be finite, got NaN"),
        (lambda: attend(Q, K.int(), V), "keys must be a floating-point tensor, got torch.int32"),
        (lambda: attend(Q, K, V.tolist()), "values must be a floating-point tensor, got list"),
        (lambda: attend(Q[0], K, V), "queries must have at least 2 dimensions"),
        (lambda: attend(Q, K, V, torch.zeros(4, 5)), "mask must be a boolean tensor"),
        (lambda: attend(Q, K, V, torch.ones(4, 4, dtype=torch.bool)), "mask must broadcast"),
        (lambda: attend(Q, K, V, torch.ones(2, 4, 5, dtype=torch.bool)), "mask must broadcast"),
        (lambda: attend(Q, K, V, torch.tensor([[False] * 5] + [[True] * 5] * 3)), "got a fully masked row"),
        (lambda: attend(Q, K[:0], V[:0]), "keys must hold at least one"),
        (lambda: project(HEAD, Q), "inputs must have size 4 in dimension -1"),
        (lambda: project(HEAD, torch.ones(3, 4), Q), "memory must have size 4"),
        (
            lambda: fused_causal_context(Q[None], K[None], V[None]),
            "fused attention takes queries, keys and values of one length",
        ),
        (lambda: fused_causal_context(K, K, V), "queries must be a floating-point tensor of 3 dimensions"),
        (lambda: attend(Q.double(), K, V), "queries and keys and values must have one dtype"),
        (lambda: attend(Q.expand(2, 4, 3), K.expand(3, 5, 3), V), "must have leading dimensions that broadcast"),
        (lambda: attend(Q[:, :0], K[:, :0], V), "queries must have a width of at least 1"),
        (lambda: attend(1e30 * Q, 1e30 * K, V), "scores must be finite"),
        (lambda: project(HEAD, torch.ones(3, 4).double()), "must have one dtype"),
        (lambda: fused_causal_context(Q[None], Q[None, :, :2], Q[None]), "keys must have size 3"),
        (lambda: causal_mask(0), "length must be an integer of at least 1, got 0"),
        (lambda: initial_head(0, 3, 2, 5, torch.Generator()), "d_x must be an integer of at least 1"),
        (
            lambda: initial_head(4, 3, 2, True, torch.Generator()),
            "n_classes must be an integer of at least 1, got True",
        ),
        (lambda: initial_head(4, 3, 2, 5, torch.Generator(), scale=-1), "scale must lie in .0, inf. and be finite"),
        (
            lambda: initial_head(4, 3, 2, 5, torch.Generator(), scale=math.inf),
            "scale must lie in .0, inf. and be finite",
        ),
        (lambda: stack_heads([]), "heads must hold at least one head"),
        (lambda: stack_heads([HEAD, HEAD._replace(output=HEAD.output[:, :1])]), "heads must have equal shapes"),
        (lambda: stack_heads([1, 2]), "head must be a Head, got int"),
        (lambda: project(None, Q), "head must be a Head, got NoneType"),
        (lambda: project(HEAD._replace(key=HEAD.key[:, :1]), torch.ones(3, 4)), "key must have size 3 in dimension -1"),
        (
            lambda: project(HEAD._replace(value=[1]), torch.ones(3, 4)),
            "value must be a tensor of at least 2 dimensions",
        ),
        (
            lambda: project(HEAD._replace(key=HEAD.key.expand(2, 4, 3)), torch.ones(3, 3, 4)),
            "must have leading dimensions that broadcast",
        ),
        (lambda: initial_head(4, 3, 2, 5, torch.Generator(), dtype=torch.long), "dtype must be a floating-point"),
        (
            lambda: fused_causal_context(Q[None].long(), K[None], V[None]),
            "queries must be a floating-point .* torch.int64",
        ),
        (lambda: fused_causal_context([1], K[None], V[None]), "queries must be a floating-point tensor .* got list"),
        (lambda: fused_causal_context(Q[None], Q[None].double(), Q[None]), "must have one dtype"),
        (lambda: fused_causal_context(Q[None, :, :0], Q[None, :, :0], Q[None]), "a width of at least 1, got 0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
