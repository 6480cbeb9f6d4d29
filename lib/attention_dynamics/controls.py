"""What the sticky experiment leaves open: scores on fresh data against the best possible observer, baselines without
attention, and a literal alternation of its two steps. Functions of plain values that return rows, to be swept over."""

import numpy as np
import torch
from sklearn.linear_model import LogisticRegressionCV
from torch import Tensor

from attention_dynamics.attention import Head, attend, causal_mask, fused_causal_context, project
from attention_dynamics.checks import require_count, require_floating, require_number, require_size
from attention_dynamics.geometry import attention_entropy
from attention_dynamics.laws import cross_entropy, negative_log_likelihood
from attention_dynamics.sticky import Problem, sticky_problem, sticky_runs
from attention_dynamics.tasks import divergence, forward_filter, stationary_distribution
from attention_dynamics.training import StepSizes, predictive_entropy

# Added to a run's seed: the fresh sequence is drawn from one, the embeddings of its own from the other.
PENALTIES = np.logspace(-4, 0, 5)  # inverse strengths among which cross-validation chooses
FRESH, EMBEDDINGS = 10**6, 2 * 10**6
CONVERGED = 1e-6  # nats per unit of W_V


def problems(seeds: list[int], length: int, noise: float, own_embeddings: bool) -> dict[str, Problem]:
    """For each seed the sequence to train on ("train") and a fresh one from the same chain ("fresh").

    own_embeddings: drawn anew for each seed; else the protocol's own for all. Raises as `sticky_problem`.
    """
    embedding_seeds = [EMBEDDINGS + seed for seed in seeds] if own_embeddings else None
    return {
        name: sticky_problem([seed + shift for seed in seeds], length, noise=noise, embedding_seeds=embedding_seeds)
        for name, shift in (("train", 0), ("fresh", FRESH))
    }


def log_predictions(head: Head, inputs: Tensor) -> Tensor:
    """(R, T, C) log p of R heads on inputs (R, T, d_x), causal attention over the whole sequence."""
    context = fused_causal_context(inputs @ head.query, inputs @ head.key, inputs @ head.value)
    return torch.log_softmax(context @ head.output, -1)


def scores(log_probabilities: Tensor, problem: Problem, reference: Tensor) -> dict[str, Tensor]:
    """Means over positions, each (R,): loss and entropy in nats, accuracy as a fraction, and the divergence from
    `reference`, the filter's log prediction (R, T, C), in nats."""
    return {
        "loss": negative_log_likelihood(log_probabilities, problem.targets),
        "entropy": predictive_entropy(log_probabilities),
        "accuracy": (log_probabilities.argmax(-1) == problem.targets).double().mean(-1),
        "divergence": divergence(reference, log_probabilities).mean(-1),
    }


def trained(
    seeds: list[int],
    query: float,
    key: float,
    value: float,
    output: float,
    steps: int,
    every: int,
    length: int,
    noise: float = 1.0,
    own_embeddings: bool = False,
) -> list[dict]:
    """Train one head for each seed with these step sizes; a row for each seed and every `every`-th step and the last.

    Columns: seed, step, moved (length of the path of all four matrices so far, through the recorded points), attention
    (`attention_spread` on the training sequence) and each of `scores` on the training sequence and on the fresh one.
    Raises ValueError for arguments that their owners refuse.
    """
    require_count("every", every, 1)
    data = problems(seeds, length, noise, own_embeddings)
    references = filters(data, noise)
    recorded = sorted({*range(0, steps, every), steps})
    sizes = StepSizes(query, key, value, output)
    run = sticky_runs(data["train"], {"run": sizes}, steps, recorded, threads=1)["run"]
    rows, moved, before = [], torch.zeros(len(seeds)), data["train"].head
    for step in recorded:
        head = run.snapshots[step]
        moved += sum((now - then).square().sum((-1, -2)) for now, then in zip(head, before, strict=True)).sqrt()
        before = head
        measured = {
            f"{name}_{score}": values
            for name, problem in data.items()
            for score, values in scores(log_predictions(head, problem.inputs), problem, references[name]).items()
        }
        attention = attention_spread(head, data["train"].inputs)
        rows += [
            {"seed": seed, "step": step, "moved": float(moved[r]), "attention": float(attention[r])}
            | {name: float(values[r]) for name, values in measured.items()}
            for r, seed in enumerate(seeds)
        ]
    return rows


