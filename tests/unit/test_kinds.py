"""The kinds of jobs: what is done with each exists, is called alike, and is asked for in one place."""

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

import autoplan
from autoplan.catalog import entry_names
from autoplan.kinds import KINDS, SERVING, TRAINING, Kind, kind_of, kind_of_document, loaded_job
from autoplan.report.document_fields import front_document
from autoplan.report.serving.serving_document import serving_front_document
from autoplan.results.front import Front
from autoplan.results.plan import Plan
from autoplan.results.serving.serving_front import ServingFront, ServingPlan

FUNCTIONS = [field.name for field in fields(Kind) if field.name != "name"]


def _called(function):
    """Return how many arguments a function takes by place, and which by name alone."""
    parameters = inspect.signature(function).parameters.values()
    named = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    return len(parameters) - len(named), named


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_both_kinds_exist_and_are_called_alike(name):
    """What a command calls for a job of one kind takes the same arguments for the other."""
    training, serving = (getattr(kind, name) for kind in (TRAINING, SERVING))
    named = [each.function for each in (training, serving) if each is not None]

    assert named
    assert all(inspect.isfunction(function) for function in named)
    assert len({str(_called(function)) for function in named}) == 1


@pytest.mark.parametrize(("entries", "kind"), [("job", TRAINING), ("serving", SERVING)])
def test_a_job_has_the_kind_of_its_list_by_name_and_by_value(entries, kind):
    """Shipped names and the jobs that they stand for say the same, and its answers say it too."""
    assert all(kind_of(name) is kind for name in entry_names(entries))
    assert kind_of(loaded_job(entry_names(entries)[0])) is kind
    assert kind_of_document({"kind": kind.name}) is kind


def test_plans_and_fronts_say_their_kind():
    """What answers a job is of its kind."""
    assert {KINDS[each.kind] for each in (Front, Plan)} == {TRAINING}
    assert {KINDS[each.kind] for each in (ServingFront, ServingPlan)} == {SERVING}


@pytest.mark.parametrize(
    ("name", "job", "front", "layout"),
    [
        ("llama3.2-1b-2x-rtx3090", autoplan.Job, Front, "tp=2"),
        ("llama3.1-8b-1x-h100", autoplan.ServingJob, ServingFront, "tp=1"),
    ],
)
def test_the_library_takes_a_job_of_either_kind_by_the_same_names(name, job, front, layout, tmp_path):
    """A loaded job is planned, evaluated, explained, compared, verified and emitted, whatever it is."""
    loaded = autoplan.load_job(name)
    planned = autoplan.plan(loaded)
    plan = autoplan.evaluate(loaded, layout)
    compared = autoplan.compare(loaded, [layout, f"{layout},{'mbs=2' if job is autoplan.Job else 'seqs=8'}"])
    saved = tmp_path / "plan.json"
    saved.write_text(json.dumps(_document(planned)), encoding="utf-8")

    assert (type(loaded), type(planned)) == (job, front)
    assert plan.layout_string.startswith(layout)
    assert len(compared.layouts) == 2
    assert type(autoplan.explain(loaded, layout)) is not type(autoplan.explain(loaded))
    assert autoplan.verify(saved, job=loaded).verified
    assert autoplan.emit(plan, "megatron-lm" if job is autoplan.Job else "vllm", job=loaded).files


def _document(front):
    if isinstance(front, ServingFront):
        return serving_front_document(front)
    return front_document(front)


def test_a_function_of_one_kind_says_so_of_a_job_of_the_other():
    """Engines have no communication of a step, and training no capacity; what has no kinds says so."""
    serving, training = (autoplan.load_job(name) for name in ("llama3.1-8b-1x-h100", "llama3-8b-8x-a100"))
    with pytest.raises(autoplan.UnsupportedError, match="one of serving, and this takes one of training"):
        autoplan.communication(serving, "tp=1")
    with pytest.raises(autoplan.UnsupportedError, match="one of training, and this takes one of serving"):
        autoplan.capacity(training)
    with pytest.raises(autoplan.UnsupportedError, match="no kinds of them"):
        autoplan.compare(serving, ["tp=1"], axes=True)


def test_one_place_asks_for_the_kind_of_a_job():
    """No other module decides by the kind of a file or a document what to do with it."""
    root = Path(autoplan.__file__).parent
    asked = re.compile(r"is_serving_job\(|\.get\(\"kind\"\) ==|isinstance\(\w+, (Job|ServingJob) \| str")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if asked.search(path.read_text("utf-8"))
    }

    assert found == {"catalog/job_files.py", "kinds.py"}
