"""Jobs without a plan: each change, made in the file as a user makes it, has the plan that was said."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

import autoplan
from autoplan import load_job
from autoplan.deadline import Deadline
from autoplan.errors import UnsupportedError
from autoplan.planning.infeasible.edited_jobs import applied
from autoplan.planning.infeasible.relaxations import KINDS
from autoplan.planning.infeasible.smallest_relaxations import requirements_of, suggested, with_only
from tests.support.infeasible_jobs import JOBS, job
from tests.support.quick_cases import slow_but
from tests.support.tampering import change, document_of, judged, tampered

#: Jobs of `make test`.
QUICK = ("tensor parallelism", "data parallelism", "own rules", "own memory limit")


@cache
def answer(name):
    """Return the infeasible answer to a job, read from a file that is gone by now."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(JOBS[name][0])
        return suggested(autoplan.plan(file))


def fastest(front):
    """Return the fastest plan of a front."""
    return min(front.plans, key=lambda plan: plan.predicted.step_seconds)


@pytest.mark.parametrize("name", slow_but(QUICK, JOBS))
def test_what_conflicts_and_what_helps_is_named(name):
    """The conflict is the one that the job was made for, and the obvious ways out are among the changes."""
    _, conflict, kinds = JOBS[name]
    front = answer(name)

    assert not front.feasible
    if conflict is not None:
        assert (list(front.conflict), front.further_conflicts) == (conflict, ())
    assert set(kinds) <= {suggestion.kind for suggestion in front.suggestions}


@pytest.mark.parametrize("name", slow_but(QUICK, JOBS))
def test_every_change_made_in_the_file_has_the_plan_that_was_said(name, tmp_path):
    """The edited file is read and planned like any other: the same layout, step and memory, to the bit."""
    front = answer(name)
    for number, suggestion in enumerate(front.suggestions, start=1):
        new = tmp_path / f"{number}.yaml"
        new.write_text(applied(front, number, tmp_path))
        plan = fastest(autoplan.plan(new))
        assert (plan.layout, plan.predicted) == (suggestion.plan.layout, suggestion.plan.predicted)


#: Jobs whose changes name or rest on what the file leaves to a default.
DEFAULTED = ("a named stack", "all left to defaults", "kernels of the old device", "other stack by default")


@pytest.mark.parametrize("name", slow_but((*DEFAULTED, "batches without objectives"), JOBS))
def test_the_saved_answer_is_verified(name, tmp_path):
    """What a change is said to replace, and what it leaves alone, follow from the answer without its job."""
    verdict = judged(document_of(answer(name)), tmp_path)

    assert verdict.outcome == "verified", [check for check in verdict.checks if check.finding != "holds"]


@pytest.mark.parametrize("name", slow_but(DEFAULTED[:1], DEFAULTED))
def test_what_the_file_says_is_checked_against_the_file(name, tmp_path):
    """Without the file it is listed as not checked; what the changes say of it is refuted either way."""
    file, document = tmp_path / "job.yaml", document_of(answer(name))
    file.write_text(JOBS[name][0])
    forged = tampered(document, change(("job_file", "keys"), lambda keys: sorted({"kernels"} ^ {*keys})))

    assert judged(document, tmp_path, job=file).outcome == "verified"
    assert judged(forged, tmp_path, job=file).outcome == "refuted"


@pytest.mark.slow
def test_every_kind_of_change_is_tried():
    """The jobs have changes of each kind."""
    kinds = {suggestion.kind for name in JOBS for suggestion in answer(name).suggestions}

    assert {kind.name for kind in KINDS} - kinds == set()


@pytest.mark.parametrize("name", slow_but(QUICK, JOBS))
def test_a_conflict_is_minimal(name):
    """No layout keeps all limits that are named, whatever the others; some keeps all but any one of them."""
    front = answer(name)
    by_text = {requirement.text: requirement for requirement in requirements_of(front.job)}
    for conflict in (front.conflict, *front.further_conflicts):
        named = [by_text[text] for text in conflict]
        assert named
        assert not has_plan(with_only(front.job, list(by_text.values()), named))
        for requirement in named:
            others = [other for other in named if other is not requirement]
            assert has_plan(with_only(front.job, list(by_text.values()), others)), requirement.text


@pytest.mark.parametrize(
    "name", slow_but(QUICK, [name for name, (_, conflict, _) in JOBS.items() if conflict])
)
def test_without_any_limit_of_the_only_conflict_the_file_has_a_plan(name):
    """Each key that is named can be left out of the file; devices without limit cannot be written down."""
    text, conflict, _ = JOBS[name]
    for named in conflict:
        plain = yaml.safe_load(text)
        if "rules[" in named:
            del plain["rules"][int(named.split("rules[")[1][0])]
        elif not named.startswith("memory:"):
            section, key = named.split()[0].split(".")
            del plain[section][key]
        else:
            continue
        with TemporaryDirectory() as folder:
            file = Path(folder) / "job.yaml"
            file.write_text(yaml.safe_dump(plain))
            assert has_plan(load_job(file)), named


def has_plan(loaded):
    """Return whether ``plan`` has an answer for a job, by its fastest layout alone."""
    choices = tuple(replace(choice, objectives=("step_time",)) for choice in loaded.choices)
    return autoplan.plan(replace(loaded, objectives=("step_time",), choices=choices)).feasible


