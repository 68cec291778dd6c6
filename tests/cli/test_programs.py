"""Programs: the front over those that are usual, what each lacks, and a next command that works."""

import json
import shlex
from dataclasses import replace

import pytest
import yaml

import autoplan
from autoplan.answers.plan.blocks import front_table
from autoplan.catalog import entry_names, entry_text, load_job, resolve_job
from autoplan.catalog.programs import any_layout, program, targets_of
from autoplan.errors import UnsupportedError
from autoplan.launch.registry import expressible_number, find_target
from autoplan.launch.target import PlannedRun
from autoplan.report.document_fields import front_document
from autoplan.report.render.terminal import Terminal
from autoplan.results.merged_front import at_batch, target_of
from autoplan.rules.layout_rules import broken_rules
from autoplan.schema.job import JobSpec, Workload
from autoplan.schema.layout import parse_layout
from tests.support.quick_cases import slow_after, slow_but
from tests.support.random_jobs import random_job
from tests.support.random_questions import random_question
from tests.support.tampering import judged, tampered

#: Jobs on two devices, which are planned for all their programs in a moment.
QUICK = ("llama2-7b-2x-a100", "qwen3-1.7b-2x-rtx3090")

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

    front = autoplan.plan(load_job(shlex.join(LINE)))
    assert written(front) == len(document["front"])


@pytest.mark.parametrize(
    "line",
    [
        # Replicas, the first way of axolotl, do not fit.
        "--model llama3.1-8b --hardware 2x-rtx4090 --task lora --sequence-length 8192 --program axolotl",
        "--model qwen3-30b-a3b --hardware 1x-rtx4090 --task qlora",
        "--model qwen3.5-35b-a3b --hardware 2x-a100-pcie-80gb --task lora --program axolotl",
    ],
)
def test_fine_tunes_whose_first_way_does_not_fit_are_verified(run, tmp_path, line):
    """The certificate is for the job that the file holds, and plans of experts and hybrids go into files."""
    file = tmp_path / "plan.json"
    assert run("plan", *shlex.split(line), "--format", "json", "--output", file).exit_code == 0
    verdict = run("verify", file)
    assert verdict.exit_code == 0, verdict.stdout
    assert written(autoplan.plan(load_job(line))) == len(json.loads(file.read_text())["front"])


def test_what_a_program_lacks_is_said(run):
    """A program that is named and cannot run the job says what it lacks; one that is unknown is bad input."""
    lacking = run("plan", *LINE, "--task", "lora", "--program", "torchtitan")
    assert (lacking.exit_code, "torchtitan: no adapters" in lacking.stderr) == (2, True)
    amd = run("plan", "--model", "gpt2", "--hardware", "8x-mi300x", "--program", "megatron-lm")
    assert (amd.exit_code, "not for devices of amd" in amd.stderr) == (2, True)
    unknown = run("plan", *LINE, "--program", "torchtitam")
    assert (unknown.exit_code, "torchtitan" in unknown.stderr) == (2, True)


@pytest.mark.parametrize("name", entry_names("program"))
def test_rules_of_a_program_are_about_layouts(name):
    """Every way has rules, and the stack that prices it runs some layout that keeps them."""
    workload = Workload(sequence_length=1024, global_batch_size=16)
    where = {"model": "llama3.2-1b", "hardware": "2x-a100-pcie-80gb"}
    spec = JobSpec(kind="training", program=name, workload=workload, **where)
    job = resolve_job(spec)
    assert {choice.program.title for choice in job.choices or (job,)} == {program(name).title}
    assert written(autoplan.plan(job))


def without_stack(name, folder):
    """Write the shipped job ``name`` without what it says of its stack and programs, and return its path."""
    document = yaml.safe_load(entry_text("job", name)[0])
    kept = {key: value for key, value in document.items() if key not in {"stack", "program"}}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(kept), encoding="utf-8")
    return path


