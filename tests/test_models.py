"""The transformer: its record agrees with its fast path, it cannot see the future, and training is what it says."""

import pytest
import torch

from attention_dynamics import inference, models
from attention_dynamics.tasks import divergence

TASK = inference.associative_recall(4, 4, 8)


def made(seed=0):
    torch.manual_seed(seed)
    return models.Transformer(TASK, width=16).double()


def batch(seed=0, size=6):
    drawn = TASK.draw(size, torch.Generator().manual_seed(seed))
    return drawn._replace(inputs=drawn.inputs.double())


def test_the_record_agrees_with_the_fused_forward_pass():
    model, data = made(), batch()
    record = model.record(data.inputs)
    # float64; two ways to sum the same few products
    torch.testing.assert_close(record.log_probabilities, model(data.inputs), atol=1e-12, rtol=1e-10)
    assert len(record.traces) == len(record.outputs) == 2
    assert record.traces[0].keys.shape == (6, 2, 8, 8)
    torch.testing.assert_close(record.log_probabilities.exp().sum(-1), torch.ones(6, 8).double())


def test_what_comes_later_changes_nothing_before():
    model, data = made(), batch()
    changed = data.inputs.clone()
    changed[:, 5:] += 1
    now, then = model(data.inputs), model(changed)
    torch.testing.assert_close(now[:, :5], then[:, :5], atol=1e-12, rtol=0)
    assert (now[:, 5:] - then[:, 5:]).abs().max() > 1e-3


def test_residuals_add_up_without_perceptrons():
    """With the perceptrons' last layers zero, the residual is the embedding plus what each attention adds."""
    model = made()
    for block in model.blocks:
        torch.nn.init.zeros_(block.mlp[2].weight)
        torch.nn.init.zeros_(block.mlp[2].bias)
    record = model.record(batch().inputs)
    torch.testing.assert_close(record.residual, record.embedding + sum(record.outputs))


def visits(seed, steps, checkpoints, **options):
    seen = {}

    def visit(step, model):
        with torch.no_grad():
            seen[step] = model(batch(99, 64).inputs.float())

    models.train(TASK, seed, steps, checkpoints, visit, **options)
    return seen


def test_training_approaches_the_posterior_and_shuffled_targets_do_not():
    posterior = batch(99, 64).log_posterior
    gap = {
        shuffled: {
            step: float(divergence(posterior, log_p.double()).mean())
            for step, log_p in visits(0, 250, [0, 250], shuffled=shuffled, lr=1e-2).items()
        }
        for shuffled in (False, True)
    }
    assert gap[False][250] < 0.2 * gap[False][0]
    # Without targets to learn from, the best is a constant: the mean entropy that the sequence would have removed stays.
    assert gap[True][250] > 0.5 * gap[True][0]


def test_a_seed_repeats_itself_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first = visits(3, 5, [0, 2, 5])
    assert torch.equal(torch.rand(1), expected)
    second = visits(3, 5, [0, 2, 5])
    assert list(first) == [0, 2, 5] and all(torch.equal(first[step], second[step]) for step in first)
    assert not torch.equal(visits(4, 5, [5])[5], first[5])


def test_the_default_model_has_the_size_that_it_should():
    for task in inference.TASKS.values():
        count = sum(parameter.numel() for parameter in models.Transformer(task).parameters())
        assert 20_000 <= count <= 100_000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.Transformer(TASK, width=15), "width must be a multiple of the 2 heads, got 15"),
        (lambda: models.Transformer(TASK, layers=0), "layers must be an integer of at least 1, got 0"),
        (lambda: models.train(TASK, 0, 5, [6], print), r"checkpoints must lie in 0..5, got \[6\]"),
        (lambda: models.train(TASK, 0, 0, [0], print), "steps must be an integer of at least 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
