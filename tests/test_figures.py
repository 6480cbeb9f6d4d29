"""Saving: the same figure gives the same bytes, whole or not at all; the style is the project's alone."""

import time

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attention_dynamics import figures, paths

DATA = pd.DataFrame({"x": [1, 2], "y": [1 / 3, 2e-9]})


def picture():
    figures.use_style()
    figure, axes = plt.subplots()
    axes.plot([0, 1], [2, 3], label="line")
    axes.fill_between([0, 1], [1, 2], [3, 4], alpha=0.2)
    axes.legend()
    return figure


def test_the_same_figure_gives_the_same_bytes(tmp_path, monkeypatch):
    figures.save(picture(), "01_a", DATA, tmp_path / "one")
    time.sleep(1.1)  # PDF dates have a resolution of seconds
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    shown = figures.save(picture(), "01_a", DATA, tmp_path / "two")
    for ending in ("pdf", "png", "csv"):
        one, two = ((tmp_path / folder / f"01_a.{ending}").read_bytes() for folder in ("one", "two"))
        assert one == two
        assert b"Date" not in one and b"atplotlib" not in one
    assert shown.data == (tmp_path / "two" / "01_a.png").read_bytes(), "what the notebook shows is the file"
    assert (tmp_path / "one" / "01_a.csv").read_text(encoding="utf-8") == "x,y\n1,0.333333\n2,2e-09\n"
    assert not plt.get_fignums(), "saved figures are closed"


def test_a_failure_leaves_nothing_and_what_was_there(tmp_path, monkeypatch):
    figures.save(picture(), "01_a", DATA, tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    figure = picture()
    figure.axes[0].set_title("$\\nonsense{$")
    with pytest.raises(ValueError):
        figures.save(figure, "01_a", DATA, tmp_path)
    plt.close(figure)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(paths.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        paths.write_whole(tmp_path / "01_a.csv", b"half")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_the_users_own_style_has_no_say():
    plt.rcParams["lines.linewidth"] = 17
    plt.rcParams["font.size"] = 3
    figures.use_style()
    assert plt.rcParams["lines.linewidth"] == 1.6 and plt.rcParams["font.size"] == 9


def test_the_band_is_the_t_interval():
    samples = np.random.default_rng(0).normal(size=(4, 6))
    band = figures.mean_band(samples)
    for line, row in zip(band.itertuples(), samples, strict=True):
        interval = stats.ttest_1samp(row, 0).confidence_interval(0.95)
        assert np.allclose([line.mean, line.low, line.high], [row.mean(), interval.low, interval.high])
    for bad in (samples[0], samples[:, :1]):
        with pytest.raises(ValueError, match="samples must have shape"):
            figures.mean_band(bad)


def test_numbers_in_a_heat_map_stand_out_from_their_cell():
    figures.use_style()
    figure, axes = plt.subplots()
    figures.annotated_heatmap(axes, [[0.0, 1.0], [np.nan, 0.5]], "title", signed=False)
    assert [text.get_text() for text in axes.texts] == ["0.00", "1.00", "0.50"]
    assert axes.texts[0].get_color() == "white" and axes.texts[1].get_color() == "black"
    plt.close(figure)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"figure": None}, "figure must be a matplotlib Figure, got NoneType"),
        ({"name": "../01_a"}, "name must be a file name without a folder, got '../01_a'"),
        ({"name": ""}, "name must be a file name"),
        ({"data": {"x": [1]}}, "data must be a pandas data frame with at least one row, got dict"),
        ({"data": pd.DataFrame({"x": []})}, "data must be a pandas data frame with at least one row"),
    ],
)
def test_saving_refuses_bad_input_and_writes_nothing(change, message, tmp_path):
    good = {"figure": picture(), "name": "01_a", "data": DATA, "folder": tmp_path / "new"}
    with pytest.raises(ValueError, match=message):
        figures.save(**good | change)
    assert not list(tmp_path.rglob("*.*"))
    plt.close("all")
