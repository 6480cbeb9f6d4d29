"""Sweeps against plain loops: the same table whoever computes it, nothing lost by failures, deaths and interruptions,
nothing stale read."""

import importlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import sweep_functions
import torch
from distributed import LocalCluster
from nbclient import NotebookClient
from pandas.testing import assert_frame_equal

from attention_dynamics import bench, sweep

TRAINED = [
    {"seed": seed, "self_prob": self_prob, "schedules": ["sgd", "em_like"]}
    for seed in (3, 1)
    for self_prob in (0.6, 0.3)
]
CASES = 6


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster of two worker processes on this machine."""
    with LocalCluster(
        n_workers=2,
        processes=True,
        threads_per_worker=1,
        protocol="tcp",
        dashboard_address=None,
        silence_logs="CRITICAL",
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def calls(tmp_path):
    """The folder where the functions leave their files."""
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls"


def cases(calls: Path) -> list[dict]:
    return [{"x": x, "calls": str(calls)} for x in range(CASES)]


def called(calls: Path) -> list[int]:
    """Every x that was called, in order, as often as it was."""
    return sorted(int(file.name.split(".")[0]) for file in calls.glob("[0-9]*"))


def expected(calls: Path) -> pd.DataFrame:
    """The table of `counted`, written by hand."""
    return pd.DataFrame(
        {
            "x": range(CASES),
            "calls": str(calls),
            "square": [0, 1, 4, 9, 16, 25],
            "third": [0.0, 1 / 3, 2 / 3, 1.0, 4 / 3, 5 / 3],
            "even": [True, False] * 3,
            "name": ["x0", "x1", "x2", "x3", "x4", "x5"],
            "error": "",
        }
    )


def same(table: pd.DataFrame, other: pd.DataFrame) -> None:
    assert_frame_equal(table, other, check_exact=True)


def test_the_table_is_that_of_a_plain_loop(tmp_path):
    lines = []
    for configuration in TRAINED:
        for row in sweep_functions.trained(**configuration):
            lines.append([configuration["seed"], configuration["self_prob"], *row.values(), ""])
    columns = ["seed", "self_prob", "schedule", "loss", "entropy", "error"]
    table = sweep.sweep(sweep_functions.trained, TRAINED, tmp_path)
    same(table, pd.DataFrame(lines, columns=columns))
    assert table["seed"].tolist() == [3] * 4 + [1] * 4, "in the order given, not sorted"


def test_every_bit_is_the_same_from_one_process_two_and_a_cluster(tmp_path, scheduler):
    one = sweep.sweep(sweep_functions.trained, TRAINED, tmp_path / "one")
    ways = {
        "two": {"processes": 2},
        "threads": {"processes": 2, "backend": "threading"},
        "cluster": {"backend": "dask", "scheduler": scheduler},
    }
    files = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert len(files) == len(TRAINED)
    for name, way in ways.items():
        same(sweep.sweep(sweep_functions.trained, TRAINED, tmp_path / name, **way), one)
        assert {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} == files


def test_a_stored_float_keeps_every_bit(tmp_path):
    computed, stored = (sweep.sweep(sweep_functions.numbers, [{"x": 1}, {"x": 7}], tmp_path) for _ in range(2))
    same(stored, computed)
    for x, row in zip((1, 7), stored.to_dict("records"), strict=True):
        assert row["a"].hex() == (math.pi / x).hex() and row["b"] == 5e-324 and row["c"] == math.inf
        assert math.isnan(row["d"]) and math.copysign(1, row["e"]) == -1 and row["f"] == 0.1 + 0.2


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_is_a_row_and_is_tried_again(tmp_path, calls, capsys, processes):
    (calls / "broken").touch()
    table = sweep.sweep(sweep_functions.fragile, cases(calls), tmp_path / "store", processes)
    assert table["error"].tolist() == ["", "", "ArithmeticError: no square of two", "", "", ""]
    assert table.loc[2, ["square", "third", "even", "name"]].isna().all() and table.loc[2, "x"] == 2
    same(table.drop(2).astype(expected(calls).dtypes), expected(calls).drop(2))
    assert capsys.readouterr().out.splitlines()[-1] == "6 runs, 1 failed"
    (calls / "broken").unlink()
    same(sweep.sweep(sweep_functions.fragile, cases(calls), tmp_path / "store", processes), expected(calls))
    assert called(calls) == [0, 1, 2, 2, 3, 4, 5]


def test_if_all_fail_there_is_still_a_table(tmp_path):
    table = sweep.sweep(sweep_functions.wrong, [{"kind": "none"}, {"kind": "empty"}], tmp_path / "store")
    assert table.columns.tolist() == ["kind", "error"] and table["kind"].tolist() == ["none", "empty"]
    assert not list((tmp_path / "store").iterdir())


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_call_computes_what_is_missing(tmp_path, calls, capsys, processes):
    sweep.sweep(sweep_functions.counted, cases(calls)[1:4], tmp_path / "store", processes)
    assert called(calls) == [1, 2, 3]
    whole = sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store", processes)
    assert called(calls) == [0, 1, 2, 3, 4, 5]
    capsys.readouterr()
    same(whole, expected(calls))
    same(sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store", processes), whole)
    assert called(calls) == [0, 1, 2, 3, 4, 5]
    assert capsys.readouterr() == ("6 runs\n", "")


def test_each_finished_run_gives_a_line(tmp_path, calls, capsys):
    sweep.sweep(sweep_functions.counted, cases(calls)[:2], tmp_path / "store", 2)
    sweep.sweep(sweep_functions.counted, cases(calls)[:3], tmp_path / "store", 2)
    lines = [re.sub(r"\d+\.\d s", "T", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == ["1 of 2 runs, T", "2 of 2 runs, T", "2 runs", "3 of 3 runs, T", "3 runs"]


def test_a_dead_worker_loses_nothing_that_finished(tmp_path, calls):
    (calls / "deadly").touch()
    store = tmp_path / "store"
    with pytest.raises(RuntimeError) as raised:
        sweep.sweep(sweep_functions.deadly, cases(calls), store, 2)
    kept = len(list(store.iterdir()))
    assert 2 <= kept < CASES
    assert str(raised.value) == f"a worker died; {kept} of 6 runs are kept in {store}, run again for the rest"
    (calls / "deadly").unlink()
    before = called(calls)
    same(sweep.sweep(sweep_functions.deadly, cases(calls), store, 2), expected(calls))
    assert len(called(calls)) - len(before) == CASES - kept


def test_a_dead_worker_of_a_cluster_loses_nothing_that_finished(tmp_path, calls, scheduler):
    (calls / "deadly").touch()
    store = tmp_path / "store"
    with pytest.raises(RuntimeError, match=r"a worker died; [2-5] of 6 runs are kept in "):
        sweep.sweep(sweep_functions.deadly, cases(calls), store, backend="dask", scheduler=scheduler)
    kept = len(list(store.iterdir()))
    (calls / "deadly").unlink()
    before = called(calls)
    table = sweep.sweep(sweep_functions.deadly, cases(calls), store, backend="dask", scheduler=scheduler)
    same(table, expected(calls))
    assert len(called(calls)) - len(before) == CASES - kept


def test_a_cluster_recovers_from_one_death(tmp_path, calls, scheduler):
    (calls / "deadly_once").touch()
    table = sweep.sweep(
        sweep_functions.deadly_once, cases(calls), tmp_path / "store", backend="dask", scheduler=scheduler
    )
    same(table, expected(calls))
    assert not (calls / "deadly_once").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interruption_in_a_run_keeps_what_finished(tmp_path, calls, processes):
    (calls / "impatient").touch()
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(sweep_functions.interrupted, cases(calls), tmp_path / "store", processes)
    kept = len(list((tmp_path / "store").iterdir()))
    assert kept == 2 if processes == 1 else kept < CASES
    (calls / "impatient").unlink()
    same(sweep.sweep(sweep_functions.interrupted, cases(calls), tmp_path / "store", processes), expected(calls))
    assert processes == 2 or called(calls) == [0, 1, 2, 3, 4, 5]


def test_an_interruption_between_results_keeps_them(tmp_path, calls, monkeypatch):
    """Where the user presses the key while a result is being noted; joblib must not warn on top."""
    show = sweep._show

    def impatient(line):
        show(line)
        if line.startswith("3 of"):
            raise KeyboardInterrupt

    monkeypatch.setattr(sweep, "_show", impatient)
    with pytest.raises(KeyboardInterrupt):
        sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store", 2)
    monkeypatch.setattr(sweep, "_show", show)
    assert len(list((tmp_path / "store").iterdir())) == 3
    same(sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store", 2), expected(calls))


def test_the_key_that_interrupts_reaches_a_sweep_on_two_processes(tmp_path, calls):
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(Path(__file__).parent)!r})
import sweep_functions
from attention_dynamics.sweep import sweep
cases = [{{"x": x, "calls": {str(calls)!r}}} for x in range({CASES})]
sweep(sweep_functions.slow, cases, {str(tmp_path / "store")!r}, 2)
"""
    script = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    script.stdin.write(code)
    script.stdin.close()
    while not script.stdout.readline().startswith("2 of"):
        assert script.poll() is None
    script.send_signal(signal.SIGINT)
    assert script.wait(timeout=20) in (1, 130, -signal.SIGINT)
    script.stdout.close()
    kept = len(list((tmp_path / "store").iterdir()))
    assert 2 <= kept < CASES
    before = called(calls)
    same(sweep.sweep(sweep_functions.slow, cases(calls), tmp_path / "store", 2), expected(calls))
    assert len(called(calls)) - len(before) == CASES - kept


