"""``--output``: written whole or not at all, and the streams that cannot take everything."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest
import typer

from autoplan.commands.output import escaped, write

ROOT = Path(__file__).resolve().parents[2]

EVALUATE = ("evaluate", "llama3-8b-8x-a100", "--layout", "tp=2")


def test_output_goes_to_the_file_and_nowhere_else(run, tmp_path):
    """The file holds what would have been printed."""
    file = tmp_path / "plan.json"
    done = run(*EVALUATE, "--format", "json", "--output", file)

    assert done.exit_code == 0
    assert done.output == ""
    assert json.loads(file.read_text()) == json.loads(run(*EVALUATE, "--format", "json").stdout)


def test_a_table_in_a_file_has_unicode_and_no_colours(run, tmp_path, monkeypatch):
    """A file takes everything but colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = tmp_path / "plan.txt"
    run(*EVALUATE, "--output", file)
    text = file.read_text(encoding="utf-8")

    assert "█" in text
    assert "\x1b" not in text


def test_a_file_is_replaced_at_once(tmp_path, monkeypatch):
    """A write that fails leaves the old file as it was, and nothing beside it."""
    file = tmp_path / "plan.json"
    file.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(typer.BadParameter, match="No space left"):
        write("new", file)

    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_leaves_the_file_alone(run, tmp_path):
    """Bad input never empties an earlier answer."""
    file = tmp_path / "plan.json"
    file.write_text("old")
    done = run("evaluate", "no-such-job", "--layout", "tp=2", "--output", file)

    assert done.exit_code == 2
    assert file.read_text() == "old"


def test_permissions_of_a_file_are_kept(tmp_path):
    """Replacing a file changes its content only; a new file is as readable as any other."""
    old, new, plain = (tmp_path / name for name in ("old", "new", "plain"))
    old.write_text("x")
    old.chmod(0o640)
    plain.write_text("x")
    write("y", old)
    write("y", new)

    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert new.stat().st_mode == plain.stat().st_mode


def test_a_link_is_followed(tmp_path):
    """Writing to a link writes to what it names."""
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write("new", link)

    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.parametrize("name", [".", "missing/plan.json", "x" * 300])
def test_a_place_that_cannot_be_written_exits_2(run, tmp_path, name):
    """A folder, a missing folder and an impossible name are told."""
    done = run(*EVALUATE, "--output", tmp_path / name)

    assert done.exit_code == 2
    assert "cannot write" in done.stderr


def test_a_device_is_written_to_and_not_replaced(run):
    """``--output /dev/null`` leaves the device in its place."""
    assert run(*EVALUATE, "--output", os.devnull).exit_code == 0
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)  # noqa: PTH116 - not a file of ours


def test_piped_tables_have_no_colours_and_120_columns(process):
    """What goes to a pipe is plain text."""
    done = process(*EVALUATE)
    text = done.stdout.decode("utf-8")

    assert done.returncode == 0
    assert "\x1b" not in text
    assert 100 < max(map(len, text.splitlines())) <= 120
    assert all(line == line.rstrip() for line in text.splitlines())


def test_force_color_colours_a_pipe(process):
    """Who pages through output with colours may have them."""
    assert b"\x1b[" in process(*EVALUATE, env={"FORCE_COLOR": "1"}).stdout


def test_an_ascii_stream_gets_ascii(process):
    """Where the encoding cannot carry bars of blocks, they are drawn in ASCII."""
    done = process(*EVALUATE, env={"PYTHONIOENCODING": "ascii"})

    assert done.returncode == 0
    assert "####" in done.stdout.decode("ascii")


def test_columns_sets_the_width(process):
    """``COLUMNS`` is obeyed."""
    done = process(*EVALUATE, env={"COLUMNS": "80"})
    layout, *_ = (line for line in done.stdout.decode().splitlines() if line.startswith("tp="))

    # The layout string is there to be copied, so it alone is never broken.
    assert all(len(line) <= 80 or line == layout for line in done.stdout.decode("utf-8").splitlines())


