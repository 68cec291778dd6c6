"""Remedies of a layout, made in the job file: the search then has the remedied layout alone."""

import pytest

import autoplan
from autoplan import explain, load_job
from autoplan.answers.explain.remedies import remedied
from autoplan.errors import UnsupportedError
from autoplan.planning.plan_and_evaluate import chosen
from tests.support.infeasible_jobs import job
from tests.support.quick_cases import slow_after

EXPERTS = job(devices="[8, 16]", batch=32, hardware="hgx-h200", model="mixtral-8x7b")
LONG = job("search: {offload: [none, optimizer]}\nrules:\n  - tp <= 4  # ours", devices=4, length=16384)

CASES = [
    (LONG, "tp=1,dp=4,mbs=1"),
    (LONG, "tp=2,pp=2,mbs=2"),
    (EXPERTS, "tp=2,pp=1,dp=4,ep=2,mbs=4"),
    (job(devices=None, batch=32, hardware="8x-l40s", model="llama2-13b"), "dp=8,zero=3,mbs=4"),
]


@pytest.mark.parametrize(("text", "layout"), slow_after(1, CASES))
def test_the_file_of_a_remedy_has_its_plan(tmp_path, text, layout):
    """The one plan of the new file is that of the remedy; it is infeasible where the remedy does not fit."""
    file, new = tmp_path / "job.yaml", tmp_path / "new.yaml"
    file.write_text(text)
    loaded = load_job(file)
    explanation = explain(chosen(loaded, layout), layout)
    made = 0
    for number, remedy in enumerate(explanation.remedies, start=1):
        if " in stack " in remedy.change:
            with pytest.raises(UnsupportedError, match="write a stack file with `extends: "):
                remedied(loaded, explanation, number, tmp_path)
            continue
        new.write_text(remedied(loaded, explanation, number, tmp_path))
        front = autoplan.plan(new)
        expected = [(remedy.plan.layout, remedy.plan.predicted)] if remedy.fits else []
        assert [(plan.layout, plan.predicted) for plan in front.plans] == expected
        made += 1
    assert made >= 2


def test_the_command_line_makes_a_remedy(run, tmp_path):
    """With exit code 0; without a layout, or of a remedy that is not there, it is an error."""
    file, new = tmp_path / "job.yaml", tmp_path / "new.yaml"
    file.write_text(LONG)
    asked = ("explain", file, "--layout", "tp=1,dp=4,mbs=1")

    assert run(*asked, "--apply", 1, "--output", new).exit_code == 0
    assert "autoplan" not in new.read_text()
    assert run("plan", new).exit_code == 0
    assert "# what is free" in new.read_text()
    assert "there is no remedy 99: remedies are 1 to" in run(*asked, "--apply", 99).stderr
    alone = run("explain", file, "--apply", 1)
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "--layout" in alone.stderr
