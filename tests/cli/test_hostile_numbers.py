"""Numbers that are legal in form: 0, denormal, huge, not finite, and of many digits."""

from __future__ import annotations

import pytest

from autoplan.catalog import FILES
from autoplan.schema.base import RANGES
from autoplan.schema.run_files import RunsSpec
from autoplan.schema.yaml.loader import json_schema
from autoplan.units import parse_quantity

JOB = """\
kind: training
model: gpt2
hardware: 2x-rtx3090
workload: {sequence_length: 512, global_batch_size: 16}
search: {pipeline_parallel: 1, microbatch_size: 1, recompute: none}
objectives: [step_time]
price: {per_device_hour: 2.5, date: 2026-11-01}
"""

BYTES, SECONDS, JOULES = (" to ".join(RANGES[dimension]) for dimension in ("bytes", "seconds", "joules"))

REFUSED = [
    ("limits: {peak_memory: 0 GiB}", "$.limits.peak_memory: '0 GiB' must be more than 0"),
    ("limits: {peak_memory: 1e-300 B}", f"'1e-300 B' must be from {BYTES}"),
    ("limits: {peak_memory: 1e-400 B}", "'1e-400 B' is too small"),
    ("limits: {peak_memory: 1e30 GiB}", f"'1e30 GiB' must be from {BYTES}"),
    ("limits: {peak_memory: 1e400 GiB}", "'1e400 GiB' is too large"),
    ("limits: {step_time: 0 s}", "'0 s' must be more than 0"),
    ("limits: {step_time: 1e-400 s}", "'1e-400 s' is too small"),
    ("limits: {step_time: 1e-320 s}", f"'1e-320 s' must be from {SECONDS}"),
    ("limits: {step_time: 1e99 h}", f"'1e99 h' must be from {SECONDS}"),
    ("limits: {step_time: -1 s}", "must be at least 0"),
    ("limits: {energy: 0 J}", "'0 J' must be more than 0"),
    ("limits: {energy: 1e300 kWh}", f"'1e300 kWh' must be from {JOULES}"),
    ("limits: {memory_headroom: 100 %}", "'100 %' must be at most 99 %"),
    ("limits: {memory_headroom: 1e-320 %}", "'1e-320 %' must be from"),
    ("limits: {tokens_per_second: 0}", "0 must be at least 1e-06"),
    ("limits: {tokens_per_second: 5e-324}", "'5e-324' is too small for a number: write at least 1e-30, or 0"),
    ("limits: {tokens_per_second: 1e-25}", "1e-25 must be at least 1e-06"),
    ("limits: {tokens_per_second: 1e300}", "'1e300' is too large for a number: write at most 1e+30"),
    ("limits: {tokens_per_second: .inf}", ".inf is not a finite number"),
    ("limits: {tokens_per_second: .nan}", ".nan is not a finite number"),
    ("limits: {tokens_per_second: 1e-400}", "'1e-400' is too small"),
    ("limits: {cost: 1e-400}", "'1e-400' is too small"),
    ("limits: {cost: -0.0}", "must be at least 1e-06"),
    ("limits: {devices: 0}", "must be at least 1"),
    (f"limits: {{devices: {'9' * 5000}}}", "an integer has at most 30 digits"),
    ("routing: {capacity_factor: 5e-324}", "'5e-324' is too small"),
]


@pytest.mark.parametrize("command", ["plan", "evaluate", "explain"])
def test_a_number_out_of_range_is_refused_with_what_is_allowed(run, tmp_path, command):
    """Each is told with its line and the range; none comes as far as a division by it."""
    job = tmp_path / "job.yaml"
    for line, said in REFUSED:
        job.write_text(f"{JOB}{line}\n", encoding="utf-8")
        done = run(command, job, *([] if command == "plan" else ["--layout", "dp=2"]))

        assert (done.exit_code, done.stdout) == (2, ""), line
        assert said in done.stderr, line
        assert f"{job}:8: $." in done.stderr, line


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("limits: {peak_memory: 1 B}", marks=pytest.mark.slow),
        "limits: {peak_memory: 1000 PB}",
        pytest.param("limits: {step_time: 0.001 ns}", marks=pytest.mark.slow),
        "limits: {step_time: 1000000 h}",
        pytest.param("limits: {energy: 1 J}", marks=pytest.mark.slow),
        "limits: {energy: 1000000 PJ}",
        "limits: {memory_headroom: 99 %}",
        "limits: {memory_headroom: 0.000001 %}",
        "limits: {tokens_per_second: 0.000001}",
        "limits: {tokens_per_second: 1.0e+15}",
        pytest.param("limits: {cost: 0.000001}", marks=pytest.mark.slow),
        "limits: {cost: 1.0e+15}",
    ],
)
def test_the_ends_of_the_ranges_are_planned(run, tmp_path, line):
    """What is allowed can be planned, or is infeasible with its reasons."""
    job = tmp_path / "job.yaml"
    job.write_text(f"{JOB}{line}\nprogram: any-layout\n", encoding="utf-8")

    for arguments in (("plan", job), ("explain", job, "--layout", "dp=2")):
        done = run(*arguments)

        assert done.exit_code in {0, 1}, done.stderr
        assert done.stdout


@pytest.mark.parametrize("kind", [*FILES, "runs"])
def test_every_number_of_every_file_has_two_bounds(kind):
    """A number without an end, or with 0 as one that it only comes near to, breaks something inside."""
    schema = json_schema({**FILES, "runs": RunsSpec}[kind])

    assert [place for place, number in numbers(schema) if not is_bounded(number)] == []


def numbers(schema, place="$"):
    """Yield every number of a JSON Schema with its place."""
    if isinstance(schema, dict):
        if schema.get("type") in {"integer", "number"}:
            yield place, schema
        for key, inner in schema.items():
            if key not in {"const", "default", "enum", "examples"}:
                yield from numbers(inner, f"{place}.{key}")
    elif isinstance(schema, list):
        for inner in schema:
            yield from numbers(inner, place)


def is_bounded(number):
    """Return whether a number lists its values, or has a least and a most."""
    return "const" in number or "enum" in number or {"minimum", "maximum"} <= set(number)


def test_a_misspelt_key_of_a_group_is_told_twice(run, tmp_path):
    """As unknown and as missing: what is left of the group does not hide the other mistakes of the file."""
    job = tmp_path / "job.yaml"
    job.write_text(JOB.replace("per_device_hour", "per_device_our") + "devices: 0\n", encoding="utf-8")
    done = run("evaluate", job, "--layout", "dp=2")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "'per_device_hour' is missing" in done.stderr
    assert "unknown key 'per_device_our': did you mean 'per_device_hour'?" in done.stderr
    assert f"{job}:8: $.devices: 0 must be at least 1" in done.stderr


@pytest.mark.parametrize("dimension", RANGES)
def test_ranges_are_quantities(dimension):
    """The ends of a range are written as a user writes them, and ascend."""
    least, most = (parse_quantity(text, dimension) for text in RANGES[dimension])

    assert 0 < least < most
