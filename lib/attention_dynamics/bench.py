"""Times on this machine: `python -m attention_dynamics.bench`, or `make bench`.

The sticky experiment (5 seeds, 2 schedules, 1000 steps) through the library, against the obvious way: autograd
through a materialised (T, T) attention matrix, one run after another.
"""

import time
from collections.abc import Callable

import torch

from attention_dynamics.attention import plain_causal_context
from attention_dynamics.sticky import SCHEDULES, SEEDS, sticky_problem, sticky_runs

STEPS = 1000


def seconds(work: Callable[[], object]) -> float:
    """Wall time of `work`, in seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain_experiment(steps: int = STEPS) -> None:
    """The whole experiment by the plain path, one seed and one schedule at a time."""
    for seed in SEEDS:
        problem = sticky_problem([seed])
        for name, sizes in SCHEDULES.items():
            sticky_runs(problem, {name: sizes}, steps, attention=plain_causal_context)


def fast_experiment(steps: int = STEPS) -> None:
    """The whole experiment by the library's path."""
    sticky_runs(sticky_problem(), SCHEDULES, steps)


def main() -> None:
    """Print both times and their ratio."""
    for warm_up in (fast_experiment, plain_experiment):
        warm_up(steps=10)
    fast, plain = seconds(fast_experiment), seconds(plain_experiment)
    print(f"torch {torch.__version__.split('+')[0]}, {len(SEEDS)} seeds x {len(SCHEDULES)} schedules x {STEPS} steps")
    print(f"fused path, all runs in one stack        {fast:8.1f} s")
    print(f"plain path, one run after another        {plain:8.1f} s")
    print(f"plain / fused                            {plain / fast:8.1f} x")


if __name__ == "__main__":
    main()
