"""Times on this machine: `python -m attention_dynamics.bench`, or `make bench`.

The sticky experiment (5 seeds, 2 schedules, 1000 steps) through the library, against the obvious way: autograd
through a materialised (T, T) attention matrix, one run after another. Then a sweep of short runs on one process and on
two, whose processes have started and loaded the library before the clock starts.
"""

import contextlib
import io
import tempfile
import time
from collections.abc import Callable

import torch

from attention_dynamics.attention import plain_causal_context
from attention_dynamics.sticky import SCHEDULES, SEEDS, sticky_problem, sticky_runs
from attention_dynamics.sweep import sweep

STEPS = 1000
SWEEP_RUNS, SWEEP_LENGTH, SWEEP_STEPS = 16, 500, 100


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


def short_run(seed: int, length: int, steps: int) -> list[dict[str, float]]:
    """One configuration of the sweep: plain SGD from one seed, on one thread; its final loss in nats."""
    (run,) = sticky_runs(sticky_problem([seed], length), {"sgd": SCHEDULES["sgd"]}, steps, threads=1).values()
    return [{"loss": float(run.loss[-1, 0])}]


def short_sweep(processes: int, runs: int = SWEEP_RUNS, length: int = SWEEP_LENGTH, steps: int = SWEEP_STEPS) -> None:
    """The sweep over `runs` seeds, nothing of it stored before, without its lines of progress."""
    configurations = [{"seed": seed, "length": length, "steps": steps} for seed in range(runs)]
    with tempfile.TemporaryDirectory() as store, contextlib.redirect_stdout(io.StringIO()):
        table = sweep(short_run, configurations, store, processes)
    if failed := [error for error in table["error"] if error]:
        raise RuntimeError(f"a run of the sweep failed: {failed[0]}")


def sweep_rate(processes: int) -> float:
    """Runs per second of the sweep on processes that are there already: the first, tiny sweep starts them."""
    short_sweep(processes, runs=2 * processes, steps=2)
    return SWEEP_RUNS / seconds(lambda: short_sweep(processes))


def main() -> None:
    """Print both times of the experiment, both rates of the sweep, and their ratios."""
    for warm_up in (fast_experiment, plain_experiment):
        warm_up(steps=10)
    fast, plain = seconds(fast_experiment), seconds(plain_experiment)
    print(f"torch {torch.__version__.split('+')[0]}, {len(SEEDS)} seeds x {len(SCHEDULES)} schedules x {STEPS} steps")
    print(f"fused path, all runs in one stack        {fast:8.1f} s")
    print(f"plain path, one run after another        {plain:8.1f} s")
    print(f"plain / fused                            {plain / fast:8.1f} x")
    one, two = sweep_rate(1), sweep_rate(2)
    print(f"sweep on 1 and on 2 processes {one:6.1f} and {two:.1f} runs/s {two / one:8.2f} x")


if __name__ == "__main__":
    from attention_dynamics import bench  # the same under a name that other processes can import

    bench.main()
