"""The accuracy benchmark scores or skips every row, with a reason, whatever the row holds."""

import copy
import csv
import doctest
import json
import math

import pytest

from benchmarks import policies, reading, skips, tables
from benchmarks.accuracy import jobs, outcomes, parts, recorded, scores, stacks
from benchmarks.accuracy.__main__ import DEFAULT_RUNS, main
from benchmarks.accuracy.fitting import coefficients
from benchmarks.accuracy.outcomes import outcome_of
from benchmarks.accuracy.scores import kendall, regret, spread
from benchmarks.reading import read_entries

DATA = DEFAULT_RUNS[0].parent

ROW_KEYS = {
    "id",
    "group",
    "predicted_step_seconds",
    "predicted_step_seconds_low",
    "predicted_step_seconds_high",
    "predicted_peak_memory_bytes_low",
    "predicted_peak_memory_bytes_high",
    "predicted_tokens_per_second_per_device",
    "predicted_peak_memory_bytes",
    "fits",
    "skipped",
}
PREDICTED = ROW_KEYS - {"id", "group", "skipped"}


def result(path, capsys):
    """Return what the command prints for the file at ``path``."""
    assert main(["--runs", str(path), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def written(tmp_path, text):
    """Return the path of a new file of runs that holds ``text``."""
    path = tmp_path / "runs.yaml"
    path.write_text(f"# header\nschema: 1\nruns:\n{text}\n", encoding="utf-8")
    return path


def changed(row, **changes):
    """Return a copy of ``row`` with ``section__key=value`` set."""
    new = copy.deepcopy(row)
    for where, value in changes.items():
        section, _, key = where.partition("__")
        (new[section] if key else new).__setitem__(key or section, value)
    return new


def test_every_row_is_scored_or_skipped(lines, tmp_path, capsys):
    """Rows come back in order, with the contract's keys; summary and rows agree."""
    printed = result(written(tmp_path, "\n".join(lines)), capsys)
    rows, summary = printed["rows"], printed["summary"]

    assert [row["id"] for row in rows] == [json.loads(line[2:])["id"] for line in lines]
    assert all(set(row) == ROW_KEYS for row in rows)
    for row in rows:
        known = {row[key] is not None for key in PREDICTED}
        assert known == {row["skipped"] is None}
        assert row["skipped"] is None or row["skipped"].strip()
    assert summary["rows"] == len(lines) == summary["scored"] + summary["skipped"]
    assert summary["scored"] == sum(row["skipped"] is None for row in rows) > len(lines) // 3
    for name in ("complete", "incomplete"):
        section = summary[name]
        assert sum(section["skip_reasons"].values()) == section["skipped"]
        assert section["rows"] == section["scored"] + section["skipped"]


@pytest.mark.slow
def test_predictions_are_positive_and_of_the_right_magnitude(lines):
    """No prediction of a run that ran is off by more than a factor of ten."""
    errors = [outcome_of(json.loads(line[2:]), 0).error for line in lines]

    assert all(-0.9 < error < 9 for error in errors if error is not None)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ('{"id": "broken"', "malformed row"),
        ("[1, 2]", "malformed row"),
        ("null", "malformed row"),
        ('{"id": 7}', "malformed row"),
        ('{"id": "empty", "group": "g", "layout": {}}', "malformed row"),
    ],
)
def test_what_is_no_row_is_skipped(entry, reason, tmp_path, capsys):
    """An entry that is not a row, or not even YAML, costs that entry only."""
    printed = result(written(tmp_path, f"- {entry}\n- {entry}"), capsys)

    assert len(printed["rows"]) == 2
    for row in printed["rows"]:
        assert row["skipped"].startswith(reason)
        assert {row[key] for key in PREDICTED} == {None}


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "lora"},
        {"hardware__gpu": "abacus"},
        {"hardware__gpus": 0},
        {"hardware__gpus": 7},
        {"hardware__internode_gbit_per_gpu": -1.0},
        {"model__layers": None},
        {"model__vocab": None},
        {"model__heads": 7},
        {"model__moe": {"experts": 8, "top_k": 2}},
        {"model__attention": "MLA"},
        {"layout__cp": 2},
        {"layout__ep": 2},
        {"layout__precision": "nvfp4"},
        {"layout__recompute": "other: every second layer"},
        {"layout__recompute": None},
        {"layout__zero": "other: hybrid"},
        {"layout__pp": 1_000_000},
        {"layout__micro_batch": 10**30},
        {"layout__micro_batch": math.inf},
        {"layout__global_batch": 7},
        {"measured__step_time_s": "fast"},
    ],
    ids=str,
)
def test_what_cannot_be_expressed_is_skipped_with_its_reason(row, changes):
    """Nothing is guessed and nothing raises."""
    outcome = outcome_of(changed(row, **changes), 0)

    assert outcome.predicted is None
    assert str(outcome.skipped)


