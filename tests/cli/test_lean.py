"""What a command leaves out of its own start: pandas, and the collection of garbage."""

import gc
import subprocess
import sys

import pytest

from autoplan.commands.lean import collect_again, without_pandas
from benchmarks.speed.measure import IMPORT
from tests.cli.conftest import ROOT

#: What a plan without errors, own rules or requests to serve does not need.
NEEDLESS = {
    "numpy.ma",
    "autoplan.answers.plan.serving",
    "autoplan.costs.serving",
    "autoplan.launch.engines",
    "autoplan.report.wording.sentences",
    "autoplan.schema.user_rules.grammar",
    "autoplan.schema.yaml.validation_errors",
    "autoplan.schema.yaml.writer",
}

#: What a table says in sentences, and the rules of the program that its last line writes for.
OF_TABLES = {"autoplan.report.wording.sentences", "autoplan.schema.user_rules.grammar"}
PLANNED = """
import sys
from autoplan.cli.app import application
try:
    application(["plan"])(["plan", "specs/jobs/llama2-7b-2x-a100.yaml", *{form!r}])
except SystemExit as error:
    assert not error.code, error
assert "ortools.sat.python.cp_model" in sys.modules
assert "pandas" not in sys.modules
assert not {needless!r} & set(sys.modules), {needless!r} & set(sys.modules)
import pandas
assert pandas.Series([1, 2]).sum() == 3
"""

ASKED = """
import sys
from autoplan.commands.lean import without_pandas
with without_pandas():
    stand_in = sys.modules["pandas"]
    assert not isinstance([1], stand_in.Series | stand_in.Index)
    assert stand_in.DataFrame({"a": [1]}).shape == (1, 1)
    assert sys.modules["pandas"] is not stand_in
assert sys.modules["pandas"].Series([1, 2]).sum() == 3
"""

COLLECTED = """
import gc, sys
from autoplan.cli import app
sys.argv[1:] = {words!r}
try:
    app.main()
except SystemExit as error:
    assert not error.code, error
assert gc.isenabled() is {collected}
assert gc.get_freeze_count() > 0
"""

UNIT = """
import sys
exec(sys.argv[1])
assert "ortools.sat.python.cp_model" in sys.modules
assert "pandas" not in sys.modules
"""


def _python(program, *arguments):
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=ROOT, check=False
    )


@pytest.mark.parametrize("form", [(), ("--format", "json")], ids=["table", "json"])
def test_a_plan_needs_no_pandas_and_leaves_it_to_be_loaded(form):
    """A plan is found without it and what else is needless; whoever imports it afterwards gets it."""
    needless = NEEDLESS if form else NEEDLESS - OF_TABLES
    if _python("import numpy, sys; sys.exit('numpy.ma' in sys.modules)").returncode:
        needless -= {"numpy.ma"}  # numpy 1 imports it itself
    done = _python(PLANNED.format(needless=needless, form=form))
    assert (done.returncode, done.stderr) == (0, "")


def test_what_else_is_asked_of_it_loads_it():
    """Another version of the solver may need more: then it has all of it."""
    done = _python(ASKED)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "collected"),
    [
        (["plan", "specs/jobs/llama2-7b-2x-a100.yaml"], True),
        (["catalog", "--help"], False),
        (["evaluate", "llama3-8b-8x-a100", "--layout", "tp=2"], False),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else None,
)
def test_only_short_commands_collect_no_garbage(words, collected):
    """What may take long collects it from the moment that all is loaded."""
    done = _python(COLLECTED.format(words=words, collected=collected))
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_imports_autoplan_keeps_its_own_ways():
    """Where the program did not switch the collection off, nothing is frozen."""
    before = gc.get_freeze_count()
    collect_again()
    assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_the_unit_of_the_speed_benchmark_is_the_import_of_the_program():
    """What a run is compared with leaves out what the run leaves out."""
    done = _python(UNIT, IMPORT[-1])
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_loaded_already_stays(monkeypatch):
    """A module that is there is never replaced."""
    monkeypatch.setitem(sys.modules, "pandas", sys)
    with without_pandas():
        assert sys.modules["pandas"] is sys
    assert sys.modules["pandas"] is sys
