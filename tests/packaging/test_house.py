"""The rules of the house that no linter checks: sizes, the public names, what a field says."""

import ast
import importlib
import inspect
import pkgutil
import re
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pydantic
import pytest

import autoplan
import autoplan.schema
from autoplan import errors
from autoplan.cli import app
from autoplan.commands.lean import process_started
from autoplan.lazy import ImportedValues, Later

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "autoplan").rglob("*.py"))
CATALOGUES = ("costmodels", "hardware", "specs")


def function_lengths() -> list[int]:
    """Return the length in lines of every function of the package, docstring included."""
    trees = (ast.parse(module.read_text(encoding="utf-8")) for module in MODULES)
    return [
        node.end_lineno - node.lineno + 1
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def class_lengths() -> dict[str, int]:
    """Return the length in lines of every class of the package, docstrings included."""
    return {
        f"{module.relative_to(ROOT)}: {node.name}": node.end_lineno - node.lineno + 1
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }


def modules_of(package: ModuleType) -> list[ModuleType]:
    """Return the package and every module below it, imported."""
    below = pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}.")
    return [package, *(importlib.import_module(module.name) for module in below)]


def schema_models() -> list[type[pydantic.BaseModel]]:
    """Return every pydantic model that the schema package defines."""
    found = {
        value
        for module in modules_of(autoplan.schema)
        for value in vars(module).values()
        if inspect.isclass(value)
        and issubclass(value, pydantic.BaseModel)
        and value.__module__.startswith("autoplan.schema")
    }
    return sorted(found, key=lambda model: (model.__module__, model.__qualname__))


def loaded_after(*arguments: str) -> set[str]:
    """Return the top-level packages that a fresh interpreter has imported after ``arguments``."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    names = re.findall(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", done.stderr, re.MULTILINE)
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_longer_than_600_lines(module):
    """A module is about one idea, and fits in one reading."""
    assert len(module.read_text(encoding="utf-8").splitlines()) <= 600


def test_no_class_is_longer_than_200_lines():
    """A class does one thing: what does several is divided by what each of them does."""
    lengths = class_lengths()

    assert len(lengths) > 500
    assert {name: lines for name, lines in lengths.items() if lines > 200} == {}


def test_functions_are_short():
    """Half of all functions have at most 10 lines, and 95 of 100 have at most 40."""
    lengths = function_lengths()

    assert statistics.median(lengths) <= 10
    assert statistics.quantiles(lengths, n=20)[-1] <= 40


@pytest.mark.parametrize("room", ["costs/serving", "costs/core"])
def test_names_say_what_a_value_is(room):
    """A class of requests is a ``request_class``, not something ``known``; likewise own, given and asked."""
    names = {
        (str(path.relative_to(ROOT)), name)
        for path in sorted((ROOT / "autoplan" / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in (getattr(node, "id", None), getattr(node, "arg", None), getattr(node, "attr", None))
        if name in {"known", "own", "given", "asked"}
    }

    assert names == set()


@pytest.mark.parametrize("catalogue", CATALOGUES)
def test_catalogues_hold_data_and_no_python(catalogue):
    """A catalogue is data: Python in it would break the editable install."""
    assert (ROOT / catalogue).is_dir()
    assert list((ROOT / catalogue).rglob("*.py")) == []


def test_public_names_are_sorted_and_there():
    """Whatever ``__all__`` promises can be imported, and is listed in order."""
    assert list(autoplan.__all__) == sorted(autoplan.__all__)
    assert [name for name in autoplan.__all__ if not hasattr(autoplan, name)] == []


def test_public_names_cover_the_contract():
    """The use cases, the values they return, every error and the version are public."""
    values = {"Front", "Layout", "Plan", "__version__", "evaluate", "load_job", "plan"}
    tree = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.AutoplanError)
    }

    assert (values | tree) - set(autoplan.__all__) == set()


def test_nothing_public_is_left_out_of_the_list():
    """What is ours and has no underscore in ``autoplan`` is in ``__all__``, or not there at all."""
    ours = {
        name
        for name, value in vars(autoplan).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("autoplan")
    }

    assert ours - set(autoplan.__all__) == set()


def test_whatever_is_imported_when_it_is_asked_for_is_there():
    """Values, functions and commands whose module a table names as a text, of every module."""
    for module in modules_of(autoplan):
        for value in vars(module).values():
            if isinstance(value, ImportedValues):
                assert all(value[key] is not None for key in value), module.__name__
            if isinstance(value, Later):
                assert callable(getattr(importlib.import_module(value.module), value.name)), module.__name__
    for name, command in app._COMMANDS.items():
        home = importlib.import_module(f"autoplan.{command.module}")
        assert callable(getattr(home, name.replace("-", "_")))


def test_a_process_that_imports_every_module_is_not_one_command():
    """The clock of a command starts with it: or every later search here would be over before it began."""
    modules_of(autoplan)

    assert process_started() is None


def test_types_are_shipped():
    """The marker that makes type checkers read our annotations is in the package."""
    assert (ROOT / "autoplan" / "py.typed").is_file()


def test_version_is_the_same_everywhere():
    """The newest release of the changelog is the version of the package, has a day, and is cited."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")

    parts = re.findall(r"^## \[(.+?)\](?: - (.+))?$", changelog, re.MULTILINE)
    version, day = parts[1]

    assert parts[0] == ("Unreleased", "")
    assert version == autoplan.__version__
    assert date.fromisoformat(day)
    assert f'\nversion: "{version}"\ndate-released: "{day}"\n' in citation


@pytest.mark.parametrize("model", schema_models(), ids=lambda model: model.__name__)
def test_every_field_of_a_file_is_described(model):
    """A user who reads the schema learns what each key means."""
    model.model_rebuild()
    silent = [name for name, field in model.model_fields.items() if not field.description]

    assert silent == []


def test_importing_autoplan_loads_nothing_heavy():
    """``import autoplan`` is cheap: the solver, numpy and the terminal come when they are used."""
    heavy = {"numpy", "ortools", "pandas", "rich", "typer"}

    assert loaded_after("-c", "import autoplan") & heavy == set()


def test_the_help_page_loads_no_solver():
    """``autoplan --help`` is instant: it loads the command line and no arithmetic."""
    loaded = loaded_after("-m", "autoplan", "--help")

    assert "typer" in loaded
    assert loaded & {"jinja2", "numpy", "ortools", "pandas"} == set()


@pytest.mark.parametrize(("form", "shown_by"), [("json", set()), ("table", {"rich"})])
def test_an_answer_loads_only_what_shows_it(form, shown_by):
    """A document needs no terminal, and only a page needs templates."""
    loaded = loaded_after("-m", "autoplan", "evaluate", "llama3.2-1b-2x-rtx3090", "-l", "tp=2", "-f", form)

    assert loaded & {"jinja2", "markupsafe", "rich"} == shown_by
