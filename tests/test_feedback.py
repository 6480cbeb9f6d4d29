"""The toy simulation: its task, its measure of specialisation, and the coupling of routing and content."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_dynamics import feedback
from attention_dynamics.laws import cross_entropy, head_gradients, logit_gradient

SEEDS = [3, 4]


@settings(deadline=None, derandomize=True, max_examples=25)
@given(st.integers(2, 6), st.integers(1, 5), st.integers(2, 4), st.integers(0, 2**32))
def test_specialisation_is_the_mutual_information(n_queries, n_keys, n_classes, seed):
    """Against the sum over all (class, position) of p log(p / (p p)), from counted probabilities."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.softmax(3 * torch.randn(n_queries, n_keys, generator=generator, dtype=torch.float64), -1)
    targets = torch.randint(n_classes, (n_queries,), generator=generator)
    joint = {}
    for i, j in itertools.product(range(n_queries), range(n_keys)):
        key = (int(targets[i]), j)
        joint[key] = joint.get(key, 0) + float(weights[i, j]) / n_queries
    p_class = {c: sum(p for (k, _), p in joint.items() if k == c) for c in range(n_classes)}
    p_key = {j: sum(p for (_, k), p in joint.items() if k == j) for j in range(n_keys)}
    expected = sum(p * math.log(p / (p_class[c] * p_key[j])) for (c, j), p in joint.items() if p > 0)
    assert abs(float(feedback.specialisation(weights, targets, n_classes)) - expected) < 1e-12


def test_specialisation_at_its_ends():
    targets = torch.tensor([0, 0, 1, 1])
    divided = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert abs(float(feedback.specialisation(divided, targets, 2)) - math.log(2)) < 1e-6
    sharp_but_shared = torch.tensor([[0.0, 1, 0]]).expand(4, 3)
    assert float(feedback.specialisation(sharp_but_shared, targets, 2)) == 0


def test_the_task_is_what_it_says():
    task = feedback.competition(SEEDS)
    assert task.inputs.shape == (2, 16, 16) and task.memory.shape == (2, 8, 16)
    assert torch.bincount(task.targets[0]).tolist() == [4, 4, 4, 4]
    identity = torch.eye(4, dtype=torch.float64).expand(2, 4, 4)
    assert torch.allclose(task.head.output.mT @ task.head.output, identity, atol=1e-12)
    assert not torch.equal(task.inputs[0], task.inputs[1])
    alone = feedback.competition(SEEDS[1:])
    assert torch.equal(alone.memory[0], task.memory[1]) and torch.equal(alone.head.query[0], task.head.query[1])


def test_arms_freeze_what_they_name():
    task = feedback.competition(SEEDS)
    for name, sizes in feedback.arms(0.5).items():
        head = feedback.run_arm(task, sizes, 5).head
        assert torch.equal(head.output, task.head.output)
        assert (
            torch.equal(head.query, task.head.query)
            == torch.equal(head.key, task.head.key)
            == (name == "frozen_routing")
        )
        assert torch.equal(head.value, task.head.value) == (name == "frozen_values")


def test_forces_are_the_squared_gradients_of_the_laws():
    task = feedback.competition(SEEDS)
    found = feedback.forces(task, task.head)
    trace = feedback.forward(task, task.head)
    gradients = head_gradients(
        task.head, trace, task.inputs, logit_gradient(trace.context @ task.head.output, task.targets), task.memory
    )
    squares = [gradient.square().sum((-1, -2)) for gradient in gradients]
    assert torch.allclose(found.routing, squares[0] + squares[1], rtol=1e-10)
    assert torch.allclose(found.content, squares[2], rtol=1e-10)


def test_the_coupling_is_the_rate_at_which_each_side_changes_the_others_pull():
    """Central differences of the forces along the other side's descent direction; h = 1e-4 leaves h^2 and 1e-16 / h."""
    task = feedback.competition(SEEDS)
    head = feedback.run_arm(task, feedback.arms(0.2)["free"], 40).head
    trace = feedback.forward(task, head)
    gradients = head_gradients(
        head, trace, task.inputs, logit_gradient(trace.context @ head.output, task.targets), task.memory
    )
    coupling = feedback.forces(task, head).coupling
    h = 1e-4
    for names, side in ((("value",), "routing"), (("query", "key"), "content")):
        ends = [
            getattr(
                feedback.forces(
                    task, head._replace(**{n: getattr(head, n) - sign * h * getattr(gradients, n) for n in names})
                ),
                side,
            )
            for sign in (1, -1)
        ]
        rate = (ends[0] - ends[1]) / (4 * h)
        assert torch.allclose(rate, coupling, rtol=1e-5, atol=1e-9), side


def test_values_move_in_as_many_dimensions_as_classes_less_one():
    task = feedback.competition(SEEDS)
    for sizes in (feedback.arms(0.2)["free"], feedback.arms(0.2)["frozen_routing"]):
        run = feedback.run_arm(task, sizes, 100)
        moved = feedback.forward(task, run.head).values - feedback.forward(task, task.head).values
        spectrum = torch.linalg.svdvals(moved)
        assert (spectrum[:, 3] < 1e-12 * spectrum[:, 0]).all() and (spectrum[:, 2] > 1e-3 * spectrum[:, 0]).all()
        assert (
            cross_entropy(feedback.forward(task, run.head).context @ run.head.output, task.targets) < run.loss[0]
        ).all()


W = torch.full((3, 4), 0.25)
TASK = feedback.competition([1])
WIDE = TASK.head._replace(output=torch.cat([TASK.head.output] * 2, -2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: feedback.competition([]), "seeds must hold at least one seed"),
        (lambda: feedback.arms(-1.0), "step size of query must lie in"),
        (
            lambda: feedback.specialisation(2 * W, torch.zeros(3, dtype=torch.long), 2),
            "weights must have rows that sum to 1",
        ),
        (lambda: feedback.competition([1, 1]), "seeds must hold at least one seed and none twice"),
        (lambda: feedback.specialisation(W, torch.zeros(3, dtype=torch.long), 2.5), "n_classes must be an integer"),
        (lambda: feedback.run_arm(feedback.competition([1]), 0.1, 3), "step_sizes must be StepSizes"),
        (lambda: feedback.specialisation(W, torch.full((3,), 2), 2), r"targets must lie in 0\.\.1"),
        (
            lambda: feedback.specialisation(W[:0], torch.zeros(0, dtype=torch.long), 2),
            "weights must hold at least one query",
        ),
        (lambda: feedback.forward(TASK, None), "head must be a Head, got NoneType"),
        (
            lambda: feedback.forward(TASK, TASK.head._replace(key=TASK.head.value)),
            "key must have size 8 in dimension -1",
        ),
        (lambda: feedback.forces(TASK, WIDE), "output must have size 16 in dimension -2"),
        (lambda: feedback.forces(TASK, (1, 2)), "head must be a Head, got tuple"),
        (lambda: feedback.forces(TASK._replace(targets=TASK.targets + 1), TASK.head), "must lie in"),
        (lambda: feedback.run_arm(TASK, feedback.arms()["free"], -1), "steps must be an integer"),
        (lambda: feedback.specialisation(W, torch.zeros(4, dtype=torch.long), 2), r"targets must have shape \(3,\)"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