def test_errors_go_to_standard_error_without_a_traceback(process, tmp_path):
    """A process of its own says what a user sees."""
    done = process("evaluate", tmp_path, "--layout", "tp=2")

    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode().startswith("error: cannot read ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_a_reader_that_goes_away_is_quiet(process):
    """``autoplan ... | head -0`` ends without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    done = _with_stdout(writing)
    os.close(writing)

    assert done.returncode == 141
    assert done.stderr == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")  # noqa: PTH110
def test_a_full_disk_is_told():
    """Output that cannot be written is an error, not a success."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = _with_stdout(full.fileno())

    assert done.returncode == 2
    assert done.stderr == b"error: No space left on device\n"


def _with_stdout(handle):
    import subprocess

    return subprocess.run(
        [sys.executable, "-m", "autoplan", *EVALUATE],
        check=False,
        stdout=handle,
        stderr=subprocess.PIPE,
        timeout=120,
    )


def test_version_and_help_exit_0(process):
    """The first things that anyone tries work."""
    import autoplan

    assert process("--version").stdout.decode().strip() == f"autoplan {autoplan.__version__}"
    assert process("--help").returncode == 0
    assert process("plan", "-h").returncode == 0


# --- streams that fail, and text that acts on a terminal


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("plan", "--help"), ("catalog", "-h")])
def test_help_that_nobody_reads_is_quiet(arguments):
    """``autoplan --help | true`` ends as any other output that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    done = _with_streams(arguments, stdout=writing)
    os.close(writing)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")  # noqa: PTH110
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("evaluate", "no-such-job", "--layout", "tp=2"), 2),
        (("evaluate", "--no-such-option"), 2),
        ((), 2),
        (EVALUATE, 0),
    ],
)
def test_messages_that_cannot_be_written_change_nothing(arguments, code):
    """A full or a closed standard error costs the message, and not the exit code."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        assert _with_streams(arguments, stderr=full.fileno()).returncode == code
    reading, writing = os.pipe()
    os.close(reading)
    assert _with_streams(arguments, stderr=writing).returncode == code
    os.close(writing)


