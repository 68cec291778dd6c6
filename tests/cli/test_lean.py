"""What a command leaves out of its own start: pandas, which the solver loads for methods not used here."""

import subprocess
import sys

from autoplan.cli.shared.lean import without_pandas
from tests.cli.conftest import ROOT

PLANNED = """
import sys
from autoplan.cli.app import app
try:
    app(["plan", "specs/jobs/llama2-7b-2x-a100.yaml", "--format", "json"])
except SystemExit as error:
    assert not error.code, error
assert "ortools.sat.python.cp_model" in sys.modules
assert "pandas" not in sys.modules
import pandas
assert pandas.Series([1, 2]).sum() == 3
"""

ASKED = """
import sys
from autoplan.cli.shared.lean import without_pandas
with without_pandas():
    stand_in = sys.modules["pandas"]
    assert not isinstance([1], stand_in.Series | stand_in.Index)
    assert stand_in.DataFrame({"a": [1]}).shape == (1, 1)
    assert sys.modules["pandas"] is not stand_in
assert sys.modules["pandas"].Series([1, 2]).sum() == 3
"""


def _python(program):
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_a_plan_needs_no_pandas_and_leaves_it_to_be_loaded():
    """A plan is found without it; whoever imports it afterwards gets it."""
    done = _python(PLANNED)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_else_is_asked_of_it_loads_it():
    """Another version of the solver may need more: then it has all of it."""
    done = _python(ASKED)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_loaded_already_stays(monkeypatch):
    """A module that is there is never replaced."""
    monkeypatch.setitem(sys.modules, "pandas", sys)
    with without_pandas():
        assert sys.modules["pandas"] is sys
    assert sys.modules["pandas"] is sys