def test_a_row_may_say_which_release_ran(row):
    """By the catalogue's stack that prices it, which counts as named."""
    here = {"stack": "megatron-lm", "layout__zero": 0}
    plain, later = (outcome_of(changed(row, cost_model=x, **here), 0) for x in (None, "megatron-lm-2022"))

    assert [x.job.stack.name for x in (plain, later)] == ["megatron-lm", "megatron-lm-2022"]
    assert all(outcome.known_stack for outcome in (plain, later))


def test_kernels_of_a_run_are_those_of_its_software(row):
    """By its kernels, its layout, its software and its stack."""
    stops = {"recompute_early_stop": True}

    def priced(**changes):
        return outcome_of(changed(row, **changes), 0).job.stack

    older, newer = (priced(stack="fsdp1", software={"recompute_early_stop": x}).block for x in (False, True))
    titan = {"stack": "fsdp2", "layout__compile": True}
    names = [priced(**titan, layout__async_tp=x).name for x in (True, None)]
    fused, apart = (
        priced(stack="megatron-lm", software={}, layout__kernel=x).block
        for x in ("unfused + fused softmax", "unfused")
    )

    assert (older.checkpoint_early_stop, newer.checkpoint_early_stop) == (False, True)
    recipe, skill = (priced(stack="megatron-core", cost_model=x) for x in ("megatron-bridge", None))

    assert names == ["fsdp2-async-tp", "fsdp2-compile"]
    assert (recipe.name, skill.name) == ("megatron-bridge", "megatron-core")
    assert priced(**titan, layout__fp8_scales="row").block.fp8_scales == "row"
    table, today = (priced(stack="fsdp2", software=x) for x in (stops, {}))
    assert (table.block.checkpoint_early_stop, today.block.checkpoint_early_stop) == (True, False)
    assert (fused.attention, fused.fused_softmax) == ("eager", True)
    assert (apart.attention, apart.fused_softmax) == ("eager", False)
    assert priced(stack="internevo").block.fused_norms
    assert not priced(stack="somebody's").block.fused_norms


def test_software_of_a_run_is_what_its_row_says(row):
    """Not compiled where a stack compiles, a generation of FlashAttention, kernels that a library fuses."""

    def block(**changes):
        of_nobody = changed(row, stack="other: lit-gpt", software={}, **changes)
        return outcome_of(of_nobody, 0).job.stack.block

    compiled, eager = (block(layout__compile=x) for x in (None, False))
    library = block(layout__compile=False, layout__kernel="flash_attn 2, fused RMSNorm and cross entropy")

    assert (compiled.fused_norms, eager.fused_norms, library.fused_norms) == (True, False, True)
    assert (eager.loss_forward_traffic, library.loss_forward_traffic) == (16, 6)
    assert [block(layout__kernel=f"flash_attention_{x}").attention for x in (2, 3)] == ["flash2", "flash"]


def test_tokens_of_a_run_are_routed_evenly_unless_its_row_says_otherwise(row):
    """A program whose products are padded to the longest expert computes that many for each."""
    moe = {"experts": 8, "top_k": 2, "expert_ffn": 1024}

    def outcome(**changes):
        return outcome_of(changed(row, stack="fsdp2", model__moe=moe, model__gated_mlp=True, **changes), 0)

    even, padded = (outcome(**x) for x in ({}, {"routing": {"capacity_factor": 4.0, "padded": True}}))

    assert (even.job.routing.load_variation, padded.job.routing.capacity_factor) == (0.0, 4.0)
    assert padded.predicted.step_seconds > even.predicted.step_seconds


def test_strangers_are_of_publications_that_no_fit_has_seen():
    """And what was predicted before any change for them is kept for each of them."""
    strangers = DATA / "strangers.yaml"
    fitted = {x["source"] for path in DEFAULT_RUNS for x in read_entries(path, "runs")}
    entries = read_entries(strangers, "runs")
    with (DATA / "blind" / "strangers.csv").open(encoding="utf-8", newline="") as file:
        blind = [line["id"] for line in csv.DictReader(file)]

    assert len(entries) > 40
    assert not fitted & {x["source"] for x in entries}
    assert blind == [x["id"] for x in entries]