def _with_streams(arguments, **streams):
    import subprocess

    return subprocess.run(
        [sys.executable, "-m", "autoplan", *arguments],
        check=False,
        timeout=120,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


@pytest.mark.parametrize("name", ["-", "./-"])
def test_a_dash_is_standard_output(run, tmp_path, monkeypatch, name):
    """``--output -`` writes no file of that name."""
    monkeypatch.chdir(tmp_path)
    done = run(*EVALUATE, "--output", name)

    assert done.exit_code == 0
    assert done.stdout == run(*EVALUATE).stdout
    assert list(tmp_path.iterdir()) == []


#: What acts on a terminal: a colour, a bell, a move of the cursor, C1, line separators, directions of text.
ACTING = "\x1b[31m\x07\x08\r\x9b2J\u2028\u202e\u2066\u200f"


def test_text_of_a_user_does_not_act_on_the_terminal(run, tmp_path):
    """Names, titles and reasons are printed with what is no sign escaped, in answers and in errors."""
    job = tmp_path / f"job{ACTING}.yaml"
    text = (ROOT / "specs/jobs/llama3-8b-8x-a100.yaml").read_text(encoding="utf-8")
    reason = "because\\u202e\\u2066\\u200f"
    job.write_text(f'{text}\nrules: [{{rule: tp <= 1, because: "{reason}"}}]\n', encoding="utf-8")
    for arguments in (
        ("evaluate", job, "--layout", "tp=1"),
        ("evaluate", job, "--layout", "tp=2"),
        ("explain", job, "--layout", "tp=2"),
        ("evaluate", job, "--layout", f"tp={ACTING}"),
        ("evaluate", f"{job}x", "--layout", "tp=2"),
        ("evaluate", job, f"--{ACTING}"),
        (ACTING,),
        ("catalog", "show", ACTING),
    ):
        done = run(*arguments)

        assert done.output, arguments
        assert [line for line in done.output.split("\n") if not line.isprintable()] == [], arguments


def test_colours_stay_and_the_rest_is_escaped():
    """On a terminal with colours, only what rich writes for them passes."""
    assert escaped("\x1b[1mbold\x1b[0m\x1b]8;;x\x1b", styled=True) == "\x1b[1mbold\x1b[0m\\x1b]8;;x\\x1b"
    assert escaped("\x1b[1mbold") == "\\x1b[1mbold"


ANSWERS = {
    "evaluate": EVALUATE,
    "evaluate serving": ("evaluate", "llama3.1-8b-1x-h100", "--layout", "tp=1"),
    "capacity": ("capacity", "llama3.1-8b-1x-h100"),
    "compare serving": ("compare", "llama3.1-8b-1x-h100", "--layout", "tp=1", "--layout", "tp=1,seqs=64"),
    "explain": ("explain", "llama3-8b-8x-a100", "--layout", "tp=2,pp=1,ep=2"),
    "gemm": ("gemm", "--m", "4096", "--n", "4096", "--k", "4096", "--device", "h100-sxm5-80gb"),
    "catalog list": ("catalog", "list", "grid"),
    "catalog show": ("catalog", "show", "h100-sxm5-80gb"),
    "schema": ("schema", "grid"),
}


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
@pytest.mark.parametrize("command", ANSWERS.values(), ids=ANSWERS)
def test_the_suffix_of_a_file_says_its_format(command, suffix, run, tmp_path):
    """What is written to x.json is JSON and to x.yaml YAML, as --format says, without it."""
    form, file = suffix.replace("yml", "yaml"), tmp_path / f"answer.{suffix}"
    done = run(*command, "--output", file)

    assert not done.stdout
    assert file.read_text("utf-8") == run(*command, "--format", form).stdout
    assert file.read_text("utf-8").startswith(("{", "[")) == (form == "json")


def test_a_format_that_is_typed_counts_whatever_the_suffix(run, tmp_path):
    """--format decides, before or after the file; a file of another name has the table."""
    for name, form in (("a.json", "yaml"), ("b.yaml", "table"), ("c.txt", "json")):
        for words in (("--format", form, "-o", tmp_path / name), ("-o", tmp_path / name, "--format", form)):
            run(*EVALUATE, *words)
            text = (tmp_path / name).read_text("utf-8")
            assert {"yaml": "schema: 1", "table": "Llama 3 8B", "json": "{"}[form] in text[:20]
    run(*EVALUATE, "-o", tmp_path / "plain")

    assert (tmp_path / "plain").read_text("utf-8").startswith("Llama 3 8B")


@pytest.mark.parametrize("name", ["answer.html", "answer.svg"])
def test_a_page_or_a_chart_that_there_is_none_of_is_refused(name, run, tmp_path):
    """A table is not written to a file whose name says that it is something else."""
    done = run("capacity", "llama3.1-8b-1x-h100", "--output", tmp_path / name)

    assert done.exit_code == 2
    assert "name a .json, .yaml or .txt file" in done.stderr
    assert not (tmp_path / name).exists()


def test_a_launch_file_is_read_to_a_job_file_by_its_suffix(run, tmp_path):
    """``read --output job.yaml`` writes the job file that --format yaml prints."""
    script = tmp_path / "train.sh"
    model = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024"
    words = f"{model} --max-position-embeddings 1024 --micro-batch-size 4 --global-batch-size 64"
    script.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {words}\n")
    run("read", script, "--output", tmp_path / "job.yaml")

    assert (tmp_path / "job.yaml").read_text("utf-8") == run("read", script, "--format", "yaml").stdout


def test_a_sweep_is_written_as_a_document(run, tmp_path):
    """``sweep --output x.json`` has the rows as JSON, and no journal beside it."""
    file = tmp_path / "rows.json"
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "schema: 1\nkind: sweep\nbase: llama3.2-1b-2x-rtx3090\ngrid: {devices: [1]}\n", encoding="utf-8"
    )
    run("sweep", grid, "--workers", "1", "--output", file)

    assert [row["cell"] for row in json.loads(file.read_text("utf-8"))["rows"]] == [1]
    assert list(tmp_path.glob("*.journal")) == []