def attention_spread(head: Head, inputs: Tensor) -> Tensor:
    """(R,) mean entropy of attention over the last tenth of the positions, as a fraction of uniform attention's: 1 for
    uniform, 0 for one position. inputs (R, T, d_x)."""
    length = inputs.shape[-2]
    last = slice(length - max(length // 10, 1), length)
    queries, keys, values = project(head, inputs)
    weights = attend(queries[..., last, :], keys, values, causal_mask(length)[last]).weights
    return (attention_entropy(weights) / torch.arange(1, length + 1)[last].log()).mean(-1)


def filters(data: dict[str, Problem], noise: float) -> dict[str, Tensor]:
    """The filter's log predictions (R, T, n) on each problem, in the problem's precision."""
    return {
        name: forward_filter(problem.inputs, problem.transition, problem.embeddings, noise).to(problem.inputs.dtype)
        for name, problem in data.items()
    }


def baselines(seeds: list[int], length: int, noise: float = 1.0, own_embeddings: bool = False) -> list[dict]:
    """Rows of predictors that do not attend, and of the filter: seed, predictor, spread, and `scores` on both sequences.

    filter: the floor. memoryless: the same observer with x_t alone. linear: softmax of x_t, with intercepts, its L2
    penalty by five-fold cross-validation on the training sequence. stationary: the chain's stationary distribution.
    uniform: 1/8 each. spread: standard deviation over positions of the entropy of the fresh prediction, nats.
    """
    data = problems(seeds, length, noise, own_embeddings)
    references = filters(data, noise)
    predictions = {
        "filter": references,
        "memoryless": {
            name: forward_filter(
                problem.inputs.unsqueeze(-2), problem.transition, problem.embeddings.unsqueeze(-3), noise
            )
            .squeeze(-2)
            .to(problem.inputs.dtype)
            for name, problem in data.items()
        },
        "linear": linear_softmax(data),
        "stationary": {
            name: stationary_distribution(problem.transition).log().expand_as(references[name])
            for name, problem in data.items()
        },
        "uniform": {name: torch.full_like(reference, 1 / 8).log() for name, reference in references.items()},
    }
    return [
        {"seed": seed, "predictor": predictor, "spread": float(entropies(predicted["fresh"])[r].std())}
        | {
            f"{name}_{score}": float(values[r])
            for name, problem in data.items()
            for score, values in scores(predicted[name], problem, references[name]).items()
        }
        for predictor, predicted in predictions.items()
        for r, seed in enumerate(seeds)
    ]


def linear_softmax(data: dict[str, Problem]) -> dict[str, Tensor]:
    """Log predictions (R, T, n) on each problem of a softmax that is linear in x_t, fitted to "train"."""
    predicted = {name: [] for name in data}
    for r in range(len(data["train"].inputs)):
        model = LogisticRegressionCV(
            Cs=PENALTIES, l1_ratios=(0,), cv=5, scoring="neg_log_loss", max_iter=1000, use_legacy_attributes=False
        ).fit(data["train"].inputs[r].numpy(), data["train"].targets[r].numpy())
        for name, problem in data.items():
            predicted[name].append(torch.from_numpy(model.predict_log_proba(problem.inputs[r].numpy())))
    return {name: torch.stack(rows).to(data[name].inputs.dtype) for name, rows in predicted.items()}


def entropies(log_probabilities: Tensor) -> Tensor:
    """(..., T) entropy of each prediction, in nats, from log p (..., T, C)."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


def alternated(seeds: list[int], routing: float, rounds: int, length: int, penalty: float = 0.0) -> list[dict]:
    """The two steps taken literally: `rounds` times, solve for the value matrix to convergence with attention and output
    matrix fixed, then one gradient step of size `routing` on query and key matrix.

    A row for each seed and each round, after its solve: seed, round, evaluations (of the solve so far), norm of W_V, and
    `scores` on both sequences. penalty: weight of |W_V|^2 / 2 in the solve; zero is the literal M-step. Raises ValueError
    for fewer than one round or a negative step size or penalty.
    """
    require_count("rounds", rounds, 1)
    require_number("routing", routing, 0, np.inf)
    require_number("penalty", penalty, 0, np.inf)
    data = problems(seeds, length, 1.0, False)
    references = filters(data, 1.0)
    rows = []
    for r, seed in enumerate(seeds):
        train = data["train"]
        inputs, targets = train.inputs[r : r + 1], train.targets[r : r + 1]
        head, evaluations = Head(*(matrix[r : r + 1] for matrix in train.head)), 0
        for turn in range(1, rounds + 1):
            features = fused_causal_context(inputs @ head.query, inputs @ head.key, inputs)  # attention applied to x
            value, spent = solve_values(features, targets, head, penalty)
            head, evaluations = head._replace(value=value), evaluations + spent
            row = {"seed": seed, "round": turn, "evaluations": evaluations, "norm": float(value.norm())}
            for name, problem in data.items():
                own = Problem(
                    *(tensor[r : r + 1] for tensor in problem[:2]), head, problem.embeddings, problem.transition
                )
                measured = scores(log_predictions(head, own.inputs), own, references[name][r : r + 1])
                row |= {f"{name}_{score}": float(values) for score, values in measured.items()}
            rows.append(row)
            query, key = (matrix.clone().requires_grad_() for matrix in (head.query, head.key))
            moving = head._replace(query=query, key=key)
            gradients = torch.autograd.grad(-chosen(log_predictions(moving, inputs), targets).mean(), (query, key))
            head = head._replace(query=head.query - routing * gradients[0], key=head.key - routing * gradients[1])
    return rows


def chosen(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """(..., T) log probability of each target."""
    return log_probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def solve_values(features: Tensor, targets: Tensor, head: Head, penalty: float) -> tuple[Tensor, int]:
    """The value matrix that minimises cross-entropy + penalty |W_V|^2 / 2, and the evaluations that it took.

    features (1, T, d_x): sum_j alpha_ij x_j, so that the logits are features @ W_V @ W_O and the problem is convex. By
    L-BFGS in float64 from the present W_V, until no entry of the gradient exceeds `CONVERGED`.
    """
    value = head.value.double().clone().requires_grad_()
    solver = torch.optim.LBFGS(
        [value],
        max_iter=500,
        tolerance_grad=CONVERGED,
        tolerance_change=0,
        history_size=20,
        line_search_fn="strong_wolfe",
    )
    evaluations = 0

    def closure() -> Tensor:
        nonlocal evaluations
        evaluations += 1
        solver.zero_grad()
        loss = cross_entropy(features.double() @ value @ head.output.double(), targets).sum()
        loss = loss + penalty * value.square().sum() / 2
        loss.backward()
        return loss

    solver.step(closure)
    return value.detach().to(head.value.dtype), evaluations


def crossing(steps: Tensor, losses: Tensor, level: Tensor | float) -> Tensor:
    """(R,) the step at which each loss (S, R), recorded at `steps` (S,), first meets `level`, between records by linear
    interpolation; NaN for a run that never does. Raises ValueError for losses that do not match the steps or NaN."""
    require_floating("losses", losses)
    require_size("losses", losses, 0, len(steps), "one row for each step")
    below = losses <= level
    first = below.int().argmax(0)
    level = torch.as_tensor(level, dtype=losses.dtype).expand(losses.shape[-1])
    before = (first - 1).clamp(min=0)
    high, low = (losses.gather(0, index.unsqueeze(0)).squeeze(0) for index in (before, first))
    part = torch.where(first > 0, (high - level) / (high - low).where(first > 0, 1), 0)
    met = steps[before] + part * (steps[first] - steps[before])
    return torch.where(below.any(0), met, torch.nan)
