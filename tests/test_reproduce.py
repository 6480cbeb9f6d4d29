"""The runner, on throwaway projects with tiny notebooks, in a folder whose path has a space and non-ASCII letters,
started from another folder under LC_ALL=C. Every failure must leave what was there before as it was."""

import json
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from attention_dynamics import paths, reproduce

HEADER = '# %% [markdown]\n# # Título\n\n# %% tags=["parameters"]\nseed: int = 0  # seed\nresults: str = "results"  # folder\n\n'
FIGURE = """# %%
import matplotlib.pyplot as plt
import pandas as pd

from attention_dynamics import figures

figures.use_style()
figure, axes = plt.subplots()
axes.plot([0, 1 + seed], label="größe")
axes.legend()
figures.save(figure, "NN_line", pd.DataFrame({"x": [seed]}), results)

"""
CLAIM = """# %%
from attention_dynamics import claims

judgement = claims.judge_identity({"check": 0.0}, 1e-9)
reasons = {"reproduced": "it holds"}
row = claims.claim("CNN", "a statement", 1.0 + seed, "nats", judgement, reasons, "none", "NN_good", 0.1)
claims.record([row], "NN_good", results)
print("done", seed)
"""
LEDGER = '# %% tags=["parameters"]\nrecords: str = ""\nresults: str = "results"\n\n# %%\nfrom attention_dynamics import claims, paths\nclaims.write_ledger(claims.read(records or paths.figures()), results)\n'


def bad(number: str, code: str) -> str:
    """A notebook that writes a result, then runs `code` in its fourth cell."""
    first = f"import os, sys, time\nfrom pathlib import Path\nPath(results).mkdir()\n(Path(results) / '{number}_part.csv').write_text('new')"
    return HEADER + f"# %%\n{first}\n\n# %%\n{code}\n\n# %%\nprint('after')\n"


class Project:
    """A copy of the library with notebooks of its own."""

    def __init__(self, top: Path):
        self.top = top
        shutil.copytree(paths.root() / "lib", top / "lib", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        shutil.copy(paths.root() / "matplotlibrc", top)
        (top / "notebooks").mkdir()
        (top / "figures").mkdir()
        (top / "README.md").write_text("Før\n" + "\n".join(reproduce.README_MARKS) + "\nEfter\n", encoding="utf-8")
        self.elsewhere = top.parent / "elsewhere"
        self.elsewhere.mkdir()

    def notebook(self, name: str, source: str) -> None:
        (self.top / "notebooks" / f"{name}.py").write_text(source, encoding="utf-8")

    def good(self, number: str, figure: bool = False) -> None:
        self.notebook(f"{number}_good", HEADER + (FIGURE * figure + CLAIM).replace("NN", number))

    def bad(self, number: str, code: str) -> None:
        """A notebook that fails, with files of an earlier run in its place."""
        self.notebook(f"{number}_bad", bad(number, code))
        (self.top / "notebooks" / f"{number}_bad.ipynb").write_text("earlier", encoding="utf-8")
        (self.top / "figures" / f"{number}_part.csv").write_text("earlier", encoding="utf-8")

    def command(self, *arguments: str) -> dict:
        environment = {**os.environ, "PYTHONPATH": str(self.top / "lib"), "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "1"}
        return {
            "args": [sys.executable, "-m", "attention_dynamics.reproduce", *arguments],
            "cwd": self.elsewhere,
            "env": environment,
            "text": True,
            "encoding": "utf-8",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(**self.command(*arguments), capture_output=True, timeout=120)

    def content(self) -> dict[str, bytes]:
        """Every file but the library and its own sources' twins in the cache."""
        return {
            str(file.relative_to(self.top)): file.read_bytes()
            for file in sorted(self.top.rglob("*"))
            if file.is_file() and "lib" not in file.relative_to(self.top).parts
        }


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "mön projekt").mkdir()
    return Project(tmp_path / "mön projekt")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["99"], "unknown notebook 99: known are 01_advantage_routing"),
        (["04", "-p", "sed", "1"], "unknown parameter sed: 04_sticky_markov take"),
        (["01", "-p", "self_prob", "0.5"], "unknown parameter self_prob: 01_advantage_routing take"),
        (["04", "-p", "self_prob", "1.5"], "parameter self_prob takes a number in [0, 1], got 1.5"),
        (
            ["04", "-p", "seeds", "[]"],
            "parameter seeds takes a list of at least two distinct integers, each at least 0, got []",
        ),
        (["04", "-p", "seeds", "[1, 1]"], "parameter seeds takes"),
        (["04", "-p", "steps", "false"], "parameter steps takes an integer of at least 10, got 'false'"),
        (["04", "-p", "steps", "True"], "parameter steps takes an integer of at least 10, got True"),
        (["04", "-p", "lr_value", "nan"], "parameter lr_value takes a finite number above 0, got 'nan'"),
        (["04", "-p", "results", "x"], "parameter results is the runner's own: it writes to "),
        (["--jobs", "0"], "--jobs takes an integer of at least 1, got 0"),
    ],
)
def test_a_mistaken_request_is_refused_in_one_line_before_anything_runs(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "run_all", lambda *_: pytest.fail("something ran"))
    assert reproduce.main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1 and output.err.startswith(f"refused: {message}")


