"""Serving jobs at the edges of what a file may say: an answer or an error in words, and never a traceback."""

from __future__ import annotations

import pytest

from tests.support.crafted_serving import crafted_serving, crafted_servings
from tests.support.spec_runs import ended_well

#: Jobs of `make test`; those of `make test-slow` follow, in batches.
FEW = 16
BATCHES, BATCH = 6, 50


def run_all(folder, specs):
    """Run the command of each job, and return the exit codes that there were."""
    codes = set()
    for spec in specs:
        spec.write(folder)
        codes.add(ended_well(spec.command, spec.case).exit_code)
    return codes


def test_crafted_serving_jobs_are_answered_or_refused(tmp_path, monkeypatch):
    """Plans, evaluations, explanations and capacities of lengths, loads and limits that nobody expects."""
    monkeypatch.chdir(tmp_path)

    assert run_all(tmp_path, crafted_servings(range(FEW))) == {0, 1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_hundreds_of_crafted_serving_jobs_are_answered_or_refused(tmp_path, monkeypatch, batch):
    """Three hundred more."""
    monkeypatch.chdir(tmp_path)
    first = FEW + batch * BATCH

    assert run_all(tmp_path, crafted_servings(range(first, first + BATCH))) == {0, 1, 2}


#: Drawn jobs that once ended in a traceback: a class too rare to be drawn; answers that end all at once.
ONCE_BROKEN = (32, 222)
OF_ONE_TOKEN = ("", "request_rate: 2/s", "concurrency: 3", "concurrency: 10000")


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_what_once_broke_is_answered(tmp_path, monkeypatch, seed):
    """Each with the command that it was found by."""
    monkeypatch.chdir(tmp_path)

    assert run_all(tmp_path, [crafted_serving(seed)]) <= {0, 1, 2}


@pytest.mark.parametrize("load", OF_ONE_TOKEN)
@pytest.mark.parametrize("stack", ["vllm", "lmdeploy"])
@pytest.mark.parametrize("output", ["1", "2", "{uniform: [1, 2]}"])
def test_answers_of_a_token_or_two_are_planned(tmp_path, monkeypatch, load, stack, output):
    """With any load or none, of engines that mix prefill and decodes or do not."""
    monkeypatch.chdir(tmp_path)
    lengths = ", ".join(filter(None, (f"input_tokens: 1024, output_tokens: {output}", load)))
    text = f"kind: serving\nmodel: llama3.2-1b\nhardware: dgx-h100\ndevices: 1\nstack: {stack}\n"
    (tmp_path / "job.yaml").write_text(f"{text}workload: {{{lengths}}}\n", encoding="utf-8")

    assert ended_well(("plan", "job.yaml"), lengths).exit_code == 0
