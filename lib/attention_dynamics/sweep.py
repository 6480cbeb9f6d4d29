"""Sweeps: a table of configurations in, a tidy table of results out, on as many processes as there are.

Each finished configuration is kept in a file whose name is a hash of all that its result depends on, so a sweep that
was interrupted goes on where it stopped, and a result of other code is never read.
"""

import copy
import functools
import hashlib
import importlib.util
import inspect
import json
import sys
import textwrap
import time
import types
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import pandas as pd
import torch
from IPython import get_ipython
from IPython.display import clear_output
from joblib.parallel import BACKENDS, EXTERNAL_BACKENDS, get_active_backend

from attention_dynamics.checks import require_count, require_names
from attention_dynamics.paths import write_whole
from attention_dynamics.training import fixed_threads

Plain = str | int | float
Configuration = dict[str, Plain | list[Plain]]
Rows = list[dict[str, Plain]]


class Task(NamedTuple):
    """One call of the function; `source` is the digest of the code that has to make it."""

    index: int
    function: Callable[..., Rows]
    configuration: Configuration
    source: str


class Outcome(NamedTuple):
    """What came of the task with this index: rows, or none and the error."""

    index: int
    rows: Rows
    error: str


def sweep(
    function: Callable[..., Rows],
    configurations: list[Configuration],
    store: Path | str,
    processes: int = 1,
    backend: str = "loky",
    scheduler: str = "",
) -> pd.DataFrame:
    """Call `function(**configuration)` for every configuration; the table of all rows, in the order given.

    function: at the module level of an imported file; gives a list of at least one dict from names to texts, numbers or
    truth values, all with the same names. Its result must depend on nothing but the configuration, and it finds torch
    with one thread: to stay with one, it passes `threads=1` on to `training.descend` or `sticky.sticky_runs`.
    configurations: distinct dicts with the same names; values are texts, numbers, truth values or lists of these.
    store: folder where each finished configuration is kept; what is there is not computed again. The names of its
    files hash the function's name, the configuration, all code of this library, the function's own file (not what
    that imports from elsewhere) and the version of torch. Whoever edits code restarts Python, as for any import.
    processes: how many work at a time; one is this very process. A dask cluster has its own number.
    backend: a backend of joblib by its name. One that cannot hand over results as they finish (multiprocessing) has
    them kept only at the end, and does not notice a dead worker. "dask" sends the work to the cluster whose scheduler
    has the address `scheduler`; its workers need this same code installed.

    Columns: the configuration but for the lists in it, the results, and `error`: "" or "ValueError: text" of a
    configuration that raised, whose results are NaN. It is tried again by the next call. The table is the same, bit
    for bit, for every number of processes and backend on like machines. In a notebook the cell's output is replaced by
    one line of progress, and at the end by a line without times.

    Raises ValueError for what is none of the above, ImportError for "dask" without its packages, and RuntimeError if
    a worker process died (under dask: if the scheduler gave a configuration up, after four workers had died of it;
    it recovers from fewer by itself). Finished configurations are kept then, and after an interruption.
    """
    _require_function(function)
    configurations = _require_configurations(configurations)
    require_count("processes", processes, 1)
    _require_backend(backend, scheduler)
    store = Path(store)
    store.mkdir(parents=True, exist_ok=True)
    source = source_digest(function, package_digest())
    files = [store / f"{_key(function, configuration, source)}.json" for configuration in configurations]
    outcomes = {index: Outcome(index, rows, "") for index, file in enumerate(files) if (rows := _stored(file))}
    tasks = [
        Task(index, function, configuration, source)
        for index, configuration in enumerate(configurations)
        if index not in outcomes
    ]
    begin = time.monotonic()
    try:
        # joblib warns of every early end, and what it warns of is reported here by an error or is none of the caller's.
        with (
            fixed_threads(1),
            warnings.catch_warnings(),
            closing(_finish(tasks, processes, backend, scheduler)) as done,
        ):
            warnings.filterwarnings("ignore", module=r"joblib\.")
            for outcome in done:
                if not outcome.error:
                    _keep(files[outcome.index], configurations[outcome.index], outcome.rows)
                outcomes[outcome.index] = outcome
                _show(f"{len(outcomes)} of {len(configurations)} runs, {time.monotonic() - begin:.1f} s")
    except BrokenExecutor as error:
        kept = sum(not outcome.error for outcome in outcomes.values())
        raise RuntimeError(
            f"a worker died; {kept} of {len(configurations)} runs are kept in {store}, run again for the rest"
        ) from error
    failed = sum(bool(outcome.error) for outcome in outcomes.values())
    _show(f"{len(configurations)} runs" + (f", {failed} failed" if failed else ""))
    return _table(configurations, [outcomes[index] for index in range(len(configurations))])


