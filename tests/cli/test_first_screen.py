"""The first screen of ``plan``: at most 40 lines, readable in 80 columns; the rest is behind --details."""

import shlex

import pytest

from autoplan.catalog import entry_names
from tests.support.quick_cases import slow_but

#: Jobs with a long front, without a plan, and with a front that is told in few lines.
QUICK = ("llama2-13b-8x-l40s", "llama2-7b-2x-rtx4090", "qwen3-1.7b-2x-rtx3090")
JOBS = [*entry_names("job"), *entry_names("serving")]
LINE = ("--model", "gpt2", "--hardware", "2x-rtx4090", "--batch", "16", "--sequence-length", "1024")


def screen(run, monkeypatch, columns, *words):
    """Return the lines that ``plan`` writes to a terminal of so many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    return run("plan", *words).stdout.splitlines()


def copied(line):
    """Return whether a line is one to be copied, which is never broken: a layout or a command."""
    return "tp=" in line or "autoplan plan" in line or line.startswith("next: ")


@pytest.mark.parametrize("job", slow_but(QUICK, JOBS))
def test_the_first_screen_is_short_and_keeps_to_the_width(run, monkeypatch, job):
    """At most 40 lines of 100 columns; in 80 columns nothing but what is copied is longer."""
    wide = screen(run, monkeypatch, 100, job)
    assert len(wide) <= 40
    assert [line for line in wide if len(line) > 100 and not copied(line)] == []
    narrow = screen(run, monkeypatch, 80, job)
    assert [line for line in narrow if len(line) > 80 and not copied(line)] == []
    assert any(line.startswith(("next: ", "to make change 1: ")) for line in wide)


def test_details_have_what_the_first_screen_leaves_out(run, monkeypatch):
    """What was rejected, counts of layouts and sources are behind --details; JSON has them in any case."""
    short = "\n".join(screen(run, monkeypatch, 100, *LINE))
    whole = "\n".join(screen(run, monkeypatch, 100, *LINE, "--details"))
    for words in ("rejected, as", "search space: ", "kernel curves ", "peak memory of a device"):
        assert words in whole
        assert words not in short
    for words in ("proven optimal: ", "90 % interval: ", "fastest: ", "next: autoplan emit"):
        assert words in short
        assert words in whole


def test_programs_and_what_cannot_be_told_apart_stand_above_the_front(run, monkeypatch):
    """The head has each program's best plan, then the noise of the model, then the plans."""
    lines = screen(run, monkeypatch, 100, *(word.replace("4090", "3090") for word in LINE))
    starts = ("program ", "plans ", "#  layout")
    numbers = [next(n for n, line in enumerate(lines) if line.lstrip().startswith(start)) for start in starts]
    assert numbers == sorted(numbers)


def test_the_interval_says_what_narrows_it(run, monkeypatch):
    """A run that is measured narrows any interval, and a stack that is named that of an assumed one."""
    line = ("--model", "llama2-13b", "--hardware", "8x-l40s", "--batch", "128", "--program", "any-layout")
    said = " ".join(" ".join(screen(run, monkeypatch, 100, *line)).split())
    assert "name the program or the stack, fsdp2 is assumed: " in said
    assert "calibrate with one run (autoplan calibrate JOB --layout L --log FILE): " in said
    low, high = ends(said.split("90 % interval: ")[1])
    named = ends(said.split("is assumed: ")[1])
    measured = ends(said.split("--log FILE): ")[1])
    assert low < named[0] < measured[0] < measured[1] < named[1] < high


COPIES = ("--model", "llama3.2-1b", "--hardware", "8x-rtx4090", "--stack", "fsdp2", "--batch", "64")


def test_where_the_choice_hangs_on_copies_over_pcie_it_is_said(run, monkeypatch):
    """At the ends of the rates that hosts have other layouts win; a switch of NVLink has one rate."""
    options = (*COPIES, "--sequence-length", "1024")
    said = " ".join(" ".join(screen(run, monkeypatch, 100, *options)).split())
    words = said.split("the choice hangs on the rate between devices over PCIe, ")[1]
    assert words.startswith("12 GB/s is taken: at 4.2 GB/s ")
    assert "autoplan hardware --measure" in words

    direct = " ".join(" ".join(screen(run, monkeypatch, 100, "llama2-13b-8x-l40s")).split())
    assert "over PCIe, 32 GB/s is taken: at 8.2 GB/s " in direct

    switched = " ".join(screen(run, monkeypatch, 100, "llama3-8b-8x-h100"))
    assert "the choice hangs" not in switched


def ends(text):
    """Return the ends of ``54.12 s to 60 s …``."""
    low, _, _, high, _ = text.split(maxsplit=4)
    return float(low), float(high)


def test_next_says_which_plans_it_passes_over(run, monkeypatch):
    """Where no target writes the fastest plan, the first that one writes is named with what it costs."""
    lines = screen(run, monkeypatch, 100, "llama3-8b-8x-h100")
    words = shlex.split(lines[-1].removeprefix("next: autoplan "))
    if "--plan" in words:
        number = words[words.index("--plan") + 1]
        assert f"plan {number}, " in lines[-2]
        assert "% slower" in lines[-2]
    assert run(*words).exit_code == 0


def test_a_faster_layout_that_nothing_starts_is_one_of_the_details(run, monkeypatch):
    """It is on a line of its own, and the program refuses it."""
    job = ("--model", "llama2-7b", "--hardware", "8x-l40s", "--program", "megatron-lm")
    lines = screen(run, monkeypatch, 120, *job, "--details")
    at = next(number for number, line in enumerate(lines) if "% faster, and nothing starts it" in line)
    assert "Megatron-LM" in lines[at]
    refused = run("evaluate", *job, "--layout", lines[at + 1].strip())
    assert refused.exit_code == 2
    assert "Megatron-LM" in refused.stderr