def assert_every_plan_is_started(run, path):
    """Each plan of the front is written by its program's target, and the printed command runs as printed.

    Both have ten minutes, so that a slow machine finds the same plans.
    """
    front = autoplan.plan(load_job(path), deadline=600)
    assert written(front) or front.reasons
    assert {at_batch(front.job, plan).program for plan in front.plans} <= programs_of(front.job)
    if front.plans and front.job.program is not None:
        screen = front_table(front, Terminal(), emitted=expressible_number(front)).splitlines()
        done = run(*shlex.split(screen[-1].removeprefix("next: autoplan ")), "--deadline", "600")
        assert done.exit_code == 0, done.stderr


def programs_of(job):
    """Return the programs, each in its ways, that a job is planned for."""
    return {choice.program for choice in job.choices or (job,)}


@pytest.mark.parametrize("name", slow_but(QUICK, entry_names("job")))
def test_every_plan_of_a_shipped_job_is_written_by_its_program(run, name, tmp_path):
    """No plan of the front over the usual programs is refused by the target of its program."""
    assert_every_plan_is_started(run, without_stack(name, tmp_path))


@pytest.mark.parametrize("seed", slow_after(6, range(200)))
def test_every_plan_of_a_random_job_is_written_by_its_program(run, seed, tmp_path):
    """The same holds for models, devices, limits and rules at random."""
    assert_every_plan_is_started(run, random_job(seed).changed(stack=None).written(tmp_path))


@pytest.mark.parametrize("seed", slow_after(4, range(100)))
def test_every_plan_of_a_random_question_is_written_by_its_program(run, seed, tmp_path):
    """Models, cards, tasks and options that people name: plans and changes that help are written.

    A question that no program can run is refused before it is planned, and says why.
    """
    options = random_question(seed)
    done = run("plan", *options, "--deadline", "60")
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    if done.exit_code == 0:
        if last.startswith("next: no program runs this job"):
            return
        front = autoplan.plan(load_job(shlex.join(options)), deadline=60)
        assert written(front) == len(front.plans)
        words = shlex.split(last.removeprefix("next: autoplan "))
    elif last.startswith("to make change 1: "):
        job = tmp_path / "new.yaml"
        words = shlex.split(last.removeprefix("to make change 1: autoplan "))
        job.write_text(run(*words[: words.index(">")]).stdout, encoding="utf-8")
        changed = run("plan", job, "--deadline", "60")
        assert changed.exit_code == 0, changed.stderr
        words = shlex.split(changed.stdout.splitlines()[-1].removeprefix("next: autoplan "))
    else:
        assert done.exit_code == 1 or done.stderr.startswith("error: ")
        return
    emitted = run(*words, "--deadline", "60")
    assert emitted.exit_code == 0, emitted.stderr


