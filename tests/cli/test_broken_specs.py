"""Whatever is broken in a spec, the program answers or says what is wrong: never a traceback."""

from pathlib import Path

import pytest

from tests.support.broken_specs import COMMANDS, broken_spec, broken_specs, whole_files
from tests.support.quick_cases import slow_after
from tests.support.spec_runs import KILLED_AFTER_CLOCK_SECONDS, assert_answered_or_refused, swept_here

#: Broken specs in all, and how many one test takes. `make test-slow` takes thousands.
SPECS = 104
BATCH = 8


@pytest.fixture
def _threads(monkeypatch):
    with swept_here(monkeypatch):
        yield


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("command", [command for commands in COMMANDS.values() for command in commands])
def test_the_specs_that_are_broken_below_are_whole(run, tmp_path, monkeypatch, command):
    """Unbroken, every command has an answer."""
    monkeypatch.chdir(tmp_path)
    for name, text in whole_files().items():
        Path(name).write_text(text, encoding="utf-8")
    done = run(*command)

    assert done.exit_code == 0, done.stderr


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("batch", slow_after(6, range(SPECS // BATCH)))
def test_a_broken_spec_is_answered_or_refused(tmp_path, monkeypatch, batch):
    """Each exits with 0, 1 or 2, and shows no traceback; without an answer, standard error says why."""
    monkeypatch.chdir(tmp_path)
    for spec in broken_specs(range(batch * BATCH, (batch + 1) * BATCH)):
        assert_answered_or_refused(spec, tmp_path)


@pytest.mark.parametrize("seed", [3, 8])
def test_a_process_of_its_own_does_the_same(process, tmp_path, seed):
    """What holds in this process holds for a user's: an exit code of 0, 1 or 2, and no traceback."""
    spec = broken_spec(seed)
    spec.write(tmp_path)
    done = process(*spec.command, cwd=tmp_path, timeout=KILLED_AFTER_CLOCK_SECONDS)

    assert done.returncode in {0, 1, 2}
    assert b"Traceback" not in done.stderr
