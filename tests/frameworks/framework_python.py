"""The Python that has the frameworks: AUTOPLAN_FRAMEWORKS_PYTHON, by default this one."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import zipfile
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


def wheel(name, version=""):
    """Return the path of a downloaded wheel, the newest one of a version; None where there is none."""
    folder = Path(os.environ.get("AUTOPLAN_FRAMEWORK_WHEELS", Path(sys.prefix) / "framework-wheels"))
    found = sorted(folder.glob(f"{name}-{version}*.whl"))
    return str(found[-1]) if found else None


def unpacked(name, version=""):
    """Return a folder with the files of a wheel, but for libraries of kernels; None where there is none.

    It is made once, beside the wheel: packages that look for files of theirs cannot be imported from a wheel.
    """
    path = wheel(name, version)
    if path is None:
        return None
    folder = Path(path).with_suffix(".unpacked")
    if not folder.exists():
        scratch = Path(tempfile.mkdtemp(dir=folder.parent))
        with zipfile.ZipFile(path) as archive:
            archive.extractall(scratch, [item for item in archive.namelist() if not item.endswith(".so")])
        scratch.rename(folder)
    return str(folder)


@functools.cache
def installed_version(name):
    """Return the version of a package that the Python with the frameworks has."""
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