JOB = """
kind: training
model: smollm2-135m
hardware: 2x-rtx4090
workload: {sequence_length: 1024, global_batch_size: 16}
"""


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a job file with more lines, which names no program by itself."""

    def write(*lines):
        path = tmp_path / "job.yaml"
        path.write_text("\n".join([JOB, *lines, ""]), encoding="utf-8")
        return path

    return write


def test_a_job_file_that_names_neither_program_nor_stack_is_for_the_usual_programs(job):
    """It is the job of ``program: usual``; a stack, or any layout, is what is asked for where it is named."""
    usual = load_job(job())
    assert usual == load_job(job("program: usual"))
    assert len({choice.program.name for choice in usual.choices}) > 1
    free, named = load_job(job("program: any-layout")), load_job(job("stack: fsdp2"))
    assert (free.program, free.choices, free.stack.name, free.stack_assumed) == (None, (), "fsdp2", True)
    assert (named.program, named.choices, named.stack.name, named.stack_assumed) == (None, (), "fsdp2", False)
    assert any_layout(usual) == free


def test_programs_that_are_not_usual_run_what_the_usual_ones_cannot(run, job):
    """Where none of the usual programs has an optimizer, others are tried before any layout."""
    paged = load_job(job("optimizer: paged-adamw", "adapters: {rank: 8, base: int8, dropout: 0.1}"))
    assert paged.programs == "usual"
    assert None not in {choice.program for choice in paged.choices or (paged,)}
    path = job("precision: fp8")
    path.write_text(path.read_text(encoding="utf-8").replace("2x-rtx4090", "8x-mi300x"), encoding="utf-8")
    narrow = load_job(path)
    assert (narrow.program, narrow.stack_assumed) == (None, True)
    assert dict(narrow.lacking)["torchtitan"] == "no fp8"
    assert run("plan", path).stdout.splitlines()[-1].startswith("next: no program runs this job")


def test_a_layout_is_of_the_fastest_program_that_has_it(run, job):
    """``evaluate`` says which program runs a layout, what is against others, and that none does."""
    path, layout = job(), "dp=2,mbs=4,zero=3"
    plan = autoplan.evaluate(path, layout)
    steps = [
        autoplan.evaluate(choice, layout).predicted.step_seconds
        for choice in load_job(path).choices
        if not broken_rules(choice, parse_layout(layout, layers=30, devices=2))
    ]
    assert plan.predicted.step_seconds == min(steps)
    said = run("evaluate", path, "-l", layout).stdout
    assert f"program: {plan.program.words}, the fastest that has this layout" in " ".join(said.split())

    free = run("evaluate", path, "-l", "pp=2,recompute=full:2/none")
    assert free.exit_code == 0
    assert "no program starts it" in free.stdout
    assert "stack: fsdp2, assumed" in " ".join(free.stdout.split())
    named = run("evaluate", job("program: torchtitan"), "-l", "pp=2,recompute=full:2/none")
    assert (named.exit_code, "one mode of recompute holds for all layers" in named.stderr) == (2, True)


def test_emit_plans_for_the_programs_that_its_target_writes(run, job):
    """The fastest plan of the target's program is written, also where another program's plans are faster."""
    path = job()
    for target in ("torchtitan", "trainer", "accelerate", "deepspeed"):
        done = run("emit", path, "--for", target)
        assert done.exit_code == 0, done.stderr
    own = run("emit", path, "--for", "trainer", "--program", "trainer")
    assert (own.exit_code, own.stdout) == (0, run("emit", path, "--for", "trainer").stdout)
    other = run("emit", path, "--for", "trainer", "--program", "torchtitan")
    assert (other.exit_code, "which torchtitan writes, and not trainer" in other.stderr) == (2, True)
    unknown = run("emit", path, "--for", "trainer", "--program", "trainr")
    assert (unknown.exit_code, "trainer" in unknown.stderr) == (2, True)
    started = run("emit", path, "--for", "slurm", "--program", "trainer")
    assert (started.exit_code, "transformers" in started.stdout) == (0, True)


def test_a_front_is_emitted_for_the_program_of_a_plan(job):
    """The library takes the fastest plan of a program that the target writes, and refuses one of another."""
    path = job()
    front = autoplan.plan(path)
    run = front.fastest.program
    assert autoplan.emit(front, run.target).files
    others = {choice.program.target for choice in front.job.choices} - targets_of(run)
    for target in others - {plan.program.target for plan in front.plans}:
        with pytest.raises(UnsupportedError, match=f"no plan of the front is one that {target} writes"):
            autoplan.emit(front, target)
    for target in others:
        with pytest.raises(UnsupportedError, match=f"the plan is one of .*, and not {target}"):
            autoplan.emit(front, target, number=1)


@pytest.mark.parametrize("command", [("guide", "gpt2", "2x-rtx4090"), ("compare", "JOB", "--axes")])
def test_answers_for_one_stack_say_which(run, job, command):
    """A guide is that of the program whose plan is the fastest; kinds of layouts are of the assumed stack."""
    done = run(*[job() if word == "JOB" else word for word in command])
    assert done.exit_code == 0, done.stderr
    title = "(assumed)"
    if "--axes" not in command:
        title = autoplan.plan(autoplan.guided_job("gpt2", "2x-rtx4090")[0]).fastest.program.words
    assert title in " ".join(done.stdout.split())


def test_a_lost_node_leaves_the_programs(job):
    """What is left of a job without nodes is planned for the same programs."""
    text = JOB.replace("2x-rtx4090", "dgx-a100-80gb\ndevices: 16")
    path = job()
    path.write_text(text, encoding="utf-8")
    left = autoplan.remaining(path, 1)
    assert {choice.program for choice in left.choices} == programs_of(load_job(path))
    assert {choice.cluster.devices for choice in left.choices} == {8}


@pytest.mark.parametrize(
    ("sharding", "optimizer", "priced"),
    [
        ("deepspeed: deepspeed_configs/zero3_bf16.json", "adamw", "axolotl (DeepSpeed)"),
        ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true}", "adamw", "axolotl (FSDP2)"),
        ("deepspeed: deepspeed_configs/zero3_bf16.json", "adamw-8bit", "axolotl (DeepSpeed)"),
    ],
)
def test_a_file_is_priced_as_what_shards_in_it(run, tmp_path, sharding, optimizer, priced):
    """DeepSpeed or FSDP2, whichever would be faster."""
    job, file = tmp_path / "job.yaml", tmp_path / "axolotl.yaml"
    workload = "workload: {sequence_length: 1024, global_batch_size: 16}"
    job.write_text(
        f"kind: training\nmodel: gpt2\nhardware: 2x-rtx4090\n{workload}\noptimizer: {optimizer}\n",
        encoding="utf-8",
    )
    named = {"adamw": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit"}[optimizer]
    keys = "micro_batch_size: 2\ngradient_accumulation_steps: 4\nsequence_len: 1024"
    file.write_text(
        f"base_model: openai-community/gpt2\n{keys}\noptimizer: {named}\nbf16: true\n{sharding}\n",
        encoding="utf-8",
    )

    done = run("evaluate", job, "--from", file)
    assert done.exit_code == 0, done.stderr
    assert f"· {priced} ·" in " ".join(done.stdout.split())


@pytest.mark.parametrize("target", ["trainer", "axolotl", "llama-factory"])
def test_an_optimizer_of_bitsandbytes_stands_beside_a_file_of_deepspeed(job, target):
    """The Trainer makes it where DeepSpeed's own part has none; the host has none of it."""
    lines = f"optimizer: adamw-8bit\nprogram: {target}\nsearch: {{offload: [none, optimizer]}}"
    path = job()
    path.write_text(f"{JOB}{lines}\n", encoding="utf-8")
    front = autoplan.plan(path)
    one = next(answer for answer in front.answers if answer.job.program.way == "DeepSpeed")
    text = find_target(target).emit(PlannedRun(one.job, one.plans[0].layout)).files[0].text
    written = yaml.safe_load(text)

    assert written[{"axolotl": "optimizer"}.get(target, "optim")] == "adamw_bnb_8bit"
    assert "optimizer" not in written["deepspeed"]
    assert written["deepspeed"]["zero_allow_untested_optimizer"] is True
    offloaded = replace(one.plans[0].layout, zero=2, optimizer_offload=True)
    assert any("on the host, not adamw-8bit" in rule for rule in broken_rules(one.job, offloaded))


def test_the_front_is_the_same_in_whatever_order_programs_are_listed():
    """The fastest program is searched first, and ends the fronts of those that are listed before it."""
    job = load_job("benchmarks/speed/cases/programs-8x-h100.yaml")
    asked, turned = (autoplan.plan(replace(job, choices=c)) for c in (job.choices, job.choices[::-1]))

    assert asked.plans == turned.plans
    assert [one.job.program for one in asked.answers] == [choice.program for choice in job.choices]
    whole = {one.job.program.name for one in asked.answers if one.plans and not one.cut_by_others}
    assert whole == {asked.fastest.program.name} != {job.choices[0].program.name}


def test_an_answer_ends_where_other_programs_dominate_and_not_before(tmp_path):
    """The answers hold together; one that falsely says so of a plan that it leaves out is noticed."""
    document = front_document(autoplan.plan(load_job(shlex.join(LINE))))
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
