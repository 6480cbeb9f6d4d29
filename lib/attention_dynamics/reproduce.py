"""Run the notebooks and regenerate what they write.

`python -m attention_dynamics.reproduce [NAMES] [--jobs N] [--smoke] [-p NAME VALUE] [--accept]`

A full run replaces notebooks/ and figures/, one notebook at a time and only once it is whole and its claims agree
with the committed ones. A smoke run, or one with own parameters, writes to results/ instead.
"""

import argparse
import ast
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
import psutil
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError

from attention_dynamics import THREADS, claims, pairing, parameters, paths

ENGINE = "attention_dynamics"
STAGING = ".reproduce-"  # beginning of the names of staging folders; the number of the process follows
README_MARKS = ("<!-- claims: begin (generated) -->", "<!-- claims: end -->")


class NotebookFailed(Exception):
    """A notebook did not run to its end, or gave what may not be kept; the text says where and why."""


class ProgressEngine(NBClientEngine):
    """Papermill's own engine, telling `on_cell(index)` before each cell."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, on_cell, **kwargs):
        start = nb_man.cell_start

        def cell_start(cell, cell_index=None, **details):
            on_cell(cell_index)
            return start(cell, cell_index, **details)

        nb_man.cell_start = cell_start
        return super().execute_managed_notebook(nb_man, kernel_name, **kwargs)


papermill_engines.register(ENGINE, ProgressEngine)


class SweepProgress(logging.Handler):
    """Of all that papermill logs as the notebooks' output, the lines in which a sweep tells how far it is."""

    def emit(self, record: logging.LogRecord) -> None:
        if re.fullmatch(r"\d+ of \d+ runs, [\d.]+ s", record.getMessage().strip()):
            print(f"    {record.getMessage().strip()}", flush=True)


logging.getLogger("papermill").setLevel(logging.INFO)
logging.getLogger("papermill").addHandler(SweepProgress())


@dataclass(frozen=True)
class Job:
    """One notebook to run: its name, its source, the parameters to inject."""

    name: str
    source: NotebookNode
    parameters: dict[str, Any]

    @property
    def number(self) -> str:
        return self.name.split("_")[0]

    @property
    def reads_records(self) -> bool:
        """Whether it reads what the other notebooks recorded, and so runs after them."""
        return "records" in pairing.parameter_defaults(self.source)


@dataclass(frozen=True)
class Destination:
    """Where a run writes. `committed`: these are the project's own folders, whose claims must come back."""

    notebooks: Path
    figures: Path
    committed: bool


def select(names: list[str]) -> list[str]:
    """The notebooks that `names` mean: a name or its number; all if empty. Raises ValueError for an unknown one."""
    known = sorted(path.stem for path in paths.notebooks().glob("[0-9][0-9]_*.py"))
    numbers = [name.split("_")[0] for name in known]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"notebooks must have distinct numbers, got {', '.join(known)}")
    chosen = set()
    for name in names:
        stem = Path(name).stem
        matches = [candidate for candidate in known if stem in (candidate, candidate.split("_")[0])]
        if not matches:
            raise ValueError(f"unknown notebook {name}: known are {', '.join(known)}")
        chosen.update(matches)
    return [name for name in known if name in chosen or not names]


