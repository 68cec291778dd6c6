"""Files that are none: pipes, devices, folders, loops of links and catalogues that are not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.broken_specs import whole_files

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and links of POSIX")

ROOT = Path(__file__).resolve().parents[2]

#: The commands that read a file, by the option or the argument that names it.
READERS = {
    "job": ("evaluate", "FILE", "--layout", "dp=2"),
    "grid": ("sweep", "FILE"),
    "plan": ("verify", "FILE"),
    "runs": ("calibrate", "--runs", "FILE"),
}

EVALUATE = ("evaluate", "job.yaml", "--layout", "dp=2,mbs=1")
LONG = "9" * 300
SWEEP = ("sweep", "grid.yaml", "--workers", "1")


def hostile(folder: Path, suffix: str) -> dict[str, Path]:
    """Make one of each kind of file that cannot be read as text, with the ``suffix``, and return them."""
    kinds = ("pipe", "zero", "full", "loop", "folder", "huge", "latin", "zeros", "missing")
    files = {kind: folder / f"{kind}{suffix}" for kind in kinds}
    os.mkfifo(files["pipe"])
    files["zero"].symlink_to("/dev/zero")
    files["full"].symlink_to("/dev/full")
    files["loop"].symlink_to(files["loop"])
    files["folder"].mkdir()
    with files["huge"].open("wb") as file:
        file.truncate(2**40)
    files["latin"].write_bytes(b"kind: tr\xe4ining\n")
    files["zeros"].write_bytes(b"kind: tr\0ining\n")
    return files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder with whole specs, which is the current one."""
    monkeypatch.chdir(tmp_path)
    for name, text in whole_files().items():
        Path(name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_at_once(run, here, reader):
    """No command waits for a pipe, reads a device to its end or fails at a link: each names the file."""
    for kind, file in hostile(here, ".yaml").items():
        done = run(*(str(file) if word == "FILE" else word for word in READERS[reader]))

        assert (done.exit_code, done.stdout) == (2, ""), kind
        assert done.stderr.startswith("error: "), kind
        assert str(file) in done.stderr, kind


@pytest.mark.parametrize("key", ["model", "hardware", "stack", "kernels"])
def test_a_job_that_names_no_file_is_refused_at_its_line(run, here, key):
    """What a job names is read as carefully as the job."""
    whole = Path("job.yaml").read_text(encoding="utf-8")
    for kind, file in hostile(here, ".yml").items():
        lines = [f"{key}: {file}" if line.startswith(f"{key}:") else line for line in whole.splitlines()]
        Path("job.yaml").write_text("\n".join(lines), encoding="utf-8")
        done = run(*EVALUATE)

        assert (done.exit_code, done.stdout) == (2, ""), kind
        assert f"{file}" in done.stderr, kind


def test_a_pipe_of_the_shell_is_read(process, here):
    """``<(command)`` and standard input are pipes too, and whoever opened them writes."""
    job = (ROOT / "specs/jobs/llama3-8b-8x-a100.yaml").read_bytes()

    assert process("evaluate", "/dev/stdin", "--layout", "tp=2", input=job).returncode == 0


@pytest.mark.parametrize("command", [EVALUATE, SWEEP])
def test_what_cannot_be_written_is_told(run, here, command):
    """A pipe without a reader, a folder and a loop of links end in an error that names the file."""
    files = hostile(here, ".csv")
    for kind in ("pipe", "loop", "folder"):
        done = run(*command, "--output", files[kind])

        assert (done.exit_code, done.stdout) == (2, ""), kind
        assert "cannot write" in done.stderr, kind
        assert files[kind].name in done.stderr, kind


def test_a_journal_that_is_no_file_is_refused(run, here):
    """A pipe, a device or a loop of links in the place of the journal is not waited for."""
    for file in hostile(here, ".csv.journal").values():
        if file.stem.removesuffix(".csv") in {"pipe", "zero", "loop", "folder"}:
            done = run(*SWEEP, "--output", file.with_suffix(""))

            assert (done.exit_code, done.stdout) == (2, "")
            assert f"cannot write {file}" in done.stderr


def test_an_output_that_cannot_be_is_told_before_the_work(run, here, monkeypatch):
    """Nobody waits for a search whose answer has no place."""
    monkeypatch.setattr("autoplan.planning.plan_and_evaluate.evaluate_training", None)
    done = run(*EVALUATE, "--output", "missing/plan.json")

    assert done.exit_code == 2
    assert "cannot write 'missing/plan.json': No such file or directory" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("plan", LONG),
        ("sweep", "grid.yaml"),
        ("sweep", "small-models-2x-gpu", "--output", f"{LONG}.csv"),
        ("read", LONG),
        ("emit", "llama3-8b-8x-a100", "--layout", "tp=8", "--for", "megatron-lm", "--output", LONG),
    ],
    ids=lambda command: command[0] + str(len(command)),
)
def test_a_name_too_long_for_the_system_is_told(run, here, command):
    """The error names what is too long."""
    Path("grid.yaml").write_text(f"schema: 1\nkind: sweep\nbase: '{LONG}'\ngrid: {{devices: [8]}}\n")
    done = run(*command)

    assert (done.exit_code, done.stdout) == (2, "")
    assert LONG[:40] in done.stderr


@pytest.mark.parametrize(
    ("catalogue", "said"),
    [
        ("missing", "missing does not exist: name a folder, or unset the variable"),
        ("job.yaml", "job.yaml is not a folder"),
        (".", "has none of the folders hardware, specs, costmodels"),
        ("loop", "cannot read loop"),
        ("odd", "odd/hardware/nodes is not a folder"),
    ],
)
def test_a_catalogue_that_is_none_is_refused(run, here, monkeypatch, catalogue, said):
    """A misspelt folder is told, instead of planning with the shipped entries alone."""
    Path("loop").symlink_to("loop")
    Path("odd/hardware").mkdir(parents=True)
    Path("odd/hardware/nodes").touch()
    monkeypatch.setenv("AUTOPLAN_CATALOG", catalogue)
    done = run("catalog", "list")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "AUTOPLAN_CATALOG: " in done.stderr
    assert said in done.stderr


def test_an_empty_catalogue_is_one(run, here, monkeypatch):
    """Whoever begins a catalogue begins with an empty folder."""
    Path("own").mkdir()
    monkeypatch.setenv("AUTOPLAN_CATALOG", "own")

    assert run("catalog", "list").exit_code == 0
