"""The Python that has the frameworks: AUTOPLAN_FRAMEWORKS_PYTHON, by default this one."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

PYTHON = os.environ.get("AUTOPLAN_FRAMEWORKS_PYTHON", sys.executable)


@functools.cache
def has_module(name):
    """Return whether the Python with the frameworks has a module."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], check=False, capture_output=True).returncode == 0


def asked(script, cases, *arguments):
    """Return what a script, run by that Python with ``arguments``, answers to cases."""
    done = subprocess.run(
        [PYTHON, str(script), *arguments],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def wheel(name):
    """Return the path of a downloaded wheel; None where there is none."""
    folder = Path(os.environ.get("AUTOPLAN_FRAMEWORK_WHEELS", Path(sys.prefix) / "framework-wheels"))
    found = sorted(folder.glob(f"{name}-*.whl"))
    return str(found[-1]) if found else None
