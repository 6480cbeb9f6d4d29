"""Gradient descent: one step by hand, frozen matrices, stacks of runs, threads, and what is refused."""

import math

import pytest
import torch
from scipy import stats

from attention_dynamics import THREADS
from attention_dynamics.attention import Head, attend, causal_mask, initial_head, project, stack_heads
from attention_dynamics.laws import cross_entropy, head_gradients, logit_gradient
from attention_dynamics.training import StepSizes, descend, predictive_entropy

LENGTH, CLASSES, RUNS = 12, 4, 3
GENERATOR = torch.Generator().manual_seed(3)
INPUTS = torch.randn(RUNS, LENGTH, 5, generator=GENERATOR, dtype=torch.float64)
TARGETS = torch.randint(CLASSES, (RUNS, LENGTH), generator=GENERATOR)
HEAD = stack_heads([initial_head(5, 3, 2, CLASSES, GENERATOR, scale=0.7, dtype=torch.float64) for _ in range(RUNS)])
SIZES = [StepSizes(0.1, 0.2, 0.3, 0.4), StepSizes(0.0, 0.0, 1.0, 0.5), StepSizes(0.5, 0.5, 0.0, 0.0)]


def logits_of(inputs):
    return lambda head: attend(*project(head, inputs), causal_mask(inputs.shape[-2])).context @ head.output


def run(steps=5, **changes):
    arguments = {"head": HEAD, "logits": logits_of(INPUTS), "targets": TARGETS, "step_sizes": SIZES, "steps": steps}
    return descend(**(arguments | changes))


def test_one_step_is_the_closed_form_step():
    done = run(steps=1)
    trace = attend(*project(HEAD, INPUTS), causal_mask(LENGTH))
    gradients = head_gradients(HEAD, trace, INPUTS, logit_gradient(trace.context @ HEAD.output, TARGETS))
    for name in Head._fields:
        rates = torch.tensor([getattr(sizes, name) for sizes in SIZES], dtype=torch.float64)[:, None, None]
        expected = getattr(HEAD, name) - rates * getattr(gradients, name)
        assert (getattr(done.head, name) - expected).abs().max() < 1e-14  # float64 rounding of one update


def test_the_record_is_before_each_step_and_after_the_last():
    done = run(steps=4, snapshots=[0, 2, 4])
    assert done.loss.shape == done.entropy.shape == done.accuracy.shape == (5, RUNS)
    assert sorted(done.snapshots) == [0, 2, 4]
    for step, head in {**done.snapshots, 4: done.head}.items():
        logits = logits_of(INPUTS)(head)
        assert torch.allclose(done.loss[step], cross_entropy(logits, TARGETS), rtol=0, atol=1e-14)
        assert torch.equal(done.accuracy[step], (logits.argmax(-1) == TARGETS).double().mean(-1))
        entropies = stats.entropy(torch.softmax(logits, -1).numpy(), axis=-1).mean(-1)
        assert torch.allclose(done.entropy[step], torch.from_numpy(entropies), rtol=0, atol=1e-13)
    assert all(torch.equal(a, b) for a, b in zip(done.snapshots[0], HEAD, strict=True))


def test_small_steps_lower_the_loss_and_zero_steps_freeze():
    done = run(steps=20)
    assert (done.loss[-1] < done.loss[0]).all()
    assert torch.equal(done.head.query[1], HEAD.query[1]) and torch.equal(done.head.key[1], HEAD.key[1])
    assert torch.equal(done.head.value[2], HEAD.value[2]) and torch.equal(done.head.output[2], HEAD.output[2])
    assert not torch.equal(done.head.value[1], HEAD.value[1])


def test_the_caller_keeps_what_it_passed():
    before = [tensor.clone() for tensor in HEAD]
    run(steps=3)
    assert all(torch.equal(a, b) and not b.requires_grad for a, b in zip(before, HEAD, strict=True))


