"""Every notebook parameter: its smoke value is allowed, and what it does not take is refused by name."""

import pytest

from attention_dynamics import parameters

TOO_BIG = 2**63
BAD = {
    "seed": [-1, 1.0, True, "x", None, [1], TOO_BIG],
    "seeds": [[], [1], [1, 1], [1, -2], [1, 2.0], [1, True], "42", 42, "false", "[]", None, [1, TOO_BIG]],
    "steps": [0, 9, -5, 100.0, True, "false", None, [100]],
    "length": [2, 2000.5, False, "long"],
    "self_prob": [1.5, -0.1, float("nan"), "true", True, None],
    "lr": [0, -0.2, float("inf"), "x", None],
    "lr_sgd": [0, 0.0, -0.01, float("inf"), float("nan"), "fast", True],
    "lr_value": [0, -1, float("nan"), "true", None],
    "length_controls": [19, 100.5, "long"],
    "length_grid": [0, None],
    "steps_grid": [9, "x"],
    "every": [0, 2.0, True],
    "rounds": [0, "many"],
    "grid": [[], [0.1], [0.1, 0.01], [0.1, 0.1], [0, 1], 0.1, [0.1, "x"], [0.1, float("inf")]],
    "noises": [[1.0], [2, 1], [-1.0, 1.0], "loud", None],
    "processes": [0, 1.5, True],
    "backend": ["", 3, None],
    "scheduler": [3, None],
    "results": ["", 3, None, True],
    "records": [3, None, False],
}


def test_the_table_above_has_every_parameter():
    assert set(BAD) == set(parameters.PARAMETERS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_what_a_parameter_does_not_take_is_refused(name, value):
    with pytest.raises(ValueError) as refusal:
        parameters.check(name, value)
    message = str(refusal.value)
    assert message == f"parameter {name} takes {parameters.PARAMETERS[name].takes}, got {value!r}"


@pytest.mark.parametrize("name", parameters.PARAMETERS)
def test_smoke_values_pass_their_own_check(name):
    smoke = parameters.PARAMETERS[name].smoke
    assert parameters.check(name, smoke) == smoke


def test_the_spelling_of_a_value_is_taken_for_it():
    assert parameters.checked(seeds="[1, 2,3]", steps="20", lr_value="3e-1", results="12") == [[1, 2, 3], 20, 0.3, "12"]
    assert parameters.check("lr_value", 1) == 1.0


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="unknown parameter fast: known are backend, every, grid, length"):
        parameters.checked(fast=False)
