"""The closed-form gradients against autograd and finite differences, over random shapes, masks and dtypes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_dynamics import laws
from attention_dynamics.attention import Head, attend, causal_mask, initial_head, project, stack_heads

# Sums of at most a few hundred products in float64 lose a few hundred units of 1.1e-16, relative to the largest entry.
FLOAT64 = 1e-10
examples = settings(deadline=None, derandomize=True, max_examples=40)


def relative_error(found, exact):
    """Norm of the deviation over the norm of the exact value (or over 1 where that is smaller than rounding)."""
    return float((found.double() - exact.double()).norm() / exact.double().norm().clamp(min=1e-12))


@st.composite
def cases(draw, square=False):
    """A head, inputs, memory, mask and targets of random sizes; leading dimensions, masks of every kind."""
    size = st.integers(1, 7)
    queries, keys = draw(size), draw(size)
    d_x, d_k, d_v, classes = draw(size), draw(size), draw(size), draw(st.integers(2, 6))
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    cross = not square and draw(st.booleans())
    if not cross:
        keys = queries
    kind = draw(st.sampled_from(["none", "random", "padding"] + ["causal"] * (not cross)))
    mask = None
    if kind == "causal":
        mask = causal_mask(queries)
    elif kind == "random":
        mask = torch.rand(queries, keys, generator=generator) < 0.5
        mask[torch.arange(queries), torch.randint(keys, (queries,), generator=generator)] = True
    elif kind == "padding":
        mask = (torch.arange(keys) < draw(st.integers(1, keys))).expand(queries, keys)
    head = initial_head(
        d_x, d_k, d_v, classes, generator, scale=draw(st.sampled_from([0.1, 1.0, 3.0])), dtype=torch.float64
    )
    inputs = torch.randn(*lead, queries, d_x, generator=generator, dtype=torch.float64)
    memory = torch.randn(*lead, keys, d_x, generator=generator, dtype=torch.float64) if cross else None
    targets = torch.randint(classes, (*lead, queries), generator=generator)
    return head, inputs, memory, mask, targets


def loss_of(scores, values, output, targets):
    return laws.cross_entropy(torch.softmax(scores, -1) @ values @ output, targets).sum()


def by_law(head, inputs, memory, mask, targets):
    trace = attend(*project(head, inputs, memory), mask)
    return laws.head_gradients(head, trace, inputs, laws.logit_gradient(trace.context @ head.output, targets), memory)


def by_autograd(head, inputs, memory, mask, targets):
    head = Head(*(tensor.clone().requires_grad_() for tensor in head))
    trace = attend(*project(head, inputs, memory), mask)
    return Head(*torch.autograd.grad(laws.cross_entropy(trace.context @ head.output, targets).sum(), head))


@examples
@given(cases())
def test_gradients_of_all_four_matrices_are_autograds(case):
    for law, exact in zip(by_law(*case), by_autograd(*case), strict=True):
        assert law.shape == exact.shape
        assert relative_error(law, exact) < FLOAT64 or (law - exact).abs().max() < 1e-14


@examples
@given(cases())
def test_gradients_of_scores_values_queries_and_keys_are_autograds(case):
    head, inputs, memory, mask, targets = case
    variables = [tensor.requires_grad_() for tensor in project(head, inputs, memory)]
    trace = attend(*variables, mask)
    trace.scores.retain_grad()
    trace.context.retain_grad()
    logits = trace.context @ head.output
    laws.cross_entropy(logits, targets).sum().backward()
    upstream = laws.logit_gradient(logits.detach(), targets) @ head.output.mT
    weights = trace.weights.detach()
    scores = laws.score_gradient(weights, upstream, variables[2].detach())
    pairs = {
        "upstream": (upstream, trace.context.grad),
        "scores": (scores, trace.scores.grad),
        "values": (laws.value_gradient(weights, upstream), variables[2].grad),
        "queries": (laws.query_gradient(scores, variables[1].detach()), variables[0].grad),
        "keys": (laws.key_gradient(scores, variables[0].detach()), variables[1].grad),
    }
    for name, (law, exact) in pairs.items():
        assert relative_error(law, exact) < FLOAT64 or (law - exact).abs().max() < 1e-14, name


@examples
@given(cases())
def test_float32_laws_err_no_more_than_twice_autograd_in_float32(case):
    """The baseline's own error is the yardstick: both round the same products, in another order. The floor of eight
    float32 roundings keeps a baseline that happens to be exact from asking the impossible."""
    head, inputs, memory, mask, targets = case
    truth = by_autograd(*case)
    single = (
        Head(*(t.float() for t in head)),
        inputs.float(),
        None if memory is None else memory.float(),
        mask,
        targets,
    )
    for law, baseline, exact in zip(by_law(*single), by_autograd(*single), truth, strict=True):
        assert law.dtype == torch.float32
        floor = 8 * torch.finfo(torch.float32).eps * float(exact.abs().max().clamp(min=1e-3))
        assert (law - exact).abs().max() <= 2 * (baseline - exact).abs().max() + floor


@settings(deadline=None, derandomize=True, max_examples=15)
@given(cases())
def test_gradients_are_central_differences(case):
    """Error of the quotient: h^2 times third derivatives, and rounding 1e-16 / h; both below 1e-6 at h = 1e-5 with
    weights of order one."""
    head, inputs, memory, mask, targets = case
    head = Head(*(tensor / tensor.abs().max().clamp(min=1) for tensor in head))
    gradients = by_law(head, inputs, memory, mask, targets)
    h = 1e-5
    for name in Head._fields:
        matrix, gradient = getattr(head, name), getattr(gradients, name)
        index = int(gradient.abs().argmax())
        ends = []
        for sign in (1, -1):
            moved = matrix.clone()
            moved.view(-1)[index] += sign * h
            shifted = head._replace(**{name: moved})
            trace = attend(*project(shifted, inputs, memory), mask)
            ends.append(laws.cross_entropy(trace.context @ shifted.output, targets).sum())
        quotient = (ends[0] - ends[1]) / (2 * h)
        assert abs(quotient - gradient.view(-1)[index]) < 1e-6 * max(1, float(gradient.abs().max()))


@examples
@given(cases())
def test_what_follows_from_the_score_law(case):
    head, inputs, memory, mask, targets = case
    trace = attend(*project(head, inputs, memory), mask)
    upstream = laws.logit_gradient(trace.context @ head.output, targets) @ head.output.mT
    compatibility = laws.compatibility(upstream, trace.values)
    gradient = laws.score_gradient(trace.weights, upstream, trace.values)
    scale = float(compatibility.abs().max()) + 1e-300
    assert (gradient.sum(-1).abs() < 1e-13 * scale).all(), "rows sum to zero"
    mean = laws.mean_compatibility(trace.weights, compatibility)
    assert torch.allclose(mean.squeeze(-1), (upstream * trace.context).sum(-1), rtol=0, atol=1e-12 * scale), (
        "E[b] = u.g"
    )
    shifted = trace.weights * laws.advantage(trace.weights, compatibility + 7.5)
    assert (shifted - gradient).abs().max() < 1e-13 * (scale + 7.5), "a constant of the row changes nothing"
    spread = compatibility.amax(-1, keepdim=True) - compatibility.amin(-1, keepdim=True)
    assert (gradient.abs() <= trace.weights * (1 - trace.weights) * spread + 1e-13 * scale).all(), (
        "bound by alpha (1 - alpha)"
    )
    if mask is not None:
        assert (gradient[..., ~mask] == 0).all(), "masked positions"
    assert torch.allclose(
        laws.responsibility(trace.weights).sum(-1),
        torch.full(trace.weights.shape[:-2], float(inputs.shape[-2]), dtype=torch.float64),
    )


def test_a_row_of_one_position_has_no_score_gradient():
    weights = torch.ones(3, 1, dtype=torch.float64)
    gradient = laws.score_gradient(
        weights, torch.randn(3, 2, dtype=torch.float64), torch.randn(1, 2, dtype=torch.float64)
    )
    assert (gradient == 0).all()


def test_several_heads_whose_logits_add_up():
    """A batch of sequences and four heads, against torch.nn.MultiheadAttention given the same weights."""
    generator = torch.Generator().manual_seed(0)
    heads, width, d_x, classes, length = 4, 3, 12, 5, 6
    stack = stack_heads(
        [initial_head(d_x, width, width, classes, generator, scale=1.0, dtype=torch.float64) for _ in range(heads)]
    )
    inputs = torch.randn(2, length, d_x, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (2, length), generator=generator)

    module = torch.nn.MultiheadAttention(d_x, heads, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.in_proj_weight.copy_(
            torch.cat([getattr(stack, name).transpose(-1, -2).reshape(-1, d_x) for name in ("query", "key", "value")])
        )
        module.out_proj.weight.copy_(torch.eye(d_x))
    output = stack.output.reshape(heads * width, classes)
    mixed, _ = module(inputs, inputs, inputs, attn_mask=~causal_mask(length), need_weights=False)
    loss = laws.cross_entropy(mixed @ output, targets).sum()
    (in_proj,) = torch.autograd.grad(loss, [module.in_proj_weight])

    trace = attend(*project(stack, inputs.unsqueeze(1)), causal_mask(length))  # (batch, heads, T, ...)
    logits = (trace.context @ stack.output).sum(1)
    assert torch.allclose(logits, mixed @ output, rtol=0, atol=1e-12)
    gradients = laws.head_gradients(
        stack, trace, inputs.unsqueeze(1), laws.logit_gradient(logits, targets).unsqueeze(1)
    )
    for name, exact in zip(("query", "key", "value"), in_proj.chunk(3), strict=True):
        law = getattr(gradients, name).transpose(-1, -2).reshape(-1, d_x)
        assert relative_error(law, exact) < FLOAT64


def test_softmax_jacobian_is_autograds():
    scores = torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = torch.stack([torch.autograd.functional.jacobian(lambda row: torch.softmax(row, -1), row) for row in scores])
    assert (laws.softmax_jacobian(torch.softmax(scores, -1)) - exact).abs().max() < 1e-15


def test_relative_error():
    assert laws.relative_error(torch.tensor([1.0, 5.0]), torch.tensor([1.0, -5.0])) == 2.0


def test_cross_entropy_is_torchs():
    generator = torch.Generator().manual_seed(2)
    logits, targets = torch.randn(3, 7, 4, generator=generator) * 30, torch.randint(4, (3, 7), generator=generator)
    exact = torch.nn.functional.cross_entropy(logits.mT, targets, reduction="none").mean(-1)
    assert torch.allclose(laws.cross_entropy(logits, targets), exact, rtol=1e-6)


W = torch.full((3, 4), 0.25)
U, V, B = torch.ones(3, 2), torch.ones(4, 2), torch.ones(3, 4)
LOGITS, TARGETS = torch.ones(3, 5), torch.tensor([0, 1, 4])
NAN = math.nan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: laws.cross_entropy(LOGITS, torch.tensor([0, 1, 5])),
            "targets must lie in 0..4, got values from 0 to 5",
        ),
        (lambda: laws.cross_entropy(LOGITS, torch.tensor([-1, 1, 2])), "targets must lie in 0..4"),
        (lambda: laws.cross_entropy(LOGITS, TARGETS[:2]), "targets must have the logits' shape without classes"),
        (lambda: laws.cross_entropy(LOGITS, TARGETS.float()), "targets must be a tensor of integers"),
        (lambda: laws.cross_entropy(LOGITS * NAN, TARGETS), "logits must be finite"),
        (lambda: laws.logit_gradient(LOGITS.long(), TARGETS), "logits must be a floating-point tensor"),
        (lambda: laws.softmax_jacobian(2 * W), "weights must have rows that sum to 1, got a row sum of 2"),
        (lambda: laws.compatibility(U, V[:, :1]), "values must have size 2 in dimension -1"),
        (lambda: laws.compatibility(U * NAN, V), "upstream must be finite"),
        (lambda: laws.compatibility(U[0], V), "upstream must have at least 2 dimensions"),
        (lambda: laws.mean_compatibility(W, B[:, :3]), "compatibility must have size 4 in dimension -1"),
        (lambda: laws.mean_compatibility(W, B[:2]), "compatibility must have size 3 in dimension -2"),
        (lambda: laws.advantage(-W, B), "weights must have no negative entries"),
        (lambda: laws.score_gradient(2 * W, U, V), "weights must have rows that sum to 1"),
        (lambda: laws.score_gradient(W, U, V[:3]), "compatibility must have size 4 in dimension -1"),
        (lambda: laws.value_gradient(W, U[:2]), "upstream must have size 3 in dimension -2"),
        (lambda: laws.value_gradient(W * NAN, U), "weights must be finite"),
        (lambda: laws.query_gradient(B, V[:3]), "keys must have size 4 in dimension -2"),
        (lambda: laws.query_gradient(B, V[:, :0]), "keys must have a width of at least 1, got 0"),
        (lambda: laws.key_gradient(B, V), "queries must have size 3 in dimension -2"),
        (lambda: laws.key_gradient(B, U * NAN), "queries must be finite"),
        (lambda: laws.compatibility(U.double(), V), "upstream and values must have one dtype"),
        (
            lambda: laws.score_gradient(W.expand(2, 3, 4), U.expand(5, 3, 2), V),
            "must have leading dimensions that broadcast",
        ),
        (lambda: laws.value_gradient(W, U.double()), "weights and upstream must have one dtype"),
        (lambda: laws.query_gradient(B, V.double()), "score_gradient and keys must have one dtype"),
        (lambda: laws.cross_entropy(LOGITS[:0], TARGETS[:0]), "logits must hold at least one position"),
        (lambda: laws.relative_error(U, V), "found must have the shape of exact"),
        (lambda: laws.relative_error([1.0], U), "found and exact must be tensors with at least one entry"),
        (lambda: laws.relative_error(U[:0], U[:0]), "found and exact must be tensors with at least one entry"),
        (lambda: laws.negative_log_likelihood(LOGITS, TARGETS + 99), "targets must lie in"),
        (lambda: laws.negative_log_likelihood(LOGITS, TARGETS[:1]), "targets must have the logits' shape without"),
        (lambda: laws.logit_gradient(LOGITS, TARGETS.int()), "targets must be a tensor of integers, torch.int64"),
        (lambda: laws.cross_entropy(LOGITS, TARGETS.to(torch.uint8)), "targets must be a tensor of integers"),
        (lambda: laws.responsibility(2 * W), "weights must have rows that sum to 1"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message.replace("..", r"\.\.")):
        call()


def test_head_gradients_refuses_what_does_not_fit():
    head = initial_head(4, 3, 2, 5, torch.Generator().manual_seed(0))
    inputs = torch.ones(6, 4)
    trace = attend(*project(head, inputs))
    good = torch.ones(6, 5)
    for arguments, message in (
        ((inputs[:5], good), "inputs must have size 6"),
        ((inputs, good[:, :4]), "logit_gradient must have size 5"),
        ((inputs, good, inputs[:5]), "memory must have size 6"),
        ((inputs * NAN, good), "inputs must be finite"),
        ((inputs[:, :3], good), "inputs must have size 4"),
        ((inputs, good.double()), "must have one dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            laws.head_gradients(head, trace, *arguments)
    for stranger, message in (
        (initial_head(4, 2, 2, 5, torch.Generator()), "queries must have size 2 in dimension -1"),
        (initial_head(4, 3, 3, 5, torch.Generator()), "values must have size 3 in dimension -1"),
        (Head(*(matrix.double() for matrix in head)), "must have one dtype"),
        (None, "head must be a Head, got NoneType"),
    ):
        with pytest.raises(ValueError, match=message):
            laws.head_gradients(stranger, trace, inputs, good)
    with pytest.raises(ValueError, match="trace must be a Trace, got NoneType"):
        laws.head_gradients(head, None, inputs, good)
