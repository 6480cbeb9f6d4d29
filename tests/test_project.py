"""The project as a whole: pairs, what is committed, the one list of dependencies, the layering of the library."""

import ast
import importlib.metadata
import json
import re
import tomllib

import jupytext
import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from attention_dynamics import claims, pairing, parameters, paths, reproduce

ROOT = paths.root()
SOURCES = sorted(paths.notebooks().glob("*.py"))
LIBRARY = ROOT / "lib" / "attention_dynamics"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
RANGES = [Requirement(text) for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PINS = {
    canonicalize_name(pin.name): pin.specifier for pin in map(Requirement, re.findall(r"^[\w.-]+==.*$", LOCK, re.M))
}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_and_its_source_are_one(source):
    """By content: a source that was edited without running it, or a notebook edited alone, fails here."""
    executed = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    assert pairing.same_content(executed, pairing.read_source(source))
    assert pairing.to_bytes(executed) == source.with_suffix(".ipynb").read_bytes(), "not in canonical form"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_source_survives_the_way_through_a_notebook(source):
    text = source.read_text(encoding="utf-8")
    assert not text.startswith("# ---"), "a source holds no header: versions and kernels differ between machines"
    again = jupytext.writes(pairing.read_source(source), fmt="py:percent")
    assert pairing.same_content(jupytext.reads(again, fmt="py:percent"), pairing.read_source(source))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_committed_notebook_was_run_whole(source):
    executed = nbformat.read(source.with_suffix(".ipynb"), as_version=4)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert not [
            output for output in cell.outputs if output.output_type == "error" or output.get("name") == "stderr"
        ]
    assert not [cell for cell in executed.cells if "injected-parameters" in cell.metadata.get("tags", [])]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_opening_says_what_for_whom_what_first_and_how_long(source):
    opening = pairing.read_source(source).cells[0]
    assert opening.cell_type == "markdown" and opening.source.startswith("# ")
    for part in ("**What it shows.**", "**For whom.**", "**What to know first.**", "**Time.**"):
        assert part in opening.source


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_code_fits_the_width_of_a_rendered_page(source):
    for cell in pairing.read_source(source).cells:
        if cell.cell_type == "code":
            assert not [line for line in cell.source.splitlines() if len(line) > 104]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_parameters_are_known_and_their_defaults_allowed(source):
    defaults = pairing.parameter_defaults(pairing.read_source(source))
    assert "results" in defaults
    for name, value in defaults.items():
        assert parameters.check(name, value) == value


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("# %%\nx = 1\n", "must have one cell tagged 'parameters', got 0"),
        ('# %% tags=["parameters"]\nx = 1\n# %% tags=["parameters"]\ny = 1\n', "got 2"),
        ('# %% tags=["parameters"]\nx = len("a")\n', "must hold assignments of plain values, got \"x = len('a')\""),
        ('# %% tags=["parameters"]\nx = \n', "must be Python, got a syntax error in line 1"),
        ('# %% tags=["parameters"]\nprint(1)\n', "must hold assignments of plain values, got 'print(1)'"),
    ],
)
def test_a_parameters_cell_that_is_none_is_refused(cells, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        pairing.parameter_defaults(jupytext.reads(cells, fmt="py:percent"))


def test_pairs_differ_by_content_alone():
    one, two = (jupytext.reads("# %% [markdown]\n# a\n\n# %%\nx = 1\n", fmt="py:percent") for _ in range(2))
    two.cells[1].outputs = [nbformat.v4.new_output("stream", text="1")]
    assert pairing.same_content(one, two)
    two.cells[1].source = "x = 2"
    assert not pairing.same_content(one, two)
    one.cells[1].metadata["tags"] = ["parameters"]
    two.cells[1].source = "x = 1"
    assert not pairing.same_content(one, two), "a lost tag is a difference"


def test_the_ledger_is_whole_and_the_readme_shows_it():
    ledger = claims.read(paths.figures())
    prefixes = {row.id.split("-")[0] for row in ledger}
    assert {"L1", "L2", "L3", "L4", "X1", "X2", "X4", "E3"} <= prefixes
    assert json.loads((paths.figures() / "claims.json").read_text(encoding="utf-8")) == [
        row
        for file in sorted(paths.figures().glob("[0-9]*_claims.json"))
        for row in json.loads(file.read_text(encoding="utf-8"))
    ]
    assert (paths.figures() / "claims.md").read_text(encoding="utf-8") == claims.markdown(ledger)
    begin, end = reproduce.README_MARKS
    table = (ROOT / "README.md").read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    assert table.strip() == claims.summary(ledger).strip()


def test_every_figure_has_its_data_and_belongs_to_a_notebook():
    names = {source.stem.split("_")[0] for source in SOURCES}
    figures = {file.stem for file in paths.figures().glob("*.png")}
    assert figures
    for stem in figures:
        assert stem.split("_")[0] in names
        assert (paths.figures() / f"{stem}.pdf").is_file() and (paths.figures() / f"{stem}.csv").is_file()
    assert {row.figure for row in claims.read(paths.figures()) if row.figure} <= figures


def test_who_can_test_has_every_extra():
    extras = PROJECT["optional-dependencies"]
    assert {text for name in extras for text in extras[name]} == set(extras["test"])


def test_the_lock_pins_every_dependency_within_its_range():
    for requirement in RANGES:
        pin = PINS[canonicalize_name(requirement.name)]
        (version,) = (specifier.version for specifier in pin)
        assert requirement.specifier.contains(version), f"{requirement} against pin {version}"
    assert str(PINS["torch"]) == "==2.13.0"


def test_what_is_installed_is_what_the_lock_pins():
    for requirement in RANGES:
        assert PINS[canonicalize_name(requirement.name)].contains(importlib.metadata.version(requirement.name)), (
            requirement.name
        )


def test_the_conda_environment_names_no_dependency_of_its_own():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    *conda, pip = environment["dependencies"]
    assert conda == [f"python{PROJECT['requires-python']}", "pip"]
    assert pip == {"pip": ["--constraint requirements.lock", "--editable .[test]"]}


def test_every_dependency_is_used():
    code = "\n".join(
        file.read_text(encoding="utf-8")
        for folder in ("lib", "notebooks", "tests")
        for file in (ROOT / folder).rglob("*.py")
    )
    imported = {match.lower() for match in re.findall(r"^\s*(?:import|from) (\w+)", code, re.M)}
    # Some are imported by another name; jupyter brings the kernel that papermill starts.
    spelled = {"scikit-learn": "sklearn", "pyyaml": "yaml"}
    for requirement in RANGES:
        assert (
            requirement.name == "jupyter"
            or spelled.get(requirement.name, requirement.name.replace("-", "_")) in imported
        ), requirement.name


def test_no_file_names_a_registry_or_a_machine():
    forbidden = re.compile(
        r"https?://(?!arxiv\.org|github\.com|doi\.org)[^\s)\"']*(?:pypi|simple|conda)|--(?:extra-)?index-url\s|--find-links\s|file://",
        re.I,
    )
    for file in ("requirements.lock", "environment.yml", "pyproject.toml", "Makefile", "README.md"):
        assert not forbidden.search((ROOT / file).read_text(encoding="utf-8")), file


def test_the_library_imports_only_downwards():
    """Each module may import those of earlier rows, so there is no circle."""
    layers = [
        {"checks", "paths"},
        {"attention", "parameters"},
        {"laws", "tasks", "claims"},
        {"training", "geometry", "figures"},
        {"sticky", "feedback", "inference", "pairing", "sweep"},
        {"models"},
        {"controls"},
        {"plots"},
        {"reproduce", "bench"},
    ]
    rank = {name: level for level, names in enumerate(layers) for name in names}
    for file in LIBRARY.rglob("*.py"):
        module = file.relative_to(LIBRARY).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attention_dynamics":
                names = [node.module.split(".")[1]] if "." in node.module else [alias.name for alias in node.names]
            for name in set(names) & set(rank) - {module}:
                assert rank[name] < rank[module], f"{module} imports {name}"
