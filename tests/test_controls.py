"""The controls: each score against a calculation of its own, the M-step against another solver."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from attention_dynamics import controls
from attention_dynamics.attention import Head, attend, causal_mask, project
from attention_dynamics.laws import cross_entropy
from attention_dynamics.sticky import sticky_problem, sticky_runs
from attention_dynamics.training import StepSizes

SEEDS, LENGTH, STEPS, EVERY = [3, 4], 80, 25, 10
SIZES = {"query": 0.1, "key": 0.1, "value": 0.3, "output": 0.1}


@pytest.fixture(scope="module")
def rows():
    return controls.trained(SEEDS, **SIZES, steps=STEPS, every=EVERY, length=LENGTH, noise=1.5, own_embeddings=True)


@pytest.fixture(scope="module")
def data():
    return controls.problems(SEEDS, LENGTH, 1.5, True)


@pytest.fixture(scope="module")
def run(data):
    return sticky_runs(data["train"], {"run": StepSizes(**SIZES)}, STEPS, [0, 10, 20, 25])["run"]


def test_a_row_for_each_seed_and_record(rows):
    assert [(row["step"], row["seed"]) for row in rows] == [(s, seed) for s in (0, 10, 20, 25) for seed in SEEDS]


def test_training_is_that_of_the_experiment(rows, run):
    """Threads split sums otherwise, so float32 rounding carried through 25 steps: 1e-5."""
    for row in rows:
        r = SEEDS.index(row["seed"])
        assert row["train_loss"] == pytest.approx(float(run.loss[row["step"], r]), abs=1e-5)
        assert row["train_entropy"] == pytest.approx(float(run.entropy[row["step"], r]), abs=1e-5)
        assert row["train_accuracy"] == pytest.approx(float(run.accuracy[row["step"], r]), abs=0.02)


def test_fresh_scores_and_path_by_plain_attention(rows, run, data):
    fresh, moved = data["fresh"], torch.zeros(2)
    reference = controls.filters(data, 1.5)["fresh"]
    before = data["train"].head
    for step in (0, 10, 20, 25):
        head = run.snapshots[step]
        trace = attend(*project(head, fresh.inputs), causal_mask(LENGTH - 1))
        logits = trace.context @ head.output
        parts = [(now - then).flatten(1) for now, then in zip(head, before, strict=True)]
        moved, before = moved + torch.cat(parts, 1).norm(dim=1), head
        loss = cross_entropy(logits, fresh.targets)
        distributions = [torch.distributions.Categorical(logits=t.double()) for t in (reference, logits)]
        distance = torch.distributions.kl_divergence(*distributions).mean(-1)
        for r, row in enumerate(row for row in rows if row["step"] == step):
            assert row["fresh_loss"] == pytest.approx(float(loss[r]), abs=1e-5)
            assert row["fresh_divergence"] == pytest.approx(float(distance[r]), abs=1e-5)
            assert row["moved"] == pytest.approx(float(moved[r]), abs=1e-5)


def test_the_fresh_sequence_is_another_one_of_the_same_chain(data):
    train, fresh = data["train"], data["fresh"]
    assert torch.equal(train.embeddings, fresh.embeddings) and not torch.equal(train.embeddings[0], train.embeddings[1])
    assert not torch.equal(train.targets, fresh.targets)
    shared = controls.problems(SEEDS, LENGTH, 1.0, False)["train"]
    assert torch.equal(shared.inputs, sticky_problem(SEEDS, LENGTH).inputs), "the protocol's own data"


def test_attention_spread_is_one_for_uniform_and_that_of_the_full_matrix():
    problem = sticky_problem(SEEDS, 50)
    idle = problem.head._replace(query=torch.zeros_like(problem.head.query))
    assert torch.allclose(controls.attention_spread(idle, problem.inputs), torch.ones(2), atol=1e-6)
    head = problem.head._replace(query=20 * problem.head.query)
    weights = attend(*project(head, problem.inputs), causal_mask(49)).weights[:, 45:]
    expected = torch.stack([torch.special.entr(weights[:, i]).sum(-1) / math.log(46 + i) for i in range(4)]).mean(0)
    assert torch.allclose(controls.attention_spread(head, problem.inputs), expected, atol=1e-6)
    assert (expected < 0.9).all()


def test_baselines():
    table = {
        (row["predictor"], row["seed"]): row for row in controls.baselines(SEEDS, 400, noise=1.0, own_embeddings=False)
    }
    problem = controls.problems(SEEDS, 400, 1.0, False)["fresh"]
    for r, seed in enumerate(SEEDS):
        gap = problem.inputs[r].double().unsqueeze(1) - problem.embeddings[r].double()
        belief = torch.softmax(-gap.square().sum(-1) / 2, -1)
        by_hand = (belief @ problem.transition.double()).gather(1, problem.targets[r].unsqueeze(1)).log().mean()
        assert table["memoryless", seed]["fresh_loss"] == pytest.approx(-float(by_hand), abs=1e-5)
        assert table["uniform", seed]["fresh_loss"] == pytest.approx(math.log(8), abs=1e-6)
        assert table["stationary", seed]["train_loss"] == pytest.approx(math.log(8), abs=1e-5), "uniform in this chain"
        assert abs(table["filter", seed]["fresh_divergence"]) < 1e-6
        assert 0 < table["memoryless", seed]["fresh_divergence"] < table["linear", seed]["fresh_divergence"]
        assert table["linear", seed]["fresh_divergence"] < table["uniform", seed]["fresh_divergence"]


def test_the_solve_is_a_minimum_that_another_solver_finds():
    """With a penalty the minimum is unique: SciPy's BFGS, on a loss written anew, must come to the same matrix."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1, 60, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(4, (1, 60), generator=generator)
    matrices = [
        torch.randn(1, *shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (3, 2), (3, 5), (5, 4))
    ]
    head, penalty = Head(*matrices), 0.02
    value, evaluations = controls.solve_values(features, targets, head, penalty)

    def loss(entries):
        logits = features[0].numpy() @ entries.reshape(3, 5) @ head.output[0].numpy()
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return -log_p[np.arange(60), targets[0].numpy()].mean() + penalty * (entries**2).sum() / 2

    found = minimize(loss, np.zeros(15), method="BFGS", options={"gtol": 1e-7})
    assert np.abs(value[0].numpy().ravel() - found.x).max() < 1e-4 and evaluations > 1
    variable = value.clone().requires_grad_()
    whole = cross_entropy(features @ variable @ head.output, targets).sum() + penalty * variable.square().sum() / 2
    (gradient,) = torch.autograd.grad(whole, variable)
    assert gradient.abs().max() <= controls.CONVERGED


