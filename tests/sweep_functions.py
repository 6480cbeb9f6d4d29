"""Functions for the tests of sweeps, in a file of their own, so that worker processes can import them: they look where
the process that starts them looks, and pytest puts this folder there."""

import math
import os
import signal
import time
from pathlib import Path

import torch

from attention_dynamics.sticky import SCHEDULES, sticky_problem, sticky_runs


def trained(seed: int, self_prob: float, schedules: list[str]) -> list[dict]:
    """A short real run: what the last bit of a table is tested on."""
    problem = sticky_problem([seed], length=150, self_prob=self_prob)
    runs = sticky_runs(problem, {name: SCHEDULES[name] for name in schedules}, 5, threads=1)
    return [
        {"schedule": name, "loss": float(run.loss[-1, 0]), "entropy": float(run.entropy[-1, 0])}
        for name, run in runs.items()
    ]


def counted(x: int, calls: str) -> list[dict]:
    """Leaves a file for each call, whichever process makes it."""
    (Path(calls) / f"{x}.{time.monotonic_ns()}").touch()
    return [{"square": x * x, "third": x / 3, "even": x % 2 == 0, "name": f"x{x}"}]


def fragile(x: int, calls: str) -> list[dict]:
    """`counted`, but x = 2 fails while there is a file `broken`."""
    rows = counted(x, calls)
    if x == 2 and (Path(calls) / "broken").exists():
        raise ArithmeticError("no square of two")
    return rows


def deadly(x: int, calls: str) -> list[dict]:
    """`counted`, but x = 2 kills its process while there is a file `deadly`, once two others have finished."""
    if x == 2 and (Path(calls) / "deadly").exists():
        while len(list(Path(calls).glob("[0-9]*"))) < 2:
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(x, calls)


def deadly_once(x: int, calls: str) -> list[dict]:
    """`counted`, but the first call of x = 2 that finds a file `deadly_once` removes it and kills its process."""
    if x == 2 and (Path(calls) / "deadly_once").exists():
        (Path(calls) / "deadly_once").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return counted(x, calls)


def slow(x: int, calls: str) -> list[dict]:
    """`counted`, after a while."""
    time.sleep(0.5)
    return counted(x, calls)


def interrupted(x: int, calls: str) -> list[dict]:
    """`counted`, but x = 2 is where the user loses patience, while there is a file `impatient`."""
    if x == 2 and (Path(calls) / "impatient").exists():
        raise KeyboardInterrupt
    return counted(x, calls)


def place(x: int) -> list[dict]:
    """In which process, and with how many threads."""
    time.sleep(0.2)
    return [{"process": os.getpid(), "threads": torch.get_num_threads()}]


def numbers(x: int) -> list[dict]:
    """Floats that a table of decimals would lose."""
    return [{"a": math.pi / x, "b": 5e-324, "c": math.inf, "d": math.nan, "e": -0.0, "f": 0.1 + 0.2}]


def wrong(kind: str) -> list[dict]:
    """What is no list of dicts with the same names."""
    return {
        "none": None,
        "empty": [],
        "texts": ["a"],
        "nameless": [{}],
        "number": [{1: 2}],
        "uneven": [{"a": 1}, {"a": 1, "b": 2}],
        "tensor": [{"a": torch.ones(1)}],
        "missing": [{"a": None}],
        "taken": [{"kind": "a"}],
        "error": [{"error": "a"}],
    }[kind]
