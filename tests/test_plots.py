"""The figures: what they return is what they draw, at small size, and no text is lost or drawn over the frame."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from attention_dynamics import feedback, figures
from attention_dynamics.attention import attend, causal_mask
from attention_dynamics.laws import advantage, compatibility, score_gradient
from attention_dynamics.plots import content
from attention_dynamics.plots import controls as control_plots
from attention_dynamics.plots import feedback as loop_plots
from attention_dynamics.plots import routing
from attention_dynamics.plots import sticky as sticky_plots
from attention_dynamics.sticky import SCHEDULES, sticky_problem, sticky_runs

GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(autouse=True)
def style():
    figures.use_style()
    yield
    plt.close("all")


def normal(*shape):
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def drawn(figure):
    """Draw it, as saving does: text that does not parse and layouts that fail raise here."""
    figure.canvas.draw()
    return figure


def test_routing_shows_the_allowed_pairs_and_only_them():
    mask, values, upstream = causal_mask(4), normal(4, 2), normal(4, 2)
    trace = attend(normal(4, 3), normal(4, 3), values, mask)
    b = compatibility(upstream, values)
    gradient = score_gradient(trace.weights, upstream, values)
    figure, data = routing.routing(trace.weights, b, advantage(trace.weights, b), gradient, mask)
    assert len(data) == 10 and len(drawn(figure).axes) == 8
    for row in data.itertuples():
        assert row.score_gradient == float(gradient[row.query, row.key]) and row.compatibility == float(
            b[row.query, row.key]
        )


def test_saturation_shows_sizes():
    gap = torch.linspace(-3, 3, 7)
    figure, data = routing.saturation(gap, torch.sigmoid(gap), -gap.abs() - 1, normal(7, 2).abs())
    drawn(figure)
    assert (data["score_gradient"] == gap.abs().numpy() + 1).all()


def test_first_order_draws_a_line_for_each_prediction():
    table = pd.DataFrame({"eta": [1.0, 0.1, 0.01], **{name: [1.0, 0.01, 1e-4] for name in content.LINES}})
    figure, data = content.first_order(table)
    axes = drawn(figure).axes[0]
    assert data is table or data.equals(table)
    assert np.allclose(axes.lines[0].get_ydata(), table["loss"]) and len(axes.lines) == len(content.LINES) + 2


def test_learning_curves_hold_the_band_of_each_schedule():
    problem = sticky_problem([1, 2, 3], length=40)
    runs = sticky_runs(problem, SCHEDULES, 25)
    for paper in ({}, {"loss": {"sgd": 2.0}}):
        figure, data = sticky_plots.learning_curves(runs, 1.8, paper)
        texts = [text.get_text() for legend in drawn(figure).legends for text in legend.get_texts()]
        assert ("paper's final number" in texts) == bool(paper), "no circle, no word of one"
    last = data[(data.metric == "loss") & (data.schedule == "sgd") & (data.step == 25)]
    assert abs(float(last["mean"].iloc[0]) - float(runs["sgd"].loss[-1].mean())) < 1e-6
    assert sorted(data.step.unique()) == [0, 10, 20, 25]
    figure, data = sticky_plots.speed_curve(runs, 2.0)
    assert set(drawn(figure).axes[0].lines[0].get_ydata()) <= set(runs["sgd"].loss[:, 0].numpy())


def test_value_trajectories_take_a_value_that_does_not_move():
    paths = {"sgd": normal(3, 4, 5), "em_like": normal(1, 4, 5).expand(3, 4, 5)}
    figure, data, explained = sticky_plots.value_trajectories(paths, [0, 1, 2])
    drawn(figure)
    assert len(data) == 2 * 4 * 3 and 0 < explained.sum() <= 1
    still = data[(data.schedule == "em_like") & (data.symbol == 0)]
    assert np.ptp(still.pc1) < 1e-9 and np.ptp(still.pc2) < 1e-9


def test_the_figures_of_the_loop():
    task = feedback.competition([0, 1])
    steps = [0, 5, 10]
    runs = {name: feedback.run_arm(task, sizes, 10, steps) for name, sizes in feedback.arms(0.5).items()}
    traces = {name: [feedback.forward(task, run.snapshots[step]) for step in steps] for name, run in runs.items()}
    weights = {name: torch.stack([trace.weights[0] for trace in path]) for name, path in traces.items()}
    figure, data = loop_plots.heatmaps(weights, steps, task.targets[0])
    drawn(figure)
    one = data[(data.arm == "free") & (data.step == 10) & (data["query"] == 3)]
    assert abs(one.weight.sum() - 1) < 1e-12
    losses = {"loss (nats)": {name: run.loss[steps] for name, run in runs.items()}}
    figure, data = loop_plots.loop(losses, steps, {"loss (nats)": 1.4})
    drawn(figure)
    assert np.allclose(data[data.arm == "free"]["mean"], runs["free"].loss[steps].mean(-1))
    values = {name: torch.stack([trace.values[0] for trace in traces[name]]) for name in ("free", "frozen_routing")}
    users = {name: torch.arange(8) % 4 for name in values}
    figure, data = loop_plots.value_paths(values, users, steps)
    assert len(drawn(figure).axes) == 2 and len(data) == 2 * 8 * 3
    figure, data = loop_plots.coupling(normal(3, 2), normal(3, 2).abs() + 1, steps)
    drawn(figure)
    assert set(data.share_positive) <= {0, 0.5, 1}


LONG = torch.zeros(4, dtype=torch.long)
M = torch.full((4, 4), 0.25, dtype=torch.float64)
PATHS = {"free": normal(3, 4, 5)}
DRAWINGS = {
    "routing": (lambda **k: routing.routing(**{**dict.fromkeys(routing.PANELS, M), "mask": M > 0} | k)),
    "saturation": lambda **k: routing.saturation(
        **{"gap": M[0], "weight": M[0], "score_gradient": M[0], "value_gradients": M[:, :2]} | k
    ),
    "value_step": lambda **k: content.value_step(
        **{"path": normal(2, 4, 2), "pulls": normal(3, 4, 2), "classes": normal(3, 2), "weights": normal(3, 4).abs()}
        | k
    ),
    "heatmaps": lambda **k: loop_plots.heatmaps(
        **{"weights": {"free": M.expand(2, 4, 4)}, "steps": [0, 1], "targets": LONG} | k
    ),
    "value_paths": lambda **k: loop_plots.value_paths(
        **{"paths": PATHS, "users": {"free": LONG}, "steps": [0, 1, 9]} | k
    ),
    "loop": lambda **k: loop_plots.loop(
        **{"curves": {"loss": {"free": normal(3, 2)}}, "steps": [0, 1, 9], "highest": {}} | k
    ),
    "coupling": lambda **k: loop_plots.coupling(
        **{"relative": normal(3, 2), "specialisation": normal(3, 2).abs() + 1, "steps": [0, 1, 9]} | k
    ),
    "value_trajectories": lambda **k: sticky_plots.value_trajectories(
        **{"values": {"sgd": normal(3, 4, 5)}, "steps": [0, 1, 9]} | k
    ),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_drawing_takes_the_smallest_good_input(name):
    drawn(DRAWINGS[name]()[0])


def test_a_value_that_is_not_pulled_is_drawn_too():
    drawn(DRAWINGS["value_step"](pulls=torch.zeros(3, 4, 2))[0])


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("routing", {"weights": M[:3]}, r"compatibility must have shape \(queries, keys\) with queries = 3"),
        ("routing", {"advantage": M * torch.nan}, "advantage must be finite"),
        ("routing", {"mask": M < 0}, r"mask must be a boolean tensor of shape \(4, 4\) with a True entry"),
        ("routing", {"mask": M}, "mask must be a boolean tensor"),
        ("saturation", {"value_gradients": M}, r"value_gradients must have shape \(G, 2\) with G = 4, got \(4, 4\)"),
        ("saturation", {"gap": [1.0]}, "gap must be a floating-point tensor, got list"),
        ("value_step", {"pulls": normal(2, 4, 2)}, r"pulls must have shape \(3, values, 2\) with values = 4"),
        ("value_step", {"weights": normal(3, 5)}, r"weights must have shape \(3, values\)"),
        ("heatmaps", {"weights": {}}, "weights must be named among free, .* got none"),
        ("heatmaps", {"steps": [0]}, r"steps must be 2 increasing integers of at least 0, got \[0\]"),
        ("heatmaps", {"targets": torch.tensor([0, 1, 0, 1])}, "targets must be sorted"),
        ("heatmaps", {"targets": LONG[:2]}, "targets must have size 4 in dimension 0"),
        ("heatmaps", {"targets": LONG - 1}, r"targets must lie in 0\.\.3"),
        ("value_paths", {"paths": {"other": PATHS["free"]}}, "paths must be named among free, .* got other"),
        ("value_paths", {"users": {}}, "users must hold the arms free, got none"),
        ("value_paths", {"users": {"free": LONG + 4}}, r"users\['free'\] must lie in 0\.\.3"),
        ("value_paths", {"steps": [0, 5, 5]}, "steps must be 3 increasing integers"),
        ("loop", {"curves": {}}, "curves must hold at least one measure"),
        ("loop", {"curves": {"loss": {"free": normal(3, 1)}}}, "at least 2 seeds"),
        ("loop", {"curves": {"loss": {"free": normal(2, 2)}}}, "steps must be 2 increasing"),
        ("coupling", {"specialisation": normal(3, 4)}, "specialisation must have shape"),
        ("coupling", {"specialisation": torch.zeros(3, 2)}, "specialisation must end above zero"),
        ("saturation", {"score_gradient": 0 * M[0]}, "score_gradient must not vanish everywhere"),
        ("coupling", {"relative": normal(3, 2) * torch.inf}, "relative must be finite"),
        ("value_trajectories", {"values": {"sgd": normal(3, 4)}}, r"values\['sgd'\] must have shape \(S, n, d_v\)"),
        ("value_trajectories", {"values": {"sgd": normal(3, 4, 5), "em_like": normal(2, 4, 5)}}, "with S = 3"),
    ],
)
def test_each_drawing_refuses_bad_input_and_opens_no_figure(name, bad, message):
    with pytest.raises(ValueError, match=message):
        DRAWINGS[name](**bad)


def test_tables_and_runs_are_checked():
    with pytest.raises(ValueError, match="table must be a pandas data frame"):
        content.first_order([1])
    with pytest.raises(ValueError, match="table must have the columns eta, loss"):
        content.first_order(pd.DataFrame({"eta": [1.0]}))
    with pytest.raises(ValueError, match="table must hold positive numbers"):
        content.first_order(pd.DataFrame({"eta": [1.0], **{name: [0.0] for name in content.LINES}}))
    with pytest.raises(ValueError, match="runs must be named among sgd, .* got adam"):
        sticky_plots.learning_curves({"adam": None}, 1.8, {})
    with pytest.raises(ValueError, match="every must be an integer of at least 1, got 0"):
        sticky_plots.learning_curves({"sgd": None}, 1.8, {}, every=0)
    with pytest.raises(ValueError, match="runs must hold sgd and em_like, got sgd"):
        sticky_plots.speed_curve({"sgd": None}, 2.0)


def curves(schedules):
    """Rows of training curves for two seeds and three steps."""
    return pd.DataFrame(
        {"schedule": name, "seed": seed, "step": step}
        | {
            f"{data}_{score}": 2.0 - step / 100 + seed
            for data in ("train", "fresh")
            for score in ("loss", "divergence")
        }
        for name in schedules
        for seed in (0, 1)
        for step in (0, 10, 20)
    )


def frame(*columns, rows=2):
    return pd.DataFrame({column: np.arange(rows) + 1.0 for column in columns})


ENDS = [f"{name}{end}" for name in ("final", "best", "reached") for end in ("", "_low", "_high")]
CONTROL_DRAWINGS = {
    "means_of_five": lambda: control_plots.means_of_five(frame("sgd", "em_like", rows=9), {"sgd": 2.0}),
    "differences": lambda: control_plots.differences(
        frame("difference", "mean", "low", "high").assign(variant="a", sequence="train", seed=[1, 2])
    ),
    "held_out": lambda: control_plots.held_out(curves(["sgd", "control"]), {"filter": 1.8, "uniform": 2.1}),
    "allocations": lambda: control_plots.allocations(frame(*ENDS).assign(allocation=["V", "O"]), 1.9),
    "speed": lambda: control_plots.speed(
        frame("budget", "mean", "low", "high", rows=4).assign(measure=["steps", "moved"] * 2, schedule="em_like"),
        (2.0, 2.3),
    ),
    "alternation": lambda: control_plots.alternation(
        frame("update", "train_loss", "fresh_loss").assign(way=["literal", "EM-like"])
    ),
    "memory": lambda: control_plots.memory(
        frame(
            "noise",
            "entropy",
            "spread",
            *(f"{n}{e}" for n in ("memoryless", "linear", "head") for e in ("", "_low", "_high")),
        )
    ),
}


@pytest.mark.parametrize("name", CONTROL_DRAWINGS)
def test_the_figures_of_the_controls_are_drawn_and_give_their_data(name):
    figure, data = CONTROL_DRAWINGS[name]()
    assert drawn(figure).legends and len(data)


def test_held_out_holds_the_mean_over_seeds_of_both_sequences():
    _, data = control_plots.held_out(curves(["sgd"]), {"filter": 1.8})
    assert len(data) == 2 * 2 * 3
    row = data[(data.score == "loss") & (data.sequence == "fresh") & (data.step == 20)].iloc[0]
    assert row["mean"] == pytest.approx(2.3)  # 1.8 and 2.8
    assert row["high"] - row["mean"] == pytest.approx(12.706 * 0.5, rel=1e-3), "t quantile at one degree of freedom"


def test_the_plane_shows_each_cell_where_it_belongs_and_leaves_the_unmet_blank():
    table = pd.DataFrame(
        {
            "rest": [1.0, 10.0] * 2,
            "value": [1.0, 1.0, 10.0, 10.0],
            "best": [1.0, 2, 3, 4],
            "reached": [5.0, np.nan, 7, 8],
        }
    )
    figure, _ = control_plots.plane(table, {"one": (1.0, 10.0)})
    best, reached = drawn(figure).axes[:2]
    at = {(text.get_position(), text.get_text()) for text in best.texts}
    assert at == {((0, 0), "1.000"), ((1, 0), "2.000"), ((0, 1), "3.000"), ((1, 1), "4.000")}
    assert {text.get_text() for text in reached.texts} == {"5", "7", "8"}
    assert [patch.get_xy() for patch in best.patches] == [(-0.5, 0.5)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: control_plots.means_of_five(frame("sgd"), {}), "draws must have the columns sgd, em_like"),
        (lambda: control_plots.differences(frame("seed")), "table must have the columns variant, sequence"),
        (lambda: control_plots.held_out(curves(["adam"]), {}), "schedules must be named among sgd, .* got adam"),
        (lambda: control_plots.held_out(curves(["sgd"]), {"best": 1.0}), "floors must be named among uniform"),
        (lambda: control_plots.allocations([], 1.0), "table must be a pandas data frame"),
        (lambda: control_plots.plane(frame("rest", "value", "best"), {}), "table must have the columns .* reached"),
        (
            lambda: control_plots.plane(frame("rest", "value", "best", "reached"), {"far": (7.0, 1.0)}),
            "marked must hold points of the table, got far",
        ),
        (lambda: control_plots.speed(frame("budget"), None), "curves must have the columns measure"),
        (lambda: control_plots.alternation(frame("way")), "table must have the columns way, update"),
        (lambda: control_plots.memory(frame("noise")), "table must have the columns noise, entropy"),
    ],
)
def test_the_figures_of_the_controls_refuse_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