def test_a_run_in_a_stack_is_the_run_alone():
    """To rounding in float64: matrix products of another batch size may add in another order."""
    together = run(steps=10, snapshots=[10])
    for r in range(RUNS):
        part = slice(r, r + 1)
        alone = run(
            steps=10,
            head=Head(*(t[part] for t in HEAD)),
            logits=logits_of(INPUTS[part]),
            targets=TARGETS[part],
            step_sizes=SIZES[part],
            snapshots=[10],
        )
        column = together.columns(part)
        for mine, theirs in (
            (column.loss, alone.loss),
            (column.entropy, alone.entropy),
            (column.accuracy, alone.accuracy),
            *zip(column.head, alone.head, strict=True),
            *zip(column.snapshots[10], alone.snapshots[10], strict=True),
        ):
            assert mine.shape == theirs.shape and (mine - theirs).abs().max() < 1e-12


def test_the_number_of_threads_outside_changes_nothing():
    before = torch.get_num_threads()
    try:
        records = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            records.append(run().loss)
            assert torch.get_num_threads() == threads
        assert torch.equal(*records)
        with pytest.raises(FloatingPointError):
            run(logits=lambda head: logits_of(INPUTS)(head) * math.inf)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_inside_the_number_of_threads_is_fixed():
    seen = []
    for threads in ({}, {"threads": 1}, {"threads": 3}):
        run(steps=0, logits=lambda head: seen.append(torch.get_num_threads()) or logits_of(INPUTS)(head), **threads)
    assert seen == [THREADS, 1, 3]


def test_a_loss_that_is_no_number_names_runs_and_step():
    step = iter(range(100))

    def logits(head):
        out = logits_of(INPUTS)(head)
        return torch.where(torch.tensor([False, True, False])[:, None, None], math.nan, out) if next(step) == 2 else out

    with pytest.raises(
        FloatingPointError, match=r"loss of run\(s\) \[1\] is not finite before step 2: smaller steps than StepSizes"
    ):
        run(logits=logits)


def test_predictive_entropy_of_extreme_logits():
    logits = torch.tensor([[[0.0, 0.0]], [[1000.0, -1000.0]]])
    entropy = predictive_entropy(torch.log_softmax(logits, -1))
    assert torch.allclose(entropy, torch.tensor([math.log(2), 0.0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: StepSizes(0.1, -0.1, 0.1, 0.1), "step size of key must lie in .0, inf. and be finite, got -0.1"),
        (lambda: StepSizes(0.1, 0.1, math.inf, 0.1), "step size of value must lie in .0, inf. and be finite"),
        (lambda: StepSizes(0.1, 0.1, 0.1, math.nan), "step size of output must lie in"),
        (lambda: StepSizes(0.1, "0.1", 0.1, 0.1), "step size of key must lie in"),
        (lambda: run(step_sizes=[0.1] * 3), "step_sizes must be StepSizes, got .'float', 'float', 'float'."),
        (lambda: run(logits=lambda head: logits_of(INPUTS)(head).detach()), "logits must be computed from the head"),
        (lambda: run(logits=lambda head: logits_of(INPUTS)(head)[:, :5]), r"logits must have shape \(3, 12, 4\), got"),
        (lambda: run(steps=-1), "steps must be an integer of at least 0, got -1"),
        (lambda: run(steps=2.0), "steps must be an integer"),
        (lambda: run(threads=0), "threads must be an integer of at least 1, got 0"),
        (lambda: run(step_sizes=SIZES[:2]), "step_sizes must have one entry for each of 3 runs, got 2"),
        (lambda: run(snapshots=[6]), r"snapshots must lie in 0\.\.5, got \[6\]"),
        (lambda: run(targets=TARGETS + 1), r"targets must lie in 0\.\.3, got values from 1 to 4"),
        (lambda: run(targets=TARGETS[:2]), "targets must have one row for each of 3 runs, got 2"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