def plan(names: list[str], overrides: dict[str, Any], smoke: bool, destination: Destination) -> list[Job]:
    """Read the sources and settle every parameter. Raises ValueError, before anything runs, for an unknown notebook
    or parameter and for a value of the wrong type or range."""
    sources = {name: pairing.read_source(paths.notebooks() / f"{name}.py") for name in select(names)}
    defaults = {}
    for name, source in sources.items():
        try:
            defaults[name] = pairing.parameter_defaults(source)
            parameters.checked(**defaults[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    taken = set().union(*defaults.values())
    for name in overrides:
        if name == "results":
            raise ValueError(f"parameter results is the runner's own: it writes to {destination.figures}")
        if name not in taken:
            raise ValueError(
                f"unknown parameter {name}: {', '.join(sources)} take {', '.join(sorted(taken - {'results'}))}"
            )
    settled = {name: parameters.PARAMETERS[name].smoke for name in taken - {"results"}} if smoke else {}
    if not destination.committed:
        settled["records"] = str(destination.figures)
    settled |= {name: parameters.check(name, value) for name, value in overrides.items()}
    if settled.get("records"):
        settled["records"] = str(Path(settled["records"]).absolute())  # the notebook runs in another folder
    return [
        Job(name, source, {key: value for key, value in settled.items() if key in defaults[name]})
        for name, source in sources.items()
    ]


def note_difference(job: Job, destination: Destination) -> None:
    """Say so if the committed notebook is not the twin of its source: an edit of the notebook alone is replaced."""
    twin = destination.notebooks / f"{job.name}.ipynb"
    if not (destination.committed and twin.exists()):
        return
    try:
        same = pairing.same_content(nbformat.read(twin, as_version=4), job.source)
    except Exception:  # whatever is there, it is no notebook
        same = False
    if not same:
        print(f"{job.name}: the notebook differs from its source {job.name}.py; the source runs", flush=True)


def run(job: Job, destination: Destination, accept: bool, on_cell: Callable[[int], None]) -> None:
    """Execute one notebook aside and, when it is whole, move its results and itself to `destination`.

    Raises NotebookFailed, leaving `destination` as it was.
    """
    staging = Path(tempfile.mkdtemp(prefix=f"{STAGING}{os.getpid()}-", dir=paths.root()))
    try:
        notebook = execute(job, staging, on_cell)
        results = staging / parameters.PARAMETERS["results"].smoke
        if destination.committed and not accept:
            refuse_deviations(job, results, destination)
        publish(job, notebook, results, destination)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the staging folders of runs that were killed."""
    for folder in paths.root().glob(f"{STAGING}*-*"):
        process = folder.name.removeprefix(STAGING).split("-")[0]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def execute(job: Job, folder: Path, on_cell: Callable[[int], None]) -> NotebookNode:
    """Execute `job` with working folder `folder`. Raises NotebookFailed naming notebook and cell."""
    at = {"cell": 0}

    def note(index: int) -> None:
        at["cell"] = index
        on_cell(index)

    def failed(index: int, why: str) -> NotebookFailed:
        return NotebookFailed(f"{job.name}: cell {index + 1}: {why}")

    try:
        notebook = papermill.execute_notebook(
            nbformat.from_dict(job.source),
            None,
            job.parameters,
            engine_name=ENGINE,
            kernel_name=pairing.KERNEL["name"],
            progress_bar=False,
            log_output=True,  # for `SweepProgress`
            on_cell=note,
            resources={"metadata": {"path": str(folder)}},
            coalesce_streams=True,  # how prints arrive in pieces depends on timing
            extra_arguments=["--log-level=CRITICAL"],  # or the kernel talks of its transport and its shutdown
        )
    except PapermillExecutionError as error:
        raise failed(at["cell"], f"{error.ename}: {why(error)}") from None
    except DeadKernelError:
        raise failed(at["cell"], "the kernel died") from None
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        for output in cell.outputs:
            if output.output_type == "error":
                raise failed(index, f"{output.ename} ended the notebook early")
            if output.output_type == "stream" and output.name == "stderr":
                warning = re.search(r"\w*Warning: .*", output.text)
                said = warning.group() if warning else output.text.strip().splitlines()[-1]
                raise failed(index, f"wrote to standard error: {said}")
            shown = str(output)
            if re.search(r"\bat 0x[0-9a-f]+", shown):
                raise failed(index, "shows a memory address, which the next run would change")
            if any(str(private) in shown for private in (folder, paths.root(), Path.home())):
                raise failed(index, "shows a path of this machine")
        if cell.execution_count is None:
            raise failed(index, "was not executed")
    return notebook


def why(error: PapermillExecutionError) -> str:
    """The first line of what the error says, or of the code that raised it without a word."""
    if error.evalue.strip():
        return error.evalue.strip().splitlines()[0]
    trace = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    return next(iter(re.findall(r"^-+> *\d+ (.*)$", trace, re.MULTILINE)), "without a word")


def refuse_deviations(job: Job, results: Path, destination: Destination) -> None:
    """Raise NotebookFailed if a claim of `results` left its committed value; the results are kept for a look."""
    name = f"{job.number}_claims.json"
    if not (destination.figures / name).exists():
        return
    regenerated = claims.read_file(results / name) if (results / name).exists() else []
    lines = claims.deviations(claims.read_file(destination.figures / name), regenerated)
    if lines:
        kept = paths.root() / "results" / job.name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(results, kept)
        raise NotebookFailed(
            f"{job.name}: {'; '.join(lines)}. The committed files stay; the regenerated ones are in {kept}; --accept takes them"
        )


def publish(job: Job, notebook: NotebookNode, results: Path, destination: Destination) -> None:
    """Rename the results and the notebook into place, all or none of them, and remove what an earlier version of the
    notebook left. What is replaced is copied aside first, and comes back if a later file cannot be put in place."""
    whole = results.parent / f"{job.name}.ipynb"
    whole.write_bytes(pairing.to_bytes(notebook))
    for folder in (destination.figures, destination.notebooks, replaced := results.parent / "replaced"):
        folder.mkdir(parents=True, exist_ok=True)
    produced = sorted(results.iterdir()) if results.is_dir() else []
    moves = [(file, destination.figures / file.name) for file in produced]
    moves.append((whole, destination.notebooks / whole.name))
    done = []
    try:
        for new, target in moves:
            if target.exists():
                shutil.copy2(target, replaced / target.name)
            os.replace(new, target)
            done.append(target)
    except BaseException:
        for target in done:
            old = replaced / target.name
            if old.exists():
                os.replace(old, target)
            else:
                target.unlink()
        raise
    for stale in destination.figures.glob(f"{job.number}_*"):
        if stale.suffix != ".ipynb" and stale.name not in {file.name for file in produced}:
            stale.unlink()


def run_all(jobs: list[Job], destination: Destination, workers: int, accept: bool) -> list[str]:
    """Run every job, those that read records last; return one line for each failure.

    Raises KeyboardInterrupt, after every kernel is ended, with the notebooks and cells that were interrupted.
    """
    started = {}
    cells = {}
    reported = set()

    def one(job: Job) -> None:
        started[job.name] = time.monotonic()

        def on_cell(index: int) -> None:
            cells[job.name] = index + 1
            say(f"{job.name}  cell {index + 1}/{len(job.source.cells) + bool(job.parameters)}", started[job.name])

        run(job, destination, accept, on_cell)

    failures = []
    for group in ([job for job in jobs if not job.reads_records], [job for job in jobs if job.reads_records]):
        if failures and group:
            failures += [f"{job.name}: not run, since it reads the records of the notebooks above" for job in group]
            break
        pool = ThreadPoolExecutor(workers)
        futures = {pool.submit(one, job): job for job in group}
        try:
            for future in as_completed(futures):
                name = futures[future].name
                reported.add(name)
                try:
                    future.result()
                    say(f"{name}  done", started[name])
                except Exception as error:  # whatever stops one notebook must not stop the report on the others
                    line = (
                        str(error) if isinstance(error, NotebookFailed) else f"{name}: {type(error).__name__}: {error}"
                    )
                    say(f"{name}  FAILED", started[name])
                    failures.append(line)
        except KeyboardInterrupt:
            for child in psutil.Process().children(recursive=True):
                child.kill()
            pool.shutdown(cancel_futures=True)
            running = [
                f"{job.name}: interrupted in cell {cells.get(job.name, 1)}"
                for job in group
                if job.name in started and job.name not in reported
            ]
            raise KeyboardInterrupt("; ".join(running) or "interrupted before a notebook ran") from None
        pool.shutdown()
    return failures


def say(text: str, since: float) -> None:
    """One line of progress with the seconds since `since`."""
    print(f"{text}  {time.monotonic() - since:.1f} s", flush=True)


def refresh_readme(readme: Path, table: str) -> None:
    """Put the table of claims between the README's marks. Raises ValueError if a mark is missing."""
    text = readme.read_text(encoding="utf-8")
    begin, end = README_MARKS
    if begin not in text or end not in text:
        raise ValueError(f"{readme} must hold the lines {begin} and {end}")
    before, after = text.split(begin)[0], text.split(end)[1]
    paths.write_whole(readme, f"{before}{begin}\n{table}{end}{after}".encode())


def kernel_environment(folder: str) -> dict[str, str]:
    """Variables that make kernels alike everywhere: no user profile, one hash seed, one number of threads, which do
    not spin while they wait (that would cost a busy machine several times the work itself), and the kernel of this
    Python, not one that the user installed under the same name."""
    return {
        "JUPYTER_PATH": "",
        "JUPYTER_PREFER_ENV_PATH": "1",
        "IPYTHONDIR": folder,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": str(THREADS),
        "MKL_NUM_THREADS": str(THREADS),
        "OMP_WAIT_POLICY": "PASSIVE",
    }


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 0, 1 if a notebook failed or deviates, 2 for a refused argument, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m attention_dynamics.reproduce",
        description="Execute the notebooks and regenerate the figures and the table of claims.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebook, or its number; all if none is given")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="notebooks at a time (default 1)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, same code; writes to results/smoke")
    parser.add_argument(
        "-p",
        dest="overrides",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help="parameter for the notebooks that have it; writes to results/own",
    )
    parser.add_argument(
        "--accept", action="store_true", help="let regenerated claims replace committed ones that they deviate from"
    )
    options = parser.parse_args(arguments)
    out = paths.root() / "results" / ("smoke" if options.smoke else "own")
    committed = not options.smoke and not options.overrides
    destination = Destination(paths.notebooks(), paths.figures(), True) if committed else Destination(out, out, False)
    try:
        if options.jobs < 1:
            raise ValueError(f"--jobs takes an integer of at least 1, got {options.jobs}")
        jobs = plan(
            options.names, {name: _literal(value) for name, value in options.overrides}, options.smoke, destination
        )
    except ValueError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    remove_abandoned()
    for job in jobs:
        note_difference(job, destination)
    for stop in (signal.SIGINT, signal.SIGTERM):  # set, since a shell starts background jobs with SIGINT ignored
        signal.signal(stop, signal.default_int_handler)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as profile:
        os.environ.update(kernel_environment(profile))
        try:
            failures = run_all(jobs, destination, options.jobs, options.accept)
        except KeyboardInterrupt as interrupt:
            print(
                f"interrupted: {interrupt}. Finished notebooks are in place, the others as they were.", file=sys.stderr
            )
            return 130
    done = len(jobs) - len(failures)
    if not failures and any(job.reads_records for job in jobs):
        table = claims.summary(claims.read(destination.figures))
        print(table)
        try:
            if committed:
                refresh_readme(paths.root() / "README.md", table)
        except (ValueError, OSError) as error:
            failures.append(str(error))
    for line in failures:
        print(f"failed: {line}", file=sys.stderr)
    say(f"{done} of {len(jobs)} notebooks done, in {destination.notebooks}", begin)
    return 1 if failures else 0


def _literal(text: str) -> Any:
    """The Python value that `text` spells, or `text` itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.exit(main())
