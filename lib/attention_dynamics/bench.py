"""Times on this machine: `python -m attention_dynamics.bench`, or `make bench`.

The sticky experiment (5 seeds, 2 schedules, 1000 steps) through the library, against the obvious way: autograd
through a materialised (T, T) attention matrix, one run after another. Then a sweep of short runs on one process and on
two, whose processes have started and loaded the library before the clock starts; one round of the literal alternation
against one step of the EM-like schedule; and the growth of one step's time and memory with the length of the sequence.
"""

import contextlib
import io
import math
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import psutil
import torch

from attention_dynamics import THREADS, controls
from attention_dynamics.attention import fused_causal_context, initial_head, plain_causal_context
from attention_dynamics.laws import cross_entropy
from attention_dynamics.sticky import SCHEDULES, SEEDS, sticky_problem, sticky_runs
from attention_dynamics.sweep import sweep

STEPS = 1000
PATHS = {"fused": fused_causal_context, "plain": plain_causal_context}
LENGTHS = (1000, 2000, 4000, 8000, 16000)
ROUNDS, ALTERNATION_LENGTH = 5, 1000
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
    """Runs per second of the sweep on processes that are there already: the same sweep before starts them. A smaller
    one would not, since the first process to come up would do all of it."""
    short_sweep(processes)
    return SWEEP_RUNS / seconds(lambda: short_sweep(processes))


def alternation() -> None:
    """Some rounds of the literal alternation: solve for the values, then one gradient step on routing."""
    controls.alternated([0], 0.1, ROUNDS, ALTERNATION_LENGTH)


def simultaneous() -> None:
    """A hundred steps of the EM-like schedule on a sequence of the same length."""
    sticky_runs(sticky_problem([0], ALTERNATION_LENGTH), {"em_like": SCHEDULES["em_like"]}, 100)


def step_cost(path: str, length: int) -> tuple[float, float]:
    """Seconds of one training step, forward and backward, of one head on `length` positions by this path, and the MiB
    that it adds to this process at its peak. To be called in a process that has computed nothing yet."""
    torch.set_num_threads(THREADS)
    generator = torch.Generator().manual_seed(0)
    head = [matrix.unsqueeze(0).requires_grad_() for matrix in initial_head(20, 10, 15, 8, generator)]

    def step(length: int) -> None:
        inputs = torch.randn(1, length, 20, generator=generator)
        targets = torch.randint(8, (1, length), generator=generator)
        context = PATHS[path](*(inputs @ matrix for matrix in head[:3]))
        torch.autograd.grad(cross_entropy(context @ head[3], targets).sum(), head)

    step(64)
    peak = added_memory(lambda: step(length))
    return min(seconds(lambda: step(length)) for _ in range(2)), peak


def added_memory(work: Callable[[], object]) -> float:
    """MiB of memory that `work` adds to this process at its peak, by looking every half a millisecond. (The system's own
    record of the peak begins with the memory of the process that started this one.)"""
    process, over = psutil.Process(), threading.Event()
    samples = [process.memory_info().rss]

    def watch() -> None:
        while not over.wait(0.0005):
            samples.append(process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    over.set()
    watcher.join()
    return (max(samples) - samples[0]) / 2**20


def growth(path: str, lengths: tuple[int, ...] = LENGTHS) -> list[tuple[float, float]]:
    """`step_cost` at each length, each in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        return list(pool.map(step_cost, [path] * len(lengths), lengths))


def exponent(costs: list[float], lengths: tuple[int, ...] = LENGTHS) -> float:
    """The power of the length with which a cost grows, from the middle of the lengths to the last."""
    middle = len(lengths) // 2
    return math.log(costs[-1] / costs[middle]) / math.log(lengths[-1] / lengths[middle])


def main() -> None:
    """Print the times and rates, their ratios, and the growth of time and memory."""
    for warm_up in (fast_experiment, plain_experiment):
        warm_up(steps=10)
    fast, plain = seconds(fast_experiment), seconds(plain_experiment)
    print(f"torch {torch.__version__.split('+')[0]}, {len(SEEDS)} seeds x {len(SCHEDULES)} schedules x {STEPS} steps")
    print(f"fused path, all runs in one stack        {fast:8.1f} s")
    print(f"plain path, one run after another        {plain:8.1f} s")
    print(f"plain / fused                            {plain / fast:8.1f} x")
    one, two = sweep_rate(1), sweep_rate(2)
    print(f"sweep on 1 and on 2 processes {one:6.1f} and {two:.1f} runs/s {two / one:8.2f} x")
    turn, step = seconds(alternation) / ROUNDS, seconds(simultaneous) / 100
    print(f"alternation, a round; EM-like, a step  {turn:.3f} and {step:.4f} s {turn / step:8.0f} x")
    for path in PATHS:
        times, memory = zip(*growth(path), strict=True)
        for length, time_, peak in zip(LENGTHS, times, memory, strict=True):
            print(f"{path} path, one step, {length:6d} positions  {time_:8.3f} s {peak:8.0f} MiB")
        print(f"{path} path grows with length to the power  {exponent(times):6.2f} {exponent(memory):8.2f}")


if __name__ == "__main__":
    from attention_dynamics import bench  # the same under a name that other processes can import

    bench.main()