def test_a_run_fills_notebooks_figures_ledger_and_readme(project):
    project.good("01", figure=True)
    project.notebook("02_ledger", LEDGER)
    done = project.run()
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "01_good  cell 4/4" in done.stdout and "2 of 2 notebooks done" in done.stdout and "C01" in done.stdout
    made = set(project.content())
    assert made == {
        "README.md",
        "matplotlibrc",
        "notebooks/01_good.py",
        "notebooks/01_good.ipynb",
        "notebooks/02_ledger.py",
        "notebooks/02_ledger.ipynb",
        "figures/01_line.pdf",
        "figures/01_line.png",
        "figures/01_line.csv",
        "figures/01_claims.json",
        "figures/claims.json",
        "figures/claims.md",
    }
    readme = (project.top / "README.md").read_text(encoding="utf-8")
    assert "| C01   | a statement |" in readme and readme.startswith("Før\n") and readme.endswith("\nEfter\n")
    notebook = nbformat.read(project.top / "notebooks" / "01_good.ipynb", as_version=4)
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"] == [1, 2, 3]
    assert notebook.cells[-1].outputs[0].text == "done 0\n"


def test_nothing_volatile_is_kept_and_a_second_run_gives_the_same_bytes(project):
    for number in ("01", "02"):
        project.good(number, figure=True)
    project.notebook("03_ledger", LEDGER)
    assert project.run().returncode == 0
    first = project.content()
    for name, content in first.items():
        if name.endswith((".ipynb", ".pdf", ".png", ".json", ".csv")):
            for volatile in (
                str(project.top),
                "mön",
                "papermill",
                "CreationDate",
                time.strftime("%Y-%m-%d"),
                "ipykernel_",
                sys.version.split()[0],
            ):
                assert volatile.encode() not in content, (name, volatile)
    files = [file for file in project.top.rglob("*") if file.is_file()]
    random.Random(0).shuffle(files)
    for age, file in enumerate(files):
        os.utime(file, (1e9 + age, 1e9 + age))
    time.sleep(1.1)  # a date with a resolution of seconds would differ now
    assert project.run("--jobs", "2").returncode == 0
    assert project.content() == first


def test_a_notebook_that_does_not_run_whole_is_an_error_and_leaves_everything_as_it_was(project):
    failures = {
        "raise ValueError('größer')": "cell 4: ValueError: größer",
        "sys.exit(0)": "cell 4: SystemExit ended the notebook early",
        "sys.exit(3)": "cell 4: SystemExit: 3",
        "os._exit(0)": "cell 4: the kernel died",
        "print('careful', file=sys.stderr)": "cell 4: wrote to standard error: careful",
        "import warnings; warnings.warn('old')": "cell 4: wrote to standard error: UserWarning: old",
        "raise ValueError('one\\ntwo')": "cell 4: ValueError: one\n",
        "size = 2\nassert size > 3": "cell 4: AssertionError: assert size > 3\n",
        "object()": "cell 4: shows a memory address",
        "print(os.getcwd())": "cell 4: shows a path of this machine",
    }
    project.good("01")
    for number, code in enumerate(failures, start=2):
        project.bad(f"{number:02d}", code)
    project.good("13")
    project.notebook("12_skip", bad("12", "pass").replace("# %%\npass", '# %% tags=["skip-execution"]\npass'))
    project.notebook("14_ledger", LEDGER)
    before = project.content()
    done = project.run("--jobs", "2")
    assert done.returncode == 1
    assert "/attention_dynamics/" not in done.stderr, "the runner itself raised (a dying kernel may log a traceback)"
    for number, message in enumerate(failures.values(), start=2):
        assert f"failed: {number:02d}_bad: {message}" in done.stderr, done.stderr
    assert "failed: 12_skip: cell 4: was not executed" in done.stderr
    assert "failed: 14_ledger: not run" in done.stderr
    assert "2 of 14 notebooks done" in done.stdout
    after = project.content()
    assert {name: after[name] for name in before} == before
    made = {
        f"{folder}/{number}_{name}"
        for number in ("01", "13")
        for folder, name in (("figures", "claims.json"), ("notebooks", "good.ipynb"))
    }
    assert set(after) - set(before) == made, "nothing half-written, nothing left over"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_names_the_cell_ends_the_kernel_and_leaves_everything_as_it_was(project, sent):
    project.bad("02", "time.sleep(60)")
    before = project.content()
    command = project.command()
    # As a shell starts a background job: with SIGINT ignored.
    command["args"] = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command["args"]]
    process = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in process.stdout:
        if "cell 4/5" in line:
            break
    time.sleep(0.5)
    kernels = psutil.Process(process.pid).children(recursive=True)
    assert kernels
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "02_bad: interrupted in cell 4" in errors and "/attention_dynamics/" not in errors
    psutil.wait_procs(kernels, timeout=5)
    assert not [kernel for kernel in kernels if kernel.is_running()]
    assert project.content() == before