def _finish(tasks: list[Task], processes: int, backend: str, scheduler: str) -> Iterator[Outcome]:
    """The outcomes of the tasks as they finish, in any order. Raises BrokenExecutor if a worker died."""
    if not tasks:
        return
    if backend == "dask":
        yield from _finish_on_cluster(tasks, scheduler)
        return
    # loky sets the environment variables of its workers for it; the others have no such setting.
    inner = {"inner_max_num_threads": 1} if backend == "loky" else {}
    with joblib.parallel_config(backend=backend, n_jobs=processes, **inner):
        as_they_finish = get_active_backend()[0].supports_return_generator
        # One by one: tasks sent in a batch would come back, and be kept, only together.
        parallel = joblib.Parallel(return_as="generator_unordered" if as_they_finish else "list", batch_size=1)
    yield from parallel(joblib.delayed(_run)(task) for task in tasks)


def _finish_on_cluster(tasks: list[Task], scheduler: str) -> Iterator[Outcome]:
    """The same on a dask cluster. Not by joblib's own way to dask: that one waits for ever for a task that dask gave
    up, and computes here what it should send to a cluster of one worker."""
    from dask.distributed import Client, KilledWorker, as_completed  # an extra, not everyone has it

    try:
        client = Client(scheduler, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"scheduler must be the address of a running dask scheduler, got {scheduler!r} ({error})"
        ) from None
    with client:
        for future in as_completed([client.submit(_run, task, pure=False) for task in tasks], loop=client.loop):
            try:
                outcome = future.result()
            except KilledWorker as error:
                raise BrokenExecutor(str(error)) from error
            future.release()  # or the cluster would compute it again if the worker that has it died
            yield outcome


def _run(task: Task) -> Outcome:
    """Carry out one task, in whatever process; its error becomes part of the outcome."""
    torch.set_num_threads(1)  # of a worker process for good; of the calling process `sweep` puts it back
    try:
        if _loaded_digest(task.function) != task.source:
            raise RuntimeError("this process has loaded other code than there is now: restart Python and any workers")
        rows = task.function(**copy.deepcopy(task.configuration))
        _require_rows(rows, task.configuration)
        # What is kept and what is not have one form: numbers of another library become plain here, not once reread.
        return Outcome(task.index, json.loads(json.dumps(rows)), "")
    except Exception as error:  # whatever stops one configuration must not lose the others
        return Outcome(task.index, [], f"{type(error).__name__}: {error}")


def _digest(*parts: Any) -> str:
    """Hash of plain values, the same in every process and on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def package_digest() -> str:
    """Hash of every Python file of this library, as the files are now."""
    package = Path(__file__).resolve().parent
    files = {file.relative_to(package).as_posix(): file.read_bytes() for file in package.rglob("*.py")}
    return _digest(*[(name, hashlib.sha256(files[name]).hexdigest()) for name in sorted(files)])


# Taken when this process loads the library: the files may change later, the loaded code does not.
LOADED = package_digest()


def source_digest(function: Callable, package: str) -> str:
    """Hash of the code that a result depends on: the library's hash, the function's own file, the version of torch."""
    return _digest(package, hashlib.sha256(_file(function).read_bytes()).hexdigest(), str(torch.__version__))


@functools.cache
def _loaded_digest(function: Callable) -> str:
    """`source_digest` of what this process loaded: from the first call on, the function's file is not read again."""
    return source_digest(function, LOADED)


def _file(function: Callable) -> Path:
    """The file that defines `function`, under its decorators."""
    return Path(inspect.unwrap(function).__code__.co_filename)


def _key(function: Callable, configuration: Configuration, source: str) -> str:
    """The name under which the result of one configuration is kept."""
    return _digest(f"{function.__module__}.{function.__qualname__}", configuration, source)


def _keep(file: Path, configuration: Configuration, rows: Rows) -> None:
    """Write one result, whole or not at all. Its own hash tells damage, its name what it is of."""
    record = {"configuration": configuration, "rows": rows, "sha256": _digest(file.stem, rows)}
    write_whole(file, json.dumps(record).encode())


