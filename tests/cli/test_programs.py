"""Programs: the front over those that are usual, what each lacks, and a next command that works."""

import json
import shlex

import pytest

from autoplan import planning
from autoplan.catalog import entry_names, load_job, resolve_job
from autoplan.catalog.programs import program
from autoplan.launch.registry import find_target
from autoplan.launch.target import PlannedRun
from autoplan.report.document_fields import front_document
from autoplan.results.merged_front import at_batch, target_of
from autoplan.schema.job import JobSpec, Workload
from tests.support.tampering import judged, tampered

LINE = ("--model", "gpt2", "--hardware", "2x-rtx4090", "--batch", "16", "--sequence-length", "1024")


def written(front):
    """Write every plan of ``front`` by the target of its program, and return how many there are."""
    for plan in front.plans:
        job = at_batch(front.job, plan)
        find_target(target_of(job, plan)).emit(PlannedRun(job, plan.layout))
    return len(front.plans)


def test_the_front_is_over_programs_and_the_next_command_works(run):
    """Whoever names no program gets the usual ones, each with its best plan, and a command that runs."""
    done = run("plan", *LINE)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert any(line.split()[:1] == ["program"] for line in lines)

    words = shlex.split(lines[-1].removeprefix("next: autoplan "))
    emitted = run(*words)
    assert emitted.exit_code == 0
    assert emitted.stdout


def test_what_a_program_runs_is_verified_and_written(run, tmp_path):
    """The saved answer says which program runs each plan; verify checks its rules, and emit writes it."""
    file = tmp_path / "plan.json"
    assert run("plan", *LINE, "--format", "json", "--output", file).exit_code == 0
    document = json.loads(file.read_text())
    keys = {plan["predicted"]["program"] for plan in document["front"]}
    assert keys <= {choice["program"] for choice in document["job"]["choices"]}
    verdict = run("verify", file)
    assert verdict.exit_code == 0, verdict.stdout

    front = planning.plan(load_job(shlex.join(LINE)))
    assert written(front) == len(document["front"])


def test_what_a_program_lacks_is_said(run):
    """A program that is named and cannot run the job says what it lacks; one that is unknown is bad input."""
    lacking = run("plan", *LINE, "--task", "lora", "--program", "torchtitan")
    assert (lacking.exit_code, "torchtitan: no adapters" in lacking.stderr) == (2, True)
    amd = run("plan", "--model", "gpt2", "--hardware", "8x-mi300x", "--program", "megatron-lm")
    assert (amd.exit_code, "not for devices of amd" in amd.stderr) == (2, True)
    unknown = run("plan", *LINE, "--program", "torchtitam")
    assert (unknown.exit_code, "torchtitan" in unknown.stderr) == (2, True)


def test_a_layout_is_evaluated_as_the_program_that_runs_it():
    """Of several programs, the first one whose rules the layout keeps runs it."""
    job = load_job(shlex.join(LINE))
    sharded = planning.chosen(job, "dp=2,mbs=1,zero=3")
    assert sharded.program.way == "FSDP2"
    alone = load_job(shlex.join((*LINE, "--program", "trainer")))
    assert planning.chosen(alone, "dp=2,mbs=1,zero=0").program.way == "DDP"


@pytest.mark.parametrize("name", entry_names("program"))
def test_rules_of_a_program_are_about_layouts(name):
    """Every way has rules, and the stack that prices it runs some layout that keeps them."""
    workload = Workload(sequence_length=1024, global_batch_size=16)
    where = {"model": "llama3.2-1b", "hardware": "2x-a100-pcie-80gb"}
    spec = JobSpec(kind="training", program=name, workload=workload, **where)
    job = resolve_job(spec)
    assert {choice.program.title for choice in job.choices or (job,)} == {program(name).title}
    assert written(planning.plan(job))


@pytest.mark.slow
@pytest.mark.parametrize("name", entry_names("job"))
def test_every_plan_of_a_shipped_job_is_written_by_its_program(name):
    """No plan of the front over the usual programs is refused by the target of its program."""
    job = load_job(name)
    if job.choices or job.cluster.devices > 64:
        pytest.skip("of one number of devices, and not of thousands")
    keys = {"sequence_length": job.workload.sequence_length, "global_batch_size": 64}
    spec = JobSpec(
        kind="training",
        model=job.model,
        hardware=job.cluster.node.name,
        devices=job.cluster.devices,
        adapters=job.adapters,
        precision=job.precision,
        program="usual",
        workload=Workload(**keys),
    )
    front = planning.plan(resolve_job(spec))
    assert written(front) or front.reasons


def test_an_answer_ends_where_other_programs_dominate_and_not_before(tmp_path):
    """The answers hold together; one that falsely says so of a plan that it leaves out is noticed."""
    document = front_document(planning.plan(load_job(shlex.join(LINE))))
    assert any(answer["cut_by_others"] for answer in document["answers"])
    assert judged(document, tmp_path).verified

    def shorten(copied):
        left_out = copied["front"].pop()
        answer = next(x for x in copied["answers"] if x["program"] == left_out["predicted"]["program"])
        answer["plans"] = [x for x in answer["plans"] if x["layout_string"] != left_out["layout_string"]]
        answer["cut_by_others"] = True

    verdict = judged(tampered(document, shorten), tmp_path)
    claim = next(check for check in verdict.checks if check.claim.startswith("no layout dominates"))
    assert claim.finding == "fails"
