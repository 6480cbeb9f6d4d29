"""The parameters of the notebooks: one meaning, type and range for each name, and its value in a smoke run."""

import ast
import itertools
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError


@dataclass(frozen=True)
class Parameter:
    """`takes` says in words what `type` accepts; `smoke` is the value of a quick run of the same code."""

    type: Any
    takes: str
    smoke: Any


def _distinct(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("repeated seed")
    return seeds


_Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=2), AfterValidator(_distinct)]
_StepSize = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _increasing(numbers: list[float]) -> list[float]:
    if any(low >= high for low, high in itertools.pairwise(numbers)):
        raise ValueError("not increasing")
    return numbers


_Positive = Annotated[list[_StepSize], Field(min_length=2), AfterValidator(_increasing)]

PARAMETERS = {
    "seed": Parameter(Annotated[int, Field(ge=0, lt=2**63)], "an integer of at least 0", 0),
    "seeds": Parameter(_Seeds, "a list of at least two distinct integers, each at least 0", [42, 2024]),
    "steps": Parameter(Annotated[int, Field(ge=10)], "an integer of at least 10", 20),
    "length": Parameter(Annotated[int, Field(ge=3)], "an integer of at least 3, in symbols", 200),
    "length_controls": Parameter(Annotated[int, Field(ge=20)], "an integer of at least 20, in symbols", 100),
    "length_grid": Parameter(Annotated[int, Field(ge=20)], "an integer of at least 20, in symbols", 60),
    "steps_grid": Parameter(Annotated[int, Field(ge=10)], "an integer of at least 10", 10),
    "every": Parameter(Annotated[int, Field(ge=1)], "an integer of at least 1", 5),
    "rounds": Parameter(Annotated[int, Field(ge=1)], "an integer of at least 1", 2),
    "grid": Parameter(_Positive, "a list of at least two increasing finite numbers above 0", [0.01, 0.1]),
    "noises": Parameter(_Positive, "a list of at least two increasing finite numbers above 0", [1.0, 2.0]),
    "processes": Parameter(Annotated[int, Field(ge=1)], "an integer of at least 1", 1),
    "backend": Parameter(Annotated[str, Field(min_length=1)], "the name of a joblib backend", "loky"),
    "scheduler": Parameter(str, "the address of a dask scheduler, or ''", ""),
    "self_prob": Parameter(Annotated[float, Field(ge=0, le=1)], "a number in [0, 1]", 0.3),
    "lr": Parameter(_StepSize, "a finite number above 0", 0.2),
    "lr_sgd": Parameter(_StepSize, "a finite number above 0", 0.01),
    "lr_value": Parameter(_StepSize, "a finite number above 0", 0.1),
    "results": Parameter(Annotated[str, Field(min_length=1)], "a path of a folder to write to", "results"),
    "records": Parameter(str, "a path of a folder with claim records, or '' for the project's figures/", ""),
}


def checked(**values: Any) -> list[Any]:
    """The values, in order, each of its parameter's type and range.

    A text stands for the Python value it spells where the parameter is not a text itself, so that
    `papermill -p seeds "[1, 2]"` works. Raises ValueError naming the parameter and what it takes.
    """
    return [check(name, value) for name, value in values.items()]


def check(name: str, value: Any) -> Any:
    """`value` as parameter `name`, see `checked`."""
    if name not in PARAMETERS:
        raise ValueError(f"unknown parameter {name}: known are {', '.join(sorted(PARAMETERS))}")
    parameter = PARAMETERS[name]
    text = value
    if isinstance(value, str) and parameter.type is not str and not isinstance(parameter.smoke, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pass  # not the spelling of a value: refused below, as the text it is
    try:
        return TypeAdapter(parameter.type).validate_python(value, strict=True)
    except ValidationError:
        raise ValueError(f"parameter {name} takes {parameter.takes}, got {text!r}") from None