def _stored(file: Path) -> Rows | None:
    """The rows that were kept in `file`, or None if there are none or they are damaged. JSON keeps every bit of a
    float, as Python writes and reads it."""
    try:
        record = json.loads(file.read_bytes())
        return record["rows"] if record["sha256"] == _digest(file.stem, record["rows"]) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _table(configurations: list[Configuration], outcomes: list[Outcome]) -> pd.DataFrame:
    """One line for each row of each outcome, or for its error."""
    inputs = [name for name in configurations[0] if not any(isinstance(c[name], list) for c in configurations)]
    results = dict.fromkeys(name for outcome in outcomes for row in outcome.rows for name in row)
    lines = [
        {name: configuration[name] for name in inputs} | row | {"error": outcome.error}
        for configuration, outcome in zip(configurations, outcomes, strict=True)
        for row in outcome.rows or [{}]
    ]
    return pd.DataFrame(lines, columns=[*inputs, *results, "error"])


def _show(line: str) -> None:
    """Put `line` in the place of the cell's output; outside a notebook, print it."""
    if get_ipython() is not None:  # elsewhere clearing writes control characters, to standard error too
        clear_output(wait=True)
    print(line, flush=True)


def _short(value: Any) -> str:
    """What a value is, in part of a line."""
    return textwrap.shorten(repr(value), 80)


def _is_plain(value: Any) -> bool:
    return isinstance(value, Plain)


def _require_function(function: Callable) -> None:
    """Raise ValueError unless `function` is one that another process can find and whose source can be hashed."""
    plain = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__name__)
    module = sys.modules.get(getattr(function, "__module__", None))
    if (
        not isinstance(plain, types.FunctionType)
        or getattr(module, name, None) is not function
        or module.__name__ == "__main__"  # sent to another process as bare code, without its file
        or not _file(plain).is_file()
    ):
        raise ValueError(f"function must be a function at the module level of an imported file, got {name}")


def _require_configurations(configurations: list[Configuration]) -> list[Configuration]:
    """A copy of the configurations. Raise ValueError unless they are as `sweep` says."""
    if (
        not isinstance(configurations, list)
        or not configurations
        or not all(isinstance(c, dict) for c in configurations)
    ):
        raise ValueError(f"configurations must be a list of at least one dict, got {_short(configurations)}")
    names = list(configurations[0])
    if "error" in names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"configurations must have texts other than 'error' as names, got {names}")
    seen = set()
    for configuration in configurations:
        if set(configuration) != set(names):
            raise ValueError(f"configurations must all have the names {names}, got {list(configuration)}")
        for name, value in configuration.items():
            if not all(map(_is_plain, value if isinstance(value, list) else [value])):
                raise ValueError(
                    "configurations must hold texts, numbers, truth values or lists of these, "
                    f"got {name}={_short(value)}"
                )
        if _digest(configuration) in seen:
            raise ValueError(f"configurations must be distinct, got {_short(configuration)} twice")
        seen.add(_digest(configuration))
    return copy.deepcopy(configurations)


def _require_backend(backend: str, scheduler: str) -> None:
    """Raise ValueError for an unknown backend or one that does not go with `scheduler`, ImportError for no dask."""
    require_names("backend", [backend], sorted({*BACKENDS, *EXTERNAL_BACKENDS}))
    if backend == "dask" and not scheduler:
        raise ValueError("scheduler must be the address of a dask scheduler with backend 'dask', got ''")
    if backend != "dask" and scheduler:
        raise ValueError(f"scheduler must be '' with backend {backend!r}, got {scheduler!r}")
    if backend == "dask" and importlib.util.find_spec("distributed") is None:
        raise ImportError("backend 'dask' needs the extra of that name: pip install -e '.[dask]'")


def _require_rows(rows: Rows, configuration: Configuration) -> None:
    """Raise ValueError unless `rows` are what a function must give, under names that are no column yet."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"rows must be a list of at least one dict, got {_short(rows)}")
    names = list(rows[0])
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"rows must have texts as names, got {names}")
    if taken := {*configuration, "error"} & set(names):
        raise ValueError(f"rows must have names other than those of the configuration and 'error', got {sorted(taken)}")
    for row in rows:
        if set(row) != set(names):
            raise ValueError(f"rows must all have the names {names}, got {list(row)}")
        for name, value in row.items():
            if not _is_plain(value):
                raise ValueError(f"rows must hold texts, numbers or truth values, got {name}={_short(value)}")