def test_conflicts_that_are_independent_are_each_named():
    """A limit on memory and one on the step that no layout keeps are not two parts of one conflict."""
    front = answer("memory and step")

    assert front.conflict == ("limits.peak_memory is 40.0 GiB",)
    assert front.further_conflicts == (("limits.step_time is 2.00 s",),)


def test_larger_devices_keep_the_stack(tmp_path):
    """Other hardware has another default: the edits pin the stack that the job runs."""
    front = answer("other stack by default")
    (change,) = (s for s in front.suggestions if s.kind == "larger devices")

    assert [str(edit) for edit in change.edits] == [
        "hardware: dgx-b200 instead of 8x-l40s",
        "stack: fsdp2 instead of the default",
    ]
    file = tmp_path / "job.yaml"
    file.write_text(applied(front, front.suggestions.index(change) + 1, tmp_path))
    assert load_job(file).stack.name == "fsdp2"


def test_the_command_line_makes_a_change(run, tmp_path, monkeypatch):
    """As the table says how: the file with one value changed, everything else as written."""
    monkeypatch.chdir(tmp_path)
    text = job("search: {tensor_parallel: 3}  # a slip", devices=4)
    Path("job.yaml").write_text(text)
    table = run("plan", "job.yaml").stdout
    document = json.loads(run("plan", "job.yaml", "--format", "json").stdout)
    done = run("plan", "job.yaml", "--apply", 1)

    assert "to make change 1: autoplan plan job.yaml --apply 1 > new.yaml" in table
    assert [change["number"] for change in document["suggestions"]] == [1]
    assert (done.exit_code, done.stdout) == (0, text.replace("tensor_parallel: 3", "tensor_parallel: [1, 3]"))
    Path("new.yaml").write_text(done.stdout)
    planned = json.loads(run("plan", "new.yaml", "--format", "json").stdout)
    assert planned["front"][0]["layout_string"] == document["suggestions"][0]["layout_string"]
    assert "new.yaml --apply 1 > newer.yaml" in run("plan", _infeasible_new()).stdout


def _infeasible_new():
    Path("new.yaml").write_text(job("search: {tensor_parallel: 3}", devices=4))
    return "new.yaml"


def test_paths_of_the_file_still_lead_to_their_files(run, tmp_path, monkeypatch):
    """A change written to another folder names the same model; in the same folder the text stays."""
    ours = tmp_path / "ours"
    ours.mkdir()
    model = Path(__file__).resolve().parents[2] / "specs" / "models" / "llama2-7b.yaml"
    (ours / "model.yaml").write_text(model.read_text())
    (ours / "job.yaml").write_text(job("search: {tensor_parallel: 3}", devices=4, model="./model.yaml"))
    monkeypatch.chdir(tmp_path)

    assert "\nmodel: ours/model.yaml\n" in run("plan", "ours/job.yaml", "--apply", 1).stdout
    assert run("plan", "ours/job.yaml", "--apply", 1, "--output", "ours/new.yaml").exit_code == 0
    assert "\nmodel: ./model.yaml\n" in (ours / "new.yaml").read_text()
    assert run("plan", "ours/new.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("text", "number", "message"),
    [
        (job("search: {tensor_parallel: 3}", devices=4), 2, "there is no change 2: there is one change, 1"),
        (job("search: {tensor_parallel: 3}", devices=4), 0, "there is no change 0: there is one change, 1"),
        (
            job("search: {data_parallel: 4}", devices=4, batch=7),
            9,
            "there is no change 9: changes are 1 to 3",
        ),
        (job(), 1, "there is nothing to apply: the job has a plan as it is"),
    ],
)
def test_a_change_that_is_not_there_is_an_error(run, tmp_path, text, number, message):
    """On standard error, with exit code 2 and nothing that a shell would write to the new file."""
    file = tmp_path / "job.yaml"
    file.write_text(text)
    output = tmp_path / "new.yaml"
    done = run("plan", file, "--apply", number, "--output", output)

    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert not output.exists()


def test_a_file_in_which_values_refer_to_each_other_is_not_edited(tmp_path):
    """An edit of a value that another key repeats would change both: nothing is written."""
    text = job("search: {tensor_parallel: &n [3], context_parallel: *n}", devices=4)
    file = tmp_path / "job.yaml"
    file.write_text(text)
    front = suggested(autoplan.plan(file))

    assert front.suggestions
    with pytest.raises(UnsupportedError, match="edit it by hand"):
        applied(front, 1)


def test_a_job_of_a_program_has_no_file_to_edit():
    """Its changes are said all the same."""
    front = answer("tensor parallelism")
    front = replace(front, job=replace(front.job, source=None))

    with pytest.raises(UnsupportedError, match="built by a program"):
        applied(front, 1)


def test_a_deadline_ends_the_search_for_changes(tmp_path):
    """The answer has what was found, and says that it is not all."""
    file = tmp_path / "job.yaml"
    file.write_text(JOBS["no recompute"][0])
    front, deadline = autoplan.plan(file), Deadline()

    def stop_at(_done, _kinds, name):
        if name == "parameters in host memory":
            deadline.stop()

    with deadline.in_force():
        stopped = suggested(front, progress=stop_at)

    assert stopped.suggestions_stopped == "interrupted"
    assert [s.kind for s in stopped.suggestions] == ["recompute", "offload to host memory"]
    assert stopped.suggestions == answer("no recompute").suggestions[:2]
    assert stopped.conflict == answer("no recompute").conflict