def test_a_claim_that_leaves_its_committed_value_is_refused_until_it_is_accepted(project):
    project.good("01")
    assert project.run().returncode == 0
    record = project.top / "figures" / "01_claims.json"
    rows = json.loads(record.read_text(encoding="utf-8"))
    rows[0]["ours"] += 0.05  # within the tolerance of 0.1
    record.write_text(json.dumps(rows), encoding="utf-8")
    assert project.run().returncode == 0
    rows[0]["ours"] += 0.2
    record.write_text(json.dumps(rows), encoding="utf-8")
    before = project.content()
    done = project.run()
    assert done.returncode == 1
    assert "C01: 1 is not within 0.1 of the committed 1.25 nats" in done.stderr
    after = project.content()
    assert {name: after[name] for name in before} == before
    assert json.loads(after["results/01_good/01_claims.json"])[0]["ours"] == 1.0
    assert project.run("--accept").returncode == 0
    assert json.loads(record.read_text(encoding="utf-8"))[0]["ours"] == 1.0


def test_own_parameters_and_smoke_runs_leave_the_committed_files_alone(project):
    """The seed of a smoke run is 0, so the default is another here: the ledger of a smoke run is its own."""
    project.notebook("01_good", (HEADER.replace("seed: int = 0", "seed: int = 3") + CLAIM).replace("NN", "01"))
    project.notebook("02_ledger", LEDGER)
    assert project.run().returncode == 0
    before = project.content()
    own = project.run("-p", "seed", "7")
    assert own.returncode == 0, own.stderr
    smoke = project.run("--smoke")
    assert smoke.returncode == 0, smoke.stderr
    after = project.content()
    assert {name: after[name] for name in before} == before
    ours = {
        where: json.loads(after[f"{where}/claims.json"])[0]["ours"]
        for where in ("figures", "results/own", "results/smoke")
    }
    assert ours == {"figures": 4.0, "results/own": 8.0, "results/smoke": 1.0}


def test_a_notebook_with_a_bad_default_or_parameters_cell_is_refused_before_anything_runs(project):
    project.good("01")
    for cell, message in (
        ("seed: int = -1\n", "refused: 02_x: parameter seed takes an integer of at least 0, got -1"),
        ("fast: bool = True\n", "refused: 02_x: unknown parameter fast"),
        ("seed = \n", "refused: 02_x: the parameters cell must be Python"),
    ):
        project.notebook("02_x", f'# %% tags=["parameters"]\n{cell}')
        done = project.run()
        assert done.returncode == 2 and message in done.stderr and done.stdout == "", done.stderr


def test_an_edit_of_the_notebook_alone_is_said_and_replaced(project, capsys):
    project.good("01")
    assert "differs" not in project.run().stdout
    twin = project.top / "notebooks" / "01_good.ipynb"
    before = twin.read_bytes()
    job = reproduce.Job("01_good", reproduce.pairing.read_source(twin.with_suffix(".py")), {})
    destination = reproduce.Destination(twin.parent, project.top / "figures", True)
    said = "01_good: the notebook differs from its source 01_good.py; the source runs\n"
    for content, expected in ((before, ""), (before.replace(b"print", b"repr"), said), (b"no notebook", said)):
        twin.write_bytes(content)
        reproduce.note_difference(job, destination)
        assert capsys.readouterr().out == expected
    done = project.run()
    assert done.returncode == 0 and said in done.stdout
    assert twin.read_bytes() == before


