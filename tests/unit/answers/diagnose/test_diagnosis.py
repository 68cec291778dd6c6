"""What a diagnosis finds in runs whose faults are known."""

from dataclasses import replace

import pytest

from autoplan.answers.calibrate.ask import load_runs
from autoplan.answers.diagnose.ask import diagnose, part_of_group, run_record
from autoplan.calibration.traces.timeline_record import ProcessGroup
from autoplan.catalog import load_job
from autoplan.errors import CatalogError, LayoutError, SpecError
from autoplan.planning.communicating import communication, predicted_step
from autoplan.planning.plan_and_evaluate import evaluate
from autoplan.report.charts.predicted_trace import predicted_trace
from autoplan.schema.job import Workload
from tests.support.trace_events import annotation, call, collective, kernel, written

JOB = "llama3-8b-8x-a100"
LAYOUT = "tp=2,dp=4,zero=1,mbs=1,recompute=full"
PIPELINE = "tp=2,pp=4,mbs=1,recompute=full"
#: Bytes of a message of the layout that is exchanged in a trace made by hand.
MESSAGE = 2 * 8192 * 4096


@pytest.fixture(scope="module")
def plan():
    """Return the plan of the layout without a pipeline."""
    return evaluate(JOB, LAYOUT)


def us(seconds):
    """Return microseconds."""
    return seconds * 1e6


def parts_of(plan):
    """Return the seconds of a step by part as predicted, compute with recompute."""
    time = plan.predicted.time
    return {
        "compute": time.compute + time.recompute,
        "tp_exposed": time.tp_exposed,
        "dp_exposed": time.dp_exposed,
        "optimizer": time.optimizer,
        "host": 0.0,
        "data_loader": 0.0,
    }


def run_of(path, parts, *, rank=0, small=1, overlapped=0.0, tensor=None, wait=0.0, more=()):
    """Write the trace of two steps with the seconds of ``parts``, one after another; return its path.

    ``small`` kernels make up compute; ``overlapped`` seconds of data-parallel communication run beside it;
    ``tensor`` are seconds of one tensor-parallel collective; ``wait`` is how much longer the last one takes.
    """
    events, start, correlation = [], 0.0, 0
    for step in range(2):
        begin = start
        for number in range(small):
            correlation += 1
            length = us(parts["compute"]) / small
            late = us(parts["host"]) / small
            events.append(call(start, late, correlation))
            events.append(kernel(f"gemm {number}", start + late, length, correlation=correlation))
            start += late + length
        events.append(
            collective("_reduce_scatter_base", start - us(overlapped), us(overlapped), (0, 2, 4, 6), 0)
        )
        count = round(parts["tp_exposed"] / tensor) if tensor else 1
        for _ in range(count):
            length = us(parts["tp_exposed"]) / count
            events.append(collective("_allgather_base", start, length, (0, 1), MESSAGE if tensor else 0))
            start += length
        length = us(parts["dp_exposed"] + wait)
        events.append(collective("_reduce_scatter_base", start, length, (0, 2, 4, 6), 0))
        start += length
        events.append(kernel("multi_tensor_apply_kernel<AdamFunctor>", start, us(parts["optimizer"])))
        start += us(parts["optimizer"])
        events.append(annotation("enumerate(DataLoader)#next", start, us(parts["data_loader"])))
        start += us(parts["data_loader"])
        events.append(annotation(f"ProfilerStep#{step}", begin, start - begin))
    return written(path / f"rank{rank}.json", [*events, *more], distributedInfo={"rank": rank})


def kinds(diagnosis):
    """Return what was found, by kind."""
    return {x.kind: x for x in diagnosis.findings}


def test_a_run_as_predicted_has_no_findings(plan, tmp_path):
    """Where each part takes what was predicted, nothing is slower."""
    found = diagnose(JOB, LAYOUT, [run_of(tmp_path, parts_of(plan))])

    assert found.findings == ()
    assert found.measured_seconds == pytest.approx(plan.predicted.step_seconds, rel=1e-6)
    for part in found.parts:
        assert part.lost_seconds == pytest.approx(0, abs=1e-6 * found.measured_seconds), part.part


def test_the_predicted_trace_diagnoses_to_the_prediction(tmp_path):
    """A predicted step that is read as a profile is the prediction, stage by stage, and nothing is wrong."""
    job = load_job(JOB)
    plan = evaluate(job, PIPELINE)
    path = tmp_path / "trace.json"
    text = predicted_trace(job, plan, predicted_step(job, PIPELINE), communication(job, PIPELINE))
    path.write_text(text, encoding="utf-8")
    found = diagnose(JOB, PIPELINE, [path])

    assert found.findings == ()
    assert [x.stage for x in found.devices] == [0, 1, 2, 3]
    assert found.stage == predicted_step(job, PIPELINE).slowest_stage
    assert {x.part for x in found.parts} == {"compute", "tp_exposed", "pp_exposed", "bubble", "optimizer"}
    for part in found.parts:
        assert part.lost_seconds == pytest.approx(0, abs=1e-6), part.part