@pytest.mark.parametrize(
    "damage",  # the content of another run's file where it gives None
    [
        lambda content: b"",
        lambda content: content[:-9],
        lambda content: b"\xff" + content,
        lambda content: b"[]",
        lambda content: b"{}",
        lambda content: content.replace(b'"square": 4', b'"square": 5'),
        lambda content: content.replace(b'"name": "x2"', b'"name": "x3"'),
        lambda content: None,
    ],
)
def test_a_damaged_file_is_computed_anew(tmp_path, calls, damage):
    store = tmp_path / "store"
    sweep.sweep(sweep_functions.counted, cases(calls), store)
    (file,) = [file for file in store.iterdir() if json.loads(file.read_bytes())["configuration"]["x"] == 2]
    (other,) = [file for file in store.iterdir() if json.loads(file.read_bytes())["configuration"]["x"] == 3]
    whole = file.read_bytes()
    damaged = damage(whole)
    assert damaged != whole
    file.write_bytes(other.read_bytes() if damaged is None else damaged)
    same(sweep.sweep(sweep_functions.counted, cases(calls), store), expected(calls))
    assert called(calls) == [0, 1, 2, 2, 3, 4, 5] and file.read_bytes() == whole


def test_the_key_depends_on_all_that_a_result_depends_on(tmp_path, calls, monkeypatch):
    def files():
        store = tmp_path / "store"
        shutil.rmtree(store, ignore_errors=True)
        sweep.sweep(function, [configuration], store)
        return store.iterdir().__next__().name

    function, configuration = sweep_functions.counted, {"x": 1, "calls": str(calls)}
    names = [files()]
    assert names == [files()]
    configuration = {"calls": str(calls), "x": 1}
    assert names == [files()], "the order of names is none of it"
    for configuration["x"] in (2, 1.0, True):
        names.append(files())
    function, configuration = sweep_functions.interrupted, {"x": 1, "calls": str(calls)}
    names.append(files())
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    sweep._loaded_digest.cache_clear()
    names.append(files())
    sweep._loaded_digest.cache_clear()
    assert len(set(names)) == len(names)


