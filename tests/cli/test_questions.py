"""Jobs for several numbers of devices and batches, as a user asks them."""

import json

import pytest

import autoplan
from autoplan.answers.plan.blocks import front_table
from autoplan.answers.verify.ask import verify
from autoplan.deadline import Deadline
from autoplan.report import front_document
from autoplan.report.render.terminal import Terminal

JOB = """
kind: training
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: [2, 4, 8]
stack: megatron-core
workload: {sequence_length: 4096, global_batch_size: 32}
"""


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a job file with more lines, in place of those that begin alike."""

    def write(*lines):
        heads = tuple(line.partition(":")[0] + ":" for line in lines)
        kept = [line for line in JOB.splitlines() if not line.startswith(heads)]
        path = tmp_path / "job.yaml"
        path.write_text("\n".join([*kept, *lines, ""]), encoding="utf-8")
        return path

    return write


def planned(run, path):
    """Return the exit code and the document of ``autoplan plan``."""
    done = run("plan", path, "--format", "json")
    return done.exit_code, json.loads(done.stdout)


def test_each_number_of_devices_is_planned_and_the_front_is_over_all(run, job):
    """Fewer devices are an objective beside step time and memory, and every choice tells its plans."""
    code, document = planned(run, job())

    assert code == 0
    assert document["job"]["objectives"] == ["step_time", "peak_memory", "devices"]
    assert [answer["devices"] for answer in document["answers"]] == [2, 4, 8]
    assert {plan["predicted"]["devices"] for plan in document["front"]} == {2, 4, 8}
    marked = sum(plan["on_front"] for answer in document["answers"] for plan in answer["plans"])
    assert marked == len(document["front"])
    assert document["certificate"]["layouts_covered"] == sum(
        answer["certificate"]["layouts_covered"] for answer in document["answers"]
    )


def test_at_least_this_speed_on_the_fewest_devices(run, job):
    """One plan, fast enough, and no choice of fewer devices has any."""
    code, document = planned(run, job("limits: {tokens_per_second: 70000}", "objectives: [devices]"))

    (plan,) = document["front"]
    fewer = [a for a in document["answers"] if a["devices"] < plan["predicted"]["devices"]]
    assert code == 0
    assert plan["predicted"]["tokens_per_second"] >= 70000
    assert fewer
    assert not any(answer["plans"] for answer in fewer)
    assert "limits.tokens_per_second requires 70,000" in fewer[0]["reasons"][0]


def test_at_most_this_memory_and_the_fastest(run, job):
    """One plan, within the memory."""
    code, document = planned(run, job("limits: {peak_memory: 20 GiB}", "objectives: [step_time]"))

    (plan,) = document["front"]
    assert code == 0
    assert plan["predicted"]["devices"] == 8
    assert plan["predicted"]["peak_memory_bytes_per_device"] <= 20 * 2**30


def test_a_larger_batch_trades_latency_for_throughput(run, job):
    """Every batch of the range is on the front, the largest with the most tokens a second."""
    batch = "workload: {sequence_length: 4096, global_batch_size: {from: 8, to: 32}}"
    code, document = planned(run, job("devices: 8", batch, "objectives: [step_time, tokens_per_second]"))

    rows = [
        (
            p["predicted"]["global_batch_size"],
            p["predicted"]["step_seconds"],
            p["predicted"]["tokens_per_second"],
        )
        for p in document["front"]
    ]
    assert code == 0
    assert [batch for batch, _, _ in rows] == [8, 16, 32]
    assert rows == sorted(rows, key=lambda row: row[1]) == sorted(rows, key=lambda row: row[2])


def test_cost_and_energy_are_what_device_hours_come_to(run, job):
    """1.8 a device-hour and 400 W, over the tokens of a step."""
    lines = ("price: {per_device_hour: 1.8, date: 2026-11-01}", "objectives: [cost, energy]")
    _, document = planned(run, job(*lines))

    for plan in document["front"]:
        hours = plan["predicted"]["devices"] * plan["predicted"]["step_seconds"] / 3600
        assert plan["predicted"]["cost"]["per_step"] == pytest.approx(1.8 * hours)
        assert plan["predicted"]["cost"]["per_billion_tokens"] == pytest.approx(
            1.8 * hours * 1e9 / (32 * 4096)
        )
        assert plan["predicted"]["energy"]["joules_per_step"] == pytest.approx(400 * 3600 * hours)
        assert plan["predicted"]["energy"]["kind"] == "estimate"
        assert (plan["predicted"]["cost"]["currency"], plan["predicted"]["cost"]["date"]) == (
            "USD",
            "2026-11-01",
        )


def test_nothing_is_feasible_only_if_no_choice_is(run, job):
    """A limit that one choice keeps exits 0; one that none keeps exits 1 with the reasons of each."""
    some, _ = planned(run, job("limits: {devices: 2}"))
    none, document = planned(run, job("limits: {step_time: 1 ms}"))

    assert (some, none) == (0, 1)
    assert [reason.partition(":")[0] for reason in document["reasons"]] == [
        "2 devices",
        "4 devices",
        "8 devices",
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("objectives: [cost]",), "$.objectives: cost needs a price"),
        (("limits: {cost: 3}",), "$.limits: cost needs a price"),
        (("price: {per_device_hour: 2}",), "$.price.date: 'date' is missing"),
        (("price: {per_device_hour: 2, date: today}",), "$.price.date: 'today' does not match the pattern"),
        (("devices: [2, 2]",), "$.devices: [2, 2] has a duplicate value"),
        (("objectives: [costs]",), "did you mean 'cost'?"),
        (
            ("workload: {sequence_length: 4096, global_batch_size: {from: 8, to: 4}}",),
            "$.workload.global_batch_size: the range has 0 batches",
        ),
        (("limits: {energy: 3}",), "$.limits.energy: 3 has no unit: write for example 250 kWh"),
    ],
)
def test_what_cannot_be_asked_is_told_with_its_line(run, job, lines, said):
    """Exit code 2, the path, and what to write."""
    done = run("plan", job(*lines))

    assert done.exit_code == 2
    assert said in done.stderr


def test_a_layout_names_its_number_of_devices(run, job):
    """``evaluate`` takes the choice that the degrees multiply to, and says which there are."""
    four = run("evaluate", job(), "--layout", "tp=2,dp=2,mbs=1", "--format", "json")
    three = run("evaluate", job(), "--layout", "dp=3")

    assert json.loads(four.stdout)["predicted"]["devices"] == 4
    assert three.exit_code == 2
    assert "the layout is for 3 devices and the job for 2, 4, 8" in three.stderr


def test_the_table_shows_what_was_asked(run, job):
    """Devices, cost and energy have columns, and the price its date."""
    lines = ("price: {per_device_hour: 1.8, date: 2026-11-01}", "limits: {energy: 5 MWh}")
    done = run("plan", job(*lines), "--details")

    assert done.exit_code == 0
    for text in (
        "on 2, 4 or 8",
        "devices",
        "USD/1e9",
        "kWh/1e9",
        "on the front",
        "2026-11-01",
        "estimate",
    ):
        assert text in done.stdout


def test_one_number_of_devices_that_is_not_solved_leaves_the_others(job, tmp_path):
    """A search that is stopped at the first of three numbers keeps its plans, and says so of the others."""
    limit = Deadline(None)
    front = autoplan.plan(job(), progress=lambda *_: limit.stop(), deadline=limit)
    table = front_table(front, Terminal(width=200), details=True)
    file = tmp_path / "answer.json"
    file.write_text(json.dumps(front_document(front)), encoding="utf-8")
    verdict = verify(file)

    assert [bool(answer.plans) for answer in front.answers] == [True, False, False]
    assert [answer.certificate.status for answer in front.answers] == ["feasible"] * 3
    assert front.certificate.status == "feasible"
    assert front.certificate.best_bound_step_seconds == 0.0
    assert table.count("not solved for") == 2
    assert "none fits" not in table
    assert [check for check in verdict.checks if check.finding == "fails"] == []
    assert not verdict.verified


def test_of_several_numbers_of_devices_the_last_is_insisted_on(job):
    """Where the deadline ends before any layout is known, one is looked for as for one number of devices."""
    limit = Deadline(None)
    limit.stop()
    front = autoplan.plan(job(), deadline=limit)

    assert [bool(answer.plans) for answer in front.answers] == [False, False, True]
    assert {answer.certificate.stopped for answer in front.answers} == {"interrupted"}
    assert front.certificate.status == "feasible"