def test_alternation_solves_and_then_moves_routing_downhill():
    rows = controls.alternated([5], routing=0.1, rounds=3, length=60, penalty=0.01)
    assert [row["round"] for row in rows] == [1, 2, 3]
    losses = [row["train_loss"] + 0.01 * row["norm"] ** 2 / 2 for row in rows]
    assert losses[0] > losses[1] > losses[2], "each half lowers the penalised loss"
    assert rows[0]["evaluations"] < rows[1]["evaluations"] < rows[2]["evaluations"]
    assert controls.alternated([5], routing=0.1, rounds=1, length=60)[0]["train_loss"] < losses[0]


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(2, 8), st.floats(0, 1), st.integers(0, 2**32))
def test_crossing_is_the_inverse_of_interpolation(n, share, seed):
    """On falling curves: the loss that numpy interpolates at the crossing is the level."""
    generator = torch.Generator().manual_seed(seed)
    steps = (torch.rand(n, generator=generator, dtype=torch.float64) + 0.1).cumsum(0)
    losses = (torch.rand(n, 3, generator=generator, dtype=torch.float64) + 0.1).flip(0).cumsum(0).flip(0)
    level = float(losses[:, 0].min() + share * (losses[:, 0].max() - losses[:, 0].min()))
    met = controls.crossing(steps, losses, level)
    for r in range(3):
        if level < losses[-1, r]:
            assert math.isnan(float(met[r]))
        elif level >= losses[0, r]:
            assert met[r] == steps[0]
        else:
            assert np.interp(float(met[r]), steps, losses[:, r]) == pytest.approx(level)


def test_crossing_takes_the_first_of_several_and_a_level_for_each_run():
    steps = torch.tensor([0.0, 10.0, 20.0])
    losses = torch.tensor([[2.0, 2.0], [1.0, 3.0], [1.5, 1.0]])
    assert controls.crossing(steps, losses, torch.tensor([1.5, 2.0])).tolist() == [5.0, 0.0]
    assert controls.crossing(steps, losses, 1.5).tolist() == [5.0, 17.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: controls.trained([1], **SIZES, steps=5, every=0, length=30),
            "every must be an integer of at least 1, got 0",
        ),
        (lambda: controls.trained([1, 1], **SIZES, steps=5, every=1, length=30), "seeds must hold at least one seed"),
        (
            lambda: controls.trained([1], **SIZES, steps=5, every=1, length=30, noise=0.0),
            "noise must be positive, got 0",
        ),
        (lambda: controls.trained([1], **SIZES | {"value": -1.0}, steps=5, every=1, length=30), "step size of value"),
        (lambda: controls.baselines([], 30), "seeds must hold at least one seed"),
        (lambda: controls.alternated([1], 0.1, 0, 30), "rounds must be an integer of at least 1, got 0"),
        (lambda: controls.alternated([1], -0.1, 1, 30), "routing must lie in"),
        (lambda: controls.alternated([1], 0.1, 1, 30, -1.0), "penalty must lie in"),
        (lambda: controls.crossing(torch.arange(3.0), torch.ones(2, 2), 1.0), "losses must have size 3"),
        (lambda: controls.crossing(torch.arange(2.0), torch.ones(2, 2) * torch.nan, 1.0), "losses must be finite"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