def test_the_kernel_is_that_of_the_running_python(project, tmp_path, monkeypatch):
    """A kernel of the same name elsewhere on the user's paths is not taken."""
    foreign = tmp_path / "share" / "kernels" / "python3"
    foreign.mkdir(parents=True)
    (foreign / "kernel.json").write_text(json.dumps({"argv": ["false"], "display_name": "x", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    project.good("01")
    done = project.run()
    assert done.returncode == 0, done.stderr


def test_two_notebooks_of_one_number_are_refused(project):
    project.good("01")
    project.notebook("01_again", HEADER)
    done = project.run()
    assert done.returncode == 2 and "notebooks must have distinct numbers, got 01_again, 01_good" in done.stderr


def test_what_an_earlier_version_of_a_notebook_left_is_removed(project):
    project.good("01")
    (project.top / "figures" / "01_old_name.png").write_text("stale", encoding="utf-8")
    (project.top / "figures" / "02_other.png").write_text("not ours", encoding="utf-8")
    assert project.run().returncode == 0
    assert "figures/01_old_name.png" not in project.content() and "figures/02_other.png" in project.content()


def test_a_readme_without_marks_is_a_reported_failure(project):
    project.good("01")
    project.notebook("02_ledger", LEDGER)
    (project.top / "README.md").write_text("no marks", encoding="utf-8")
    done = project.run()
    assert done.returncode == 1
    assert "README.md must hold the lines" in done.stderr and "/attention_dynamics/" not in done.stderr


def test_a_file_that_cannot_be_put_in_place_brings_back_those_before_it(tmp_path, monkeypatch):
    """The second of three renames fails: the first target is the old one again, and what was not there is not there."""
    results, figures, notebooks = (tmp_path / name for name in ("staging/results", "figures", "notebooks"))
    for folder in (results, figures, notebooks):
        folder.mkdir(parents=True)
    for name in ("01_a.csv", "01_b.csv"):
        (results / name).write_text("new")
    (figures / "01_a.csv").write_text("old")
    (figures / "01_left.csv").write_text("old")
    move = os.replace

    def full(source, target):
        if Path(target).name == "01_b.csv":
            raise OSError("disk full")
        move(source, target)

    monkeypatch.setattr(reproduce.os, "replace", full)
    job = reproduce.Job("01_x", nbformat.v4.new_notebook(), {})
    with pytest.raises(OSError, match="disk full"):
        reproduce.publish(job, nbformat.v4.new_notebook(), results, reproduce.Destination(notebooks, figures, True))
    assert {file.name: file.read_text() for file in figures.iterdir()} == {"01_a.csv": "old", "01_left.csv": "old"}
    assert not list(notebooks.iterdir())


def test_staging_folders_of_killed_runs_are_removed_and_those_of_others_are_not(project):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left = [project.top / f".reproduce-{process}-abc" for process in (dead.pid, os.getpid())]
    for folder in left:
        folder.mkdir()
    project.good("01")
    assert project.run().returncode == 0
    assert [folder.exists() for folder in left] == [False, True]


def test_records_are_found_from_the_folder_of_the_call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (job,) = reproduce.plan(["06"], {"records": "mine"}, False, reproduce.Destination(tmp_path, tmp_path, False))
    assert job.parameters["records"] == str(tmp_path / "mine")


def test_of_what_papermill_logs_only_the_progress_of_sweeps_is_shown(capsys):
    for text in ("12 of 49 runs, 3.5 s\n", "12 of 49 runs\n", "loss 2.0", "3 of 4 runs, quickly"):
        logging.getLogger("papermill").info(text)
    assert capsys.readouterr().out == "    12 of 49 runs, 3.5 s\n"


def test_every_notebook_runs_at_smoke_size(tmp_path):
    """The project's own notebooks, in a copy, through the runner."""
    top = tmp_path / "copy"
    shutil.copytree(
        paths.root(),
        top,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "results", ".reproduce-*", "__pycache__", "*.egg-info", ".hypothesis", ".pytest_cache"
        ),
    )
    before = {file: file.read_bytes() for folder in ("notebooks", "figures") for file in (top / folder).iterdir()}
    environment = {**os.environ, "PYTHONPATH": str(top / "lib")}
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "attention_dynamics.reproduce", "--smoke", "--jobs", "2"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - begin < 60
    assert re.search(r"^ +10 of 10 runs, [\d.]+ s$", done.stdout, re.MULTILINE), "a sweep shows how far it is"
    assert {file: file.read_bytes() for file in before} == before
    names = sorted(path.stem for path in (top / "notebooks").glob("*.py"))
    assert sorted(path.stem for path in (top / "results" / "smoke").glob("*.ipynb")) == names


def test_papermill_runs_a_notebook_from_any_folder(tmp_path):
    command = [
        Path(sys.executable).with_name("papermill"),
        paths.notebooks() / "04_sticky_markov.ipynb",
        "out.ipynb",
        "-p",
        "seeds",
        "[1,2,3]",
        "-p",
        "lr_value",
        "0.3",
        "-p",
        "steps",
        "20",
        "-p",
        "length",
        "100",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "results" / "04_claims.json").read_text(encoding="utf-8"))[0]["seeds"] == [1, 2, 3]
    mistaken = subprocess.run(
        [*command, "-p", "self_prob", "1.5"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert mistaken.returncode != 0 and "parameter self_prob takes a number in [0, 1], got 1.5" in mistaken.stderr
