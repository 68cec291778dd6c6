"""``autoplan launch`` as a user runs it: the command has the flags, and takes the program's place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from autoplan import emit, evaluate, load_job

JOB = "llama3-8b-8x-a100"
LAYOUT = "tp=2,pp=2,dp=2,mbs=1"
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['CUDA_DEVICE_MAX_CONNECTIONS']]))"


def launched(*command, options=(), layout=LAYOUT, **environment):
    """Run ``autoplan launch`` as a process of its own, which it replaces."""
    asked = ("--layout", layout) if layout else ()
    words = [sys.executable, "-m", "autoplan", "launch", JOB, "--for", "megatron-lm", *asked, *options]
    environment = {**os.environ, **environment}
    return subprocess.run(
        [*words, "--", *command], capture_output=True, text=True, check=False, timeout=120, env=environment
    )


def flags():
    """Return the flags of the layout, by the library."""
    job = load_job(JOB)
    return list(emit(evaluate(job, LAYOUT), "megatron-lm", job=job).arguments)


def test_the_flags_follow_the_command_or_take_their_place():
    """Words of the user stay as they are, spaces and dollars too; the needed variable is set."""
    after = launched(sys.executable, "-c", TELL, "--data", "a b $HOME")
    between = launched(sys.executable, "-c", TELL, "first", "{autoplan}", "last")

    assert json.loads(after.stdout) == [["--data", "a b $HOME", *flags()], "1"]
    assert json.loads(between.stdout) == [["first", *flags(), "last"], "1"]
    assert after.stderr.startswith("autoplan: tp=2,pp=2,dp=2,")


def test_variables_of_the_user_are_kept():
    """What the environment has is what the user wants."""
    done = launched(sys.executable, "-c", TELL, CUDA_DEVICE_MAX_CONNECTIONS="8")

    assert json.loads(done.stdout)[1] == "8"


def test_the_exit_code_is_that_of_the_command():
    """A launcher sees what the training program says."""
    assert launched(sys.executable, "-c", "raise SystemExit(7)").returncode == 7


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_signals_reach_the_command():
    """The process that a launcher started is the command itself."""
    words = [sys.executable, "-m", "autoplan", "launch", JOB, "--for", "megatron-lm", "-l", LAYOUT, "--"]
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([*words, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.slow
def test_a_planned_job_is_launched_and_its_answer_kept(tmp_path):
    """Without a layout the fastest plan is taken; the second start finds the answer in the cache."""
    first = launched("true", layout=None, options=("--cache",), AUTOPLAN_CACHE_DIR=str(tmp_path))
    kept = list(tmp_path.rglob("*.json"))
    second = launched("true", layout=None, options=("--cache",), AUTOPLAN_CACHE_DIR=str(tmp_path))

    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stderr == second.stderr
    assert kept
    assert list(tmp_path.rglob("*.json")) == kept


@pytest.mark.parametrize(
    ("command", "options", "said"),
    [
        (("no-such-program",), (), "there is no program 'no-such-program'"),
        (("true",), ("--for", "nothing"), "nothing"),
        (("true",), ("--for", "deepspeed"), "DeepSpeed cannot express this plan: pipeline stages"),
    ],
)
def test_bad_input_runs_nothing(command, options, said):
    """An unknown program or target is an error with exit code 2."""
    done = launched(*command, options=options)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_dry_run_prints_the_command_for_a_shell():
    """What is printed can be pasted: words are quoted, and nothing is run."""
    done = launched("torchrun", "train.py", "{autoplan}", "--name", "it's", options=("--dry-run",))

    assert done.returncode == 0
    assert done.stdout.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun train.py --num-layers 32 ")
    assert done.stdout.rstrip().endswith("""--name 'it'"'"'s'""")
