"""Style and saving of figures. What they show is in `plots`."""

import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from attention_dynamics import paths
from attention_dynamics.checks import require_table
from attention_dynamics.claims import half_width
from attention_dynamics.paths import write_whole

# Okabe and Ito's colour-blind safe colours, named by the arms of the experiments; figures without arms borrow them.
COLOURS = {
    "sgd": "#0072B2",
    "em_like": "#D55E00",
    "control": "#009E73",
    "frozen_routing": "#CC79A7",
    "frozen_values": "#E69F00",
    "neutral": "#555555",
}
# Diverging for signed quantities (0 is white), sequential for attention weights.
SIGNED, SEQUENTIAL = "RdBu_r", "cividis"
BAND = "95 % t interval of the mean"
DISPLAY_WIDTH = 760  # pixels, the text width of a rendered notebook


def use_style() -> None:
    """Matplotlib's defaults with the project's matplotlibrc on top, whatever the user's own settings are."""
    plt.rcdefaults()
    plt.style.use(paths.root() / "matplotlibrc")


def save(figure: Figure, name: str, data: pd.DataFrame, folder: str | Path) -> Image:
    """Write `figure` to folder/name.pdf and .png and the plotted `data` to folder/name.csv; return it for display.

    The files hold no date and no version, so that the same figure gives the same bytes. Closes the figure.
    Raises ValueError, and writes nothing, for no figure, an empty table or a name that is no file's.
    """
    if not isinstance(figure, Figure):
        raise ValueError(f"figure must be a matplotlib Figure, got {type(figure).__name__}")
    if not isinstance(name, str) or not name or name != Path(name).name:
        raise ValueError(f"name must be a file name without a folder, got {name!r}")
    require_table("data", data)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    bitmap = io.BytesIO()
    figure.savefig(bitmap, format="png", metadata={"Software": None})
    vector = io.BytesIO()
    figure.savefig(vector, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    plt.close(figure)
    write_whole(folder / f"{name}.png", bitmap.getvalue())
    write_whole(folder / f"{name}.pdf", vector.getvalue())
    # Six digits: what a plot can show, and no more than another machine reproduces.
    table = data.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_whole(folder / f"{name}.csv", table.encode())
    return Image(bitmap.getvalue(), format="png", width=DISPLAY_WIDTH)


def mean_band(samples: np.ndarray) -> pd.DataFrame:
    """Columns mean, low, high of samples (S, R): the mean over R seeds and its 95 % interval by Student's t.

    `BAND` is what a legend says of it. Raises ValueError for fewer than two seeds.
    """
    samples = np.asarray(samples, dtype=float)
    if samples.ndim != 2 or samples.shape[1] < 2:
        raise ValueError(f"samples must have shape (S, R) with at least 2 seeds R, got {samples.shape}")
    if not np.isfinite(samples).all():
        raise ValueError("samples must be finite, got NaN or infinity")
    mean, half = samples.mean(1), half_width(samples)
    return pd.DataFrame({"mean": mean, "low": mean - half, "high": mean + half})


def write_cell(axes: Axes, image: AxesImage, row: int, column: int, text: str, value: float) -> None:
    """Write `text` into the cell of `image` that shows `value`, dark on light or light on dark."""
    red, green, blue, _ = image.cmap(image.norm(value))
    dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
    axes.text(column, row, text, ha="center", va="center", fontsize=7, color="white" if dark else "black")


def annotated_heatmap(axes: Axes, matrix, title: str, signed: bool, fmt: str = "{:.2f}", limit: float | None = None):
    """Draw `matrix` with its numbers in the cells; NaN cells are blank. Returns the image, for a colour bar.

    signed: centre the colours at zero. limit: largest absolute value of the colour scale, default the matrix's own.
    """
    matrix = np.asarray(matrix, dtype=float)
    if matrix.ndim != 2 or np.isinf(matrix).any() or np.isnan(matrix).all():
        raise ValueError(f"matrix must have 2 dimensions, a number and no infinity, got shape {matrix.shape}")
    limit = float(abs(matrix[matrix == matrix]).max()) if limit is None else limit
    limit = limit or 1.0
    image = axes.imshow(matrix, cmap=SIGNED if signed else SEQUENTIAL, vmin=-limit if signed else 0, vmax=limit)
    for (row, column), value in ((index, matrix[index]) for index in zip(*(matrix == matrix).nonzero(), strict=True)):
        write_cell(axes, image, row, column, fmt.format(value), value)
    axes.set(title=title, xticks=range(matrix.shape[1]), yticks=range(matrix.shape[0]))
    axes.grid(False)
    return image
