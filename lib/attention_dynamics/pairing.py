"""A notebook and its text source: reading the source, and the one form in which an executed notebook is kept."""

import ast
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read_source(path: Path) -> NotebookNode:
    """The notebook that the text file `path` spells, in canonical form, without outputs. Raises ValueError, naming the
    file, for a text that is not UTF-8."""
    try:
        return canonical(jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8 text: {error}") from None


def canonical(notebook: NotebookNode) -> NotebookNode:
    """A copy without what differs between machines or runs: no times, paths, versions, kernel display names or
    random cell ids. Sources, tags, outputs and execution counts stay."""
    cells = []
    for number, cell in enumerate(notebook.cells, start=1):
        tags = cell.metadata.get("tags")
        kept = {"id": f"cell-{number:03d}", "metadata": {"tags": tags} if tags else {}}
        if cell.cell_type == "code":
            kept |= {"outputs": cell.get("outputs", []), "execution_count": cell.get("execution_count")}
        cells.append(NotebookNode(cell_type=cell.cell_type, source=cell.source, **kept))
    metadata = {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    return nbformat.from_dict({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


def to_bytes(notebook: NotebookNode) -> bytes:
    """The canonical file content of a notebook. Raises nbformat's ValidationError if it is not valid."""
    notebook = canonical(notebook)
    nbformat.validate(notebook)
    return (nbformat.writes(notebook).rstrip("\n") + "\n").encode()


def same_content(first: NotebookNode, second: NotebookNode) -> bool:
    """Whether two notebooks have the same cells: types, sources and tags, outputs aside."""
    return _content(first) == _content(second)


def _content(notebook: NotebookNode) -> list[tuple]:
    return [(cell.cell_type, cell.source, tuple(cell.metadata.get("tags", []))) for cell in notebook.cells]


def parameter_defaults(notebook: NotebookNode) -> dict[str, Any]:
    """Names and default values in the one cell tagged `parameters`.

    Raises ValueError unless there is exactly one such cell and it holds nothing but assignments of plain values.
    """
    tagged = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        raise ValueError(f"a notebook must have one cell tagged 'parameters', got {len(tagged)}")
    try:
        statements = ast.parse(tagged[0].source).body
    except SyntaxError as error:
        raise ValueError(f"the parameters cell must be Python, got a syntax error in line {error.lineno}") from None
    defaults = {}
    for statement in statements:
        try:
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            defaults[target.id] = ast.literal_eval(statement.value)
        except (AttributeError, ValueError, TypeError):
            raise ValueError(
                f"the parameters cell must hold assignments of plain values, got {ast.unparse(statement)!r}"
            ) from None
    return defaults
