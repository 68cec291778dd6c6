"""Fixtures of the command line: the program in this process, and as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.spec_runs import run_here

ROOT = Path(__file__).resolve().parents[2]

# What a user's shell may set and what must not decide a test.
OUTSIDE = ("AUTOPLAN_CATALOG", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in OUTSIDE:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run():
    """Return a function that runs the program in this process."""
    return run_here


@pytest.fixture
def process():
    """Return a function that runs the program as a user does, in a process of its own."""

    def start(*arguments, **settings):
        env = {**os.environ, "PYTHONPATH": str(ROOT), **settings.pop("env", {})}
        return subprocess.run(
            [sys.executable, "-m", "autoplan", *map(str, arguments)],
            check=False,
            capture_output=True,
            env=env,
            timeout=settings.pop("timeout", 120),
            **settings,
        )

    return start