FAULTS = {
    "data loader": ({"data_loader": 2.0}, {}),
    "host": ({"host": 3.0}, {}),
    "slow compute": ({"compute": 1.2}, {}),
    "slow optimizer": ({"optimizer": 50.0}, {}),
    "exposed communication": ({"dp_exposed": 20.0}, {"overlapped": 5.0}),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_named_and_priced(kind, plan, tmp_path):
    """One part takes longer than predicted: it is what is found, and it costs the difference."""
    changed, settings = FAULTS[kind]
    parts = parts_of(plan)
    ((part, factor),) = changed.items()
    slower = {**parts, part: parts[part] * factor or factor}
    found = diagnose(JOB, LAYOUT, [run_of(tmp_path, slower, **settings)])

    assert list(kinds(found)) == [kind]
    assert found.findings[0].lost_seconds == pytest.approx(slower[part] - parts[part], rel=1e-3)


def test_communication_beside_nothing_is_no_overlap(plan, tmp_path):
    """All of it is exposed, where the model hides most."""
    parts = parts_of(plan)
    found = diagnose(JOB, LAYOUT, [run_of(tmp_path, {**parts, "dp_exposed": parts["dp_exposed"] + 3})])

    assert list(kinds(found)) == ["no overlap"]
    assert found.findings[0].lost_seconds == pytest.approx(3, rel=1e-3)


def test_short_kernels_are_told_from_a_slow_host(plan, tmp_path):
    """The device waits for launches of kernels that are shorter than their launch."""
    parts = {**parts_of(plan), "compute": 0.02, "host": 0.5}
    found = diagnose(JOB, LAYOUT, [run_of(tmp_path, parts, small=4000)])

    assert kinds(found)["small kernels"].lost_seconds == pytest.approx(0.5, rel=0.01)


def test_a_slow_link_is_named_with_its_bandwidth(plan, tmp_path):
    """A collective takes ten times what the model says of its bytes and ranks: wrong topology."""
    message = next(
        x
        for x in communication(JOB, LAYOUT)
        if x.axis == "tp" and x.operation == "all_gather" and x.part != "loss"
    )
    assert message.message_bytes == pytest.approx(MESSAGE)
    slow = plan.predicted.time.tp_exposed * 10
    parts = {**parts_of(plan), "tp_exposed": slow}
    found = kinds(diagnose(JOB, LAYOUT, [run_of(tmp_path, parts, tensor=0.004)]))
    facts = dict(found["slow collectives"].facts)

    assert facts["operation"] == "all_gather"
    assert facts["ranks"] == 2
    assert facts["shortest_seconds"] == pytest.approx(0.004, rel=0.01)
    assert facts["predicted_seconds"] < 0.002
    assert facts["bus_bandwidth"] == pytest.approx(MESSAGE / 2 / facts["shortest_seconds"])


def test_a_straggler_is_found_by_who_waits(plan, tmp_path):
    """Ranks wait for rank 2 in their collective; rank 2 computes longer, and does not wait."""
    parts = parts_of(plan)
    slower = {**parts, "compute": parts["compute"] * 1.2}
    late = slower["compute"] - parts["compute"]
    traces = [run_of(tmp_path, parts, rank=rank, wait=late) for rank in (0, 4, 6)]
    traces.append(run_of(tmp_path, slower, rank=2))
    found = kinds(diagnose(JOB, LAYOUT, traces))

    assert dict(found["stragglers"].facts) == {"part": "dp_exposed", "rank": "rank 2"}
    assert found["stragglers"].lost_seconds == pytest.approx(late * 3 / 4, rel=1e-3)
    assert dict(found["imbalanced ranks"].facts)["rank"] == "rank 2"
    assert found["imbalanced ranks"].lost_seconds == pytest.approx(late * 3 / 4, rel=1e-3)


def test_an_uneven_stage_and_the_bubble_that_it_makes_are_found(tmp_path):
    """Stage 1 of four computes half as long again as its plan; the others wait in their receives."""
    ranks, events = (0, 2, 4, 6), {}
    plan = evaluate(JOB, PIPELINE)
    timeline = predicted_step(load_job(JOB), PIPELINE)
    for stage, rank in enumerate(ranks):
        compute = timeline.part_seconds(stage)["compute"] + timeline.part_seconds(stage)["recompute"]
        length = compute * (1.5 if stage == 1 else 1.0)
        waits = 1.6 * plan.predicted.step_seconds - length
        pair = (
            collective("recv", us(length), us(0.01), (0, 2), 4096),
            collective("recv", us(length + 0.01), us(waits), (0, 2), 4096),
        )
        own = [
            annotation("ProfilerStep#3", 0, us(length + waits + 0.01)),
            kernel("gemm", 0, us(length)),
            *pair,
        ]
        events[rank] = written(tmp_path / f"rank{rank}.json", own)
    found = diagnose(JOB, PIPELINE, list(events.values()))
    named = kinds(found)

    assert [x.stage for x in found.devices] == [0, 1, 2, 3]
    assert dict(named["imbalanced stages"].facts)["stage"] == 1
    assert named["bubble"].lost_seconds > 0.3 * plan.predicted.step_seconds
    shortest = found.devices[0].parts.pp_exposed
    assert shortest == pytest.approx(0.02, rel=1e-3)  # two receives, each as long as the shortest


def test_memory_at_its_limit_is_found(plan, tmp_path):
    """The allocator goes on calling the driver after the first step."""
    seconds = plan.predicted.step_seconds
    more = [call(us(1.5 * seconds), 50, -1, "cudaMalloc"), call(us(1.6 * seconds), 50, -1, "cudaFree")]
    found = kinds(diagnose(JOB, LAYOUT, [run_of(tmp_path, parts_of(plan), more=more)]))

    assert dict(found["allocator"].facts) == {"calls": 2, "retries": 0}


def test_what_was_measured_goes_into_calibrate(plan, tmp_path):
    """The record of a run is a file of runs that loads, with the median of its steps."""
    found = diagnose(JOB, LAYOUT, [run_of(tmp_path, parts_of(plan))])
    file = tmp_path / "runs.yaml"
    file.write_text(run_record(JOB, found), encoding="utf-8")
    spec, (observation,) = load_runs(file, least=1)

    assert spec.runs[0].layout == found.plan.layout_string
    assert observation.seconds == pytest.approx(found.measured_seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("group", "operation", "part"),
    [
        ({"description": "TENSOR_MODEL_PARALLEL_GROUP"}, "all_reduce", "tp_exposed"),
        ({"description": "TENSOR_AND_CONTEXT_PARALLEL_GROUP"}, "all_reduce", "tp_exposed"),
        ({"description": "DATA_PARALLEL_GROUP_WITH_CP"}, "all_gather", "dp_exposed"),
        ({"description": "EXPERT_DATA_PARALLEL_GROUP"}, "all_gather", "dp_exposed"),
        ({"description": "EXPERT_MODEL_PARALLEL_GROUP"}, "all_to_all", "ep_exposed"),
        ({"description": "PIPELINE_MODEL_PARALLEL_GROUP"}, "send", "pp_exposed"),
        ({"description": "CONTEXT_PARALLEL_GROUP"}, "send", "cp_exposed"),
        ({"description": "mesh_dp_shard_cp"}, "all_gather", "dp_exposed"),
        ({"description": "mesh_tp"}, "all_gather", "tp_exposed"),
        ({"description": "mesh_ep"}, "all_to_all", "ep_exposed"),
        ({"ranks": (0, 1)}, "all_gather", "tp_exposed"),
        ({"ranks": (0, 2, 4, 6)}, "all_gather", "dp_exposed"),
        ({"ranks": (0, 1, 2, 3)}, "all_gather", "dp_exposed"),
        ({"size": 4}, "broadcast", "dp_exposed"),
        ({"size": 8}, "barrier", "unknown_exposed"),
        ({}, "reduce_scatter", "tp_exposed"),
    ],
)
def test_groups_are_known_by_name_then_by_ranks_then_by_size(group, operation, part):
    """Descriptions of Megatron-LM and of device meshes come first, then what the layout communicates."""
    assert part_of_group(communication(JOB, LAYOUT))(ProcessGroup(**group), operation) == part


def test_sends_without_a_group_are_the_pipeline():
    """Send and receive of a trace that names no group."""
    messages = communication(JOB, PIPELINE)

    assert part_of_group(messages)(ProcessGroup(), "send") == "pp_exposed"


def test_notes_say_what_is_assumed(plan, tmp_path):
    """A trace without steps, and fewer traces than devices."""
    path = written(tmp_path / "trace.json", [kernel("gemm", 0, 100)])
    found = diagnose(JOB, LAYOUT, [path], steps=4)

    assert found.measured_seconds == pytest.approx(25e-6)
    assert any("no annotated steps" in x for x in found.notes)
    assert any("1 of 8 devices" in x for x in found.notes)
    assert any("ranks of the traces are not known" in x for x in diagnose(JOB, PIPELINE, [path]).notes)


def test_mistakes_are_errors(tmp_path):
    """A layout that cannot run, and files that are no traces."""
    path = written(tmp_path / "trace.json", [kernel("gemm", 0, 100)])
    with pytest.raises(LayoutError):
        diagnose(JOB, "tp=3", [path])
    with pytest.raises(CatalogError):
        diagnose(JOB, LAYOUT, [tmp_path / "nowhere.json"])
    with pytest.raises(SpecError):
        diagnose(JOB, LAYOUT, [path], memory=[path])


def test_too_long_a_step_is_refused_as_a_trace():
    """A step with more passes than a viewer shows is no trace; a diagnosis does without it."""
    from autoplan.errors import UnsupportedError

    job = load_job(JOB)
    job = replace(job, workload=Workload(sequence_length=8192, global_batch_size=200_000))
    with pytest.raises(UnsupportedError, match="passes"):
        predicted_step(job, PIPELINE)