def test_changed_code_of_the_library_is_another_digest(tmp_path, monkeypatch):
    before = sweep.package_digest()
    copy = tmp_path / "attention_dynamics"
    shutil.copytree(Path(sweep.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sweep, "__file__", str(copy / "sweep.py"))
    assert sweep.package_digest() == before, "where the library lies is none of it"
    digests = {before}
    for change in (
        lambda: (copy / "laws.py").write_text((copy / "laws.py").read_text(encoding="utf-8") + "\n", encoding="utf-8"),
        lambda: (copy / "laws.py").rename(copy / "rules.py"),
        lambda: next((copy / "plots").glob("[a-z]*.py")).write_text("", encoding="utf-8"),
    ):
        change()
        digests.add(sweep.package_digest())
    assert len(digests) == 4


def test_changed_code_of_the_library_is_computed_anew(tmp_path, calls, monkeypatch):
    sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store")
    monkeypatch.setattr(sweep, "package_digest", lambda: "changed")
    monkeypatch.setattr(sweep, "LOADED", "changed")
    sweep._loaded_digest.cache_clear()
    same(sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store"), expected(calls))
    sweep._loaded_digest.cache_clear()
    assert called(calls) == sorted([*range(CASES)] * 2)


def test_changed_code_of_the_function_is_computed_anew(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_function.py"
    file.write_text("def half(x):\n    return [{'half': x / 2}]\n", encoding="utf-8")
    module = importlib.import_module("own_function")
    assert sweep.sweep(module.half, [{"x": 1}], tmp_path / "store")["half"].tolist() == [0.5]
    file.write_text("def half(x):\n    return [{'half': x * 0.25 * 2.0 + 1}]\n", encoding="utf-8")
    refused = sweep.sweep(module.half, [{"x": 1}], tmp_path / "store")
    assert "has loaded other code than there is now" in refused["error"][0]
    importlib.reload(module)
    assert sweep.sweep(module.half, [{"x": 1}], tmp_path / "store")["half"].tolist() == [1.5]


@pytest.mark.parametrize("way", ["one", "two", "cluster"])
def test_other_code_than_the_callers_is_refused(tmp_path, calls, monkeypatch, way, request):
    monkeypatch.setattr(sweep, "package_digest", lambda: "newer")
    options = {"one": {}, "two": {"processes": 2}}.get(way) or {}
    if way == "cluster":
        options = {"backend": "dask", "scheduler": request.getfixturevalue("scheduler")}
    table = sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "store", **options)
    text = "RuntimeError: this process has loaded other code than there is now: restart Python and any workers"
    assert table["error"].tolist() == [text] * CASES
    assert called(calls) == [] and not list((tmp_path / "store").iterdir())


def test_two_processes_work_at_once(tmp_path, calls):
    """With runs that wait, so that the load of the machine decides nothing: six of half a second."""
    sweep.sweep(sweep_functions.counted, cases(calls), tmp_path / "warm", 2)
    begin = time.monotonic()
    sweep.sweep(sweep_functions.slow, cases(calls), tmp_path / "store", 2)
    assert time.monotonic() - begin < 0.8 * CASES * 0.5


@pytest.mark.parametrize("way", ["one", "two", "threads", "cluster"])
def test_each_run_has_one_thread(tmp_path, way, request):
    options = {"two": {"processes": 2}, "threads": {"processes": 2, "backend": "threading"}}.get(way, {})
    if way == "cluster":
        options = {"backend": "dask", "scheduler": request.getfixturevalue("scheduler")}
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        table = sweep.sweep(sweep_functions.place, [{"x": x} for x in range(4)], tmp_path, **options)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert table["threads"].tolist() == [1] * 4
    processes = set(table["process"])
    assert processes == {os.getpid()} if way in ("one", "threads") else os.getpid() not in processes


def test_a_notebook_shows_one_line_and_the_same_the_second_time(tmp_path, calls, scheduler):
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import sweep_functions
from attention_dynamics.sweep import sweep
cases = [{{"x": x, "calls": {str(calls)!r}}} for x in range({CASES})]
"""
    two = f"table = sweep(sweep_functions.counted, cases, {str(tmp_path / 'two')!r}, 2)\ntable.square.sum()"
    cluster = f"""
table = sweep(sweep_functions.counted, cases, {str(tmp_path / "cluster")!r}, backend="dask", scheduler={scheduler!r})
table.square.sum()"""
    cells = [code, two, two, cluster, cluster]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, kernel_name="python3", extra_arguments=["--log-level=CRITICAL"]).execute()
    first, *sweeps = [
        [
            (output.output_type, output.get("name"), output.get("text") or output["data"]["text/plain"])
            for output in cell.outputs
        ]
        for cell in notebook.cells
    ]
    assert first == []
    shown = [("stream", "stdout", "6 runs\n"), ("execute_result", None, "np.int64(55)")]
    assert sweeps == [shown] * 4
    assert called(calls) == sorted([*range(CASES)] * 2)


@pytest.mark.parametrize("backend", ["loky", "multiprocessing"])
def test_a_script_without_a_file_sweeps_a_function_of_the_library(tmp_path, backend):
    cases = [{"seed": seed, "length": 20, "steps": 2} for seed in range(4)]
    code = f"""
from attention_dynamics.bench import short_run
from attention_dynamics.sweep import sweep
sweep(short_run, {cases}, {str(tmp_path / "script")!r}, 2, {backend!r})
"""
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "4 runs" and done.stderr == ""
    table = sweep.sweep(bench.short_run, cases, tmp_path / "here")
    assert (table["error"] == "").all()
    here, script = ({file.name: file.read_bytes() for file in (tmp_path / way).iterdir()} for way in ("here", "script"))
    assert here == script and len(here) == 4


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("none", "rows must be a list of at least one dict, got None"),
        ("empty", "rows must be a list of at least one dict, got []"),
        ("texts", "rows must be a list of at least one dict, got ['a']"),
        ("nameless", "rows must have texts as names, got []"),
        ("number", "rows must have texts as names, got [1]"),
        ("uneven", "rows must all have the names ['a'], got ['a', 'b']"),
        ("tensor", "rows must hold texts, numbers or truth values, got a=tensor([1.])"),
        ("missing", "rows must hold texts, numbers or truth values, got a=None"),
        ("taken", "rows must have names other than those of the configuration and 'error', got ['kind']"),
        ("error", "rows must have names other than those of the configuration and 'error', got ['error']"),
    ],
)
def test_what_is_no_list_of_rows_is_the_runs_error(tmp_path, kind, message):
    table = sweep.sweep(sweep_functions.wrong, [{"kind": kind}], tmp_path)
    assert table["error"].tolist() == [f"ValueError: {message}"]
    assert not list(tmp_path.iterdir())


def call(tmp_path, **changes):
    arguments = {"function": sweep_functions.counted, "configurations": [{"x": 1}], "store": tmp_path / "store"}
    return sweep.sweep(**(arguments | changes))


def nested(x):
    return lambda x: x


class Runs:
    def method(x):
        return [{"y": x}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"configurations": []}, "configurations must be a list of at least one dict, got []"),
        ({"configurations": {"x": 1}}, "configurations must be a list of at least one dict, got {'x': 1}"),
        ({"configurations": [1]}, "configurations must be a list of at least one dict, got [1]"),
        ({"configurations": [{"x": 1}, {"x": 2}, {"x": 1}]}, "configurations must be distinct, got {'x': 1} twice"),
        ({"configurations": [{"x": 1}, {"y": 1}]}, "configurations must all have the names ['x'], got ['y']"),
        ({"configurations": [{"x": 1}, {}]}, "configurations must all have the names ['x'], got []"),
        (
            {"configurations": [{"x": None}]},
            "configurations must hold texts, numbers, truth values or lists of these, got x=None",
        ),
        (
            {"configurations": [{"x": (1, 2)}]},
            "configurations must hold texts, numbers, truth values or lists of these, got x=(1, 2)",
        ),
        (
            {"configurations": [{"x": [[1]]}]},
            "configurations must hold texts, numbers, truth values or lists of these, got x=[[1]]",
        ),
        ({"configurations": [{1: 2}]}, "configurations must have texts other than 'error' as names, got [1]"),
        (
            {"configurations": [{"error": 2}]},
            "configurations must have texts other than 'error' as names, got ['error']",
        ),
        (
            {"configurations": pd.DataFrame({"x": [1, 2]})},
            "configurations must be a list of at least one dict, got x 0 1",
        ),
        ({"processes": 0}, "processes must be an integer of at least 1, got 0"),
        ({"processes": 2.0}, "processes must be an integer of at least 1, got 2.0"),
        (
            {"backend": "lucky"},
            "backend must be named among dask, loky, multiprocessing, sequential, threading, got lucky",
        ),
        ({"backend": "dask"}, "scheduler must be the address of a dask scheduler with backend 'dask', got ''"),
        ({"scheduler": "tcp://a:1"}, "scheduler must be '' with backend 'loky', got 'tcp://a:1'"),
        (
            {"backend": "dask", "scheduler": "nowhere"},
            "scheduler must be the address of a running dask scheduler, got 'nowhere'",
        ),
        (
            {"function": lambda x: x},
            "function must be a function at the module level of an imported file, got <lambda>",
        ),
        (
            {"function": nested(1)},
            "function must be a function at the module level of an imported file, got nested.<locals>.<lambda>",
        ),
        (
            {"function": Runs.method},
            "function must be a function at the module level of an imported file, got Runs.method",
        ),
        ({"function": math.sqrt}, "function must be a function at the module level of an imported file, got sqrt"),
        ({"function": "f"}, "function must be a function at the module level of an imported file, got str"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        call(tmp_path, **changes)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["__main__", "typed_into_a_notebook"])
def test_a_function_without_an_imported_file_is_refused(tmp_path, monkeypatch, name):
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    file = __file__ if name == "__main__" else "<ipython-input-1>"
    exec(compile("def typed(x): return [{'a': x}]", file, "exec"), module.__dict__)
    with pytest.raises(
        ValueError, match="function must be a function at the module level of an imported file, got typed"
    ):
        call(tmp_path, function=module.typed)


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=re.escape("backend 'dask' needs the extra of that name: pip install -e '.[dask]'")
    ):
        call(tmp_path, backend="dask", scheduler="tcp://a:1")