def test_attention_of_a_run_is_of_its_day(row):
    """The first FlashAttention, or its kernels in Triton, where a row says so; else what its stack has."""

    def attention(software):
        return outcome_of(changed(row, stack="fsdp1", software=software), 0).job.stack.block.attention

    assert [attention({"attention": x}) for x in ("flash1", "flash1-triton")] == ["flash1", "flash1-triton"]
    assert attention({}) == "flash2"


def test_a_run_may_overlap_its_gradients_where_it_has_no_other_axis(row):
    """OneFlow's collectives leave the stream of compute only where there are no tensors and no stages."""
    oneflow = {"stack": "other: oneflow gpt 0.3.5", "layout__kernel": "unfused (fused softmax kernels)"}
    data, tensors = (
        outcome_of(changed(row, **oneflow, layout__tp=tp, layout__dp=128 // tp), 0).job.stack for tp in (1, 2)
    )

    assert (data.overlap.gradient_reduce, tensors.overlap.gradient_reduce) == (True, False)
    assert data.block.fused_attention_dropout
    assert data.overlap.p2p
    assert (data.memory.gradient_bytes, data.block.loss_forward_traffic) == (2, 12)


def test_state_is_shared_by_as_many_ranks_as_a_run_says(row):
    """InternEvo's column Zero1 is a field of the layout; without it all ranks share."""
    shared = {
        group: outcome_of(
            changed(row, stack="internevo", layout__zero=1, layout__zero_group=group), 0
        ).plan.layout.dp_shard
        for group in (8, 4, None)
    }

    assert row["layout"]["dp"] == 128
    assert shared == {8: 8, 4: 4, None: 0}


def test_gradients_are_reduced_as_a_release_did(row):
    """InternEvo's of July 2023 whole, with nothing gathered ahead; DeepSpeed's of 2020 checked one by one."""
    evo = outcome_of(changed(row, stack="internevo", layout__zero=1), 0).job.stack.overlap
    old = {"stack": "megatron-deepspeed", "layout__kernel": None, "layout__zero": 1}
    passes = [
        outcome_of(changed(row, **old, source=source), 0).job.stack.memory.host_sync_passes_zero
        for source in ("Oneflow-Inc/DLPerf DeepSpeed/Megatron-LM", "somebody")
    ]

    assert (evo.gradient_reduce, evo.all_reduce_under_zero, evo.parameter_gather) == (True, True, False)
    assert evo.bucket.value == 4 * 2**29
    assert passes == [2, 0]


def test_a_row_says_whether_it_was_compiled(row):
    """One that says nothing, or that it was not, is priced without."""
    names = [
        outcome_of(changed(row, stack="fsdp2", layout__compile=x), 0).job.stack.name
        for x in (True, False, None)
    ]

    assert names == ["fsdp2-compile", "fsdp2", "fsdp2"]


def test_unknown_fields_range_over_their_choices(row):
    """An incomplete row stands at the fastest layout that fits, among all it may have had."""
    known = outcome_of(row, 0)
    unknown = outcome_of(changed(row, complete=False, layout__recompute=None), 0)

    assert len(known.plans) == 1
    assert len(unknown.plans) == 3
    assert unknown.plan in unknown.plans
    assert known.plan in unknown.plans


def test_block_style_yaml_reads_like_json_lines(row, tmp_path, capsys):
    """Both ways to write a file of runs give the same rows."""
    import yaml

    line = result(written(tmp_path, f"- {json.dumps(row)}"), capsys)["rows"]
    block = result(written(tmp_path, yaml.safe_dump([row])), capsys)["rows"]
    indented = result(written(tmp_path, f"  - {json.dumps(row)}"), capsys)["rows"]

    assert line == block == indented


def test_a_file_that_is_no_list_is_bad_input(tmp_path, capsys):
    """A file that cannot be read is told on stderr, and is exit code 2."""
    path = tmp_path / "runs.yaml"
    path.write_text("just words", encoding="utf-8")

    assert main(["--runs", str(path)]) == 2
    assert main(["--runs", str(tmp_path / "none.yaml")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_the_table_names_every_part(lines, tmp_path, capsys):
    """People get the same sections that programs do."""
    assert main(["--runs", str(written(tmp_path, "\n".join(lines[:20])))]) == 0
    printed = capsys.readouterr().out

    for words in ("Complete rows", "Incomplete rows", "Skipped", "Worst rows", "Fitting"):
        assert words in printed


def test_a_sample_of_runs_is_predicted_no_worse_than_recorded(capsys):
    """60 complete rows, always the same: no figure of them is worse than in ``recorded_sample.yaml``."""
    assert main(["--sample", "60", "--check", "--format", "json"]) == 0

    printed = capsys.readouterr()
    assert printed.err.strip().startswith("0 recorded figures are worse")
    assert len(json.loads(printed.out)["rows"]) == 60


def test_kendall_counts_pairs_beyond_noise():
    """All right, all wrong, and a pair too close to call."""
    assert kendall([100, 80, 60], [3, 2, 1]) == (3, 3)
    assert kendall([100, 80, 60], [1, 2, 3]) == (-3, 3)
    assert kendall([100, 98, 60], [1, 2, 0]) == (2, 2)
    assert kendall([100, 80], [1, 1]) == (0, 1)


def test_regret_is_what_the_choice_loses():
    """Choosing the best loses nothing; choosing a run at 60 % of the best loses 40 %."""
    assert regret([100.0, 60.0], [2.0, 1.0]) == 0.0
    assert regret([100.0, 60.0], [1.0, 2.0]) == pytest.approx(0.4)


def test_of_layouts_that_are_predicted_equal_any_may_be_taken():
    """The mean of what they lose; in a group of two no order counts."""
    assert regret([100.0, 60.0, 50.0], [2.0, 2.0, 1.0]) == pytest.approx(0.2)


def measured_with(row, factor, **layout):
    """Return the outcome of ``row`` with another layout, measured as predicted but for ``factor`` of it."""
    told = {f"layout__{key}": value for key, value in layout.items()}
    first = outcome_of(changed(row, **told), 0)
    step = first.predicted.step_seconds * factor(first)
    measured = {"measured__step_time_s": step, "measured__tokens_per_s_per_gpu": None}
    return outcome_of(changed(row, **told, **measured), 0)


def bubble_twice(outcome):
    """Return what a step takes over its prediction where the bubble is twice as long."""
    return 1.0 + outcome.predicted.time.bubble / outcome.predicted.step_seconds


@pytest.fixture(scope="module")
def on_eight():
    """A run of Megatron-LM on eight devices."""
    entries = read_entries(DATA / "training.yaml", "runs")
    return next(x for x in entries if x["stack"] == "megatron-lm" and x["hardware"]["gpus"] == 8)


def test_a_part_that_takes_twice_as_long_is_found(on_eight):
    """Runs that differ in the depth of their pipeline, whose bubble takes once more what is predicted."""
    depths = ((8, 1), (4, 2), (2, 4), (1, 8))
    group = [measured_with(on_eight, bubble_twice, tp=1, dp=dp, pp=pp, micro_batch=1) for dp, pp in depths]
    found = {x.part: x for x in parts.slopes("some", [group])}

    assert found["bubble"].alone == pytest.approx(1.0, abs=0.25)
    assert found["bubble"].explained > 0.95
    assert all(x.rows == len(depths) and x.groups == 1 for x in found.values())


def test_two_layouts_are_no_group_whose_parts_say_anything(on_eight):
    """The constant of a group and a slope take two runs already."""
    told = {"tp": 1, "micro_batch": 1}
    pair = [measured_with(on_eight, bubble_twice, dp=dp, pp=pp, **told) for dp, pp in ((8, 1), (4, 2))]

    assert parts.part_slopes(pair) == []
    assert scores.order(pair).groups == 0


def test_spread_tells_size_and_sign():
    """Sizes are absolute, bias is signed, and nothing is known of no errors."""
    errors = spread([-0.4, -0.1, 0.2])

    assert (errors.n, errors.median, errors.worst) == (3, 0.2, 0.4)
    assert errors.bias == -0.1
    assert spread([]).median is None


@pytest.mark.parametrize(
    "module", [coefficients, jobs, outcomes, policies, reading, recorded, scores, skips, stacks, tables]
)
def test_examples_in_docstrings_hold(module):
    """The benchmark package is outside of pytest's own doctest paths."""
    assert doctest.testmod(module).failed == 0


def test_selective_recompute_of_a_stack_goes_by_other_names(row):
    """What torchtitan calls per-op is what its stack does; the same words of another stack are not known."""
    told = {"layout__recompute": "other: selective (per-op sac)", "complete": False}
    titan, other = (outcome_of(changed(row, stack=x, **told), 0) for x in ("fsdp2", "megatron-core"))

    assert titan.plan.layout.counts("selective") == titan.plan.layout.layers
    assert other.skipped.category == "the recompute cannot be expressed"
