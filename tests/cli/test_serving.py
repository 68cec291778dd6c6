"""``plan`` and ``evaluate`` of serving jobs: answers, limits, and what is wrong with a job."""

import itertools
import json
from pathlib import Path

import pytest

HEAD = "schema: 1\nkind: serving\nmodel: llama3.1-8b\nhardware: dgx-h100\nstack: vllm@0.24\n"
LOAD = "workload: {input_tokens: 1024, output_tokens: 256, concurrency: 32}\n"
#: One engine of one device with few sizes: quick to plan.
SMALL = (
    "search: {tensor_parallel: [1, 2], pipeline_parallel: 1, max_num_batched_tokens: 2048,"
    " max_num_seqs: [16, 64]}\n"
)
#: What the contract says of a serving plan's ``predicted``.
CONTRACT = (
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "output_tokens_per_second",
    "output_tokens_per_second_per_device",
    "max_concurrency",
    "peak_memory_bytes_per_device",
    "memory",
)


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a job and returns its path."""

    def write(*parts, head=HEAD):
        path = tmp_path / "job.yaml"
        path.write_text(head + "".join(parts), encoding="utf-8")
        return str(path)

    return write


def planned(run, path, *options):
    """Return exit code and document of a plan."""
    done = run("plan", path, "--format", "json", *options)
    assert "Traceback" not in done.stderr
    return done.exit_code, json.loads(done.stdout)


def test_a_plan_has_what_the_contract_says(run, job):
    """Each plan of the front has its layout and prediction, and the answer its certificate."""
    code, answer = planned(run, job("devices: 2\n", LOAD, SMALL))

    assert (code, answer["schema"], answer["certificate"]["status"]) == (0, 1, "optimal")
    assert answer["front"]
    for plan in answer["front"]:
        assert all(plan["predicted"][key] is not None for key in CONTRACT)
        assert plan["predicted"]["fits"]
        assert plan["predicted"]["devices"] <= 2
        quantiles = plan["predicted"]["percentiles"]["time_to_first_token_seconds"]
        assert quantiles["p50"] <= quantiles["p90"] <= quantiles["p99"]
    times = [plan["predicted"]["time_per_output_token_seconds"] for plan in answer["front"]]
    assert times == sorted(times)


def test_a_layout_of_the_front_evaluates_to_the_same(run, job):
    """``evaluate`` prices the layout as ``plan`` did (R1)."""
    path = job("devices: 2\n", LOAD, SMALL)
    _, answer = planned(run, path)

    for plan in answer["front"]:
        done = run("evaluate", path, "--layout", plan["layout_string"], "--format", "json")
        assert json.loads(done.stdout)["predicted"] == plan["predicted"]


def test_limits_hold_on_the_front(run, job):
    """Means and percentiles of every plan are within the limits, and the answer says what is simulated."""
    limits = "limits: {time_to_first_token: {p99: 1 s}, time_per_output_token: 12 ms, goodput: 90 %}\n"
    code, answer = planned(run, job("devices: 2\n", LOAD, SMALL, limits))

    assert code == 0
    assert answer["certificate"]["simulated"] == ["time_to_first_token.p99", "goodput"]
    for plan in answer["front"]:
        predicted = plan["predicted"]
        assert predicted["percentiles"]["time_to_first_token_seconds"]["p99"] <= 1
        assert predicted["time_per_output_token_seconds"] <= 0.012
        assert predicted["percentiles"]["goodput"] >= 0.9


def test_left_out_devices_are_the_fewest_that_hold_the_limits(run, job):
    """A rate that one engine cannot keep up with takes two devices, and no more."""
    rate = "workload: {input_tokens: 1024, output_tokens: 256, request_rate: RATE/s}\n"
    used = []
    for amount in (2, 40):
        code, answer = planned(run, job(rate.replace("RATE", str(amount)), SMALL))
        assert code == 0
        used.append({plan["predicted"]["devices"] for plan in answer["front"]})

    assert used[0] == {1}
    assert len(used[1]) == 1
    assert max(used[1]) > 1


def test_what_cannot_be_held_is_said_with_what_can(run, job):
    """Exit code 1: the limit that clashes, and the nearest value, which then has a plan."""
    path = job("devices: 2\n", LOAD, SMALL, "limits: {time_per_output_token: 1 ms, request_latency: 60 s}\n")
    code, answer = planned(run, path)

    assert code == 1
    assert answer["conflict"] == ["time_per_output_token"]
    change = next(c for c in answer["changes"] if c["key"] == "limits.time_per_output_token")
    relaxed = job(
        "devices: 2\n",
        LOAD,
        SMALL,
        f"limits: {{time_per_output_token: {change['value']}, request_latency: 60 s}}\n",
    )
    assert planned(run, relaxed)[0] == 0


def test_a_table_says_what_is_proven_and_what_is_simulated(run, job):
    """The table has the layout, and sentences on the proof and on the simulation."""
    done = run("plan", job("devices: 2\n", LOAD, SMALL), "--details")

    assert "proven for mean values" in done.stdout
    assert "simulations of these plans differ" in done.stdout


def test_an_engine_that_does_not_start_says_why(run, job):
    """A 70B in 16 bits on one device: no engine starts, and narrower weights help."""
    head = HEAD.replace("llama3.1-8b", "llama3.1-70b")
    code, answer = planned(run, job("devices: 1\n", LOAD, head=head))

    assert code == 1
    assert "no engine starts; the nearest, tp=1" in answer["reasons"][0]
    assert "loading the weights: 131.4 GiB on a device of" in answer["reasons"][0]
    assert {"devices"} <= {change["key"] for change in answer["changes"]}


def test_evaluate_shows_a_layout_that_cannot_serve(run, job):
    """The table says what fails, as the engine's log would."""
    head = HEAD.replace("llama3.1-8b", "llama3.1-70b")
    done = run("evaluate", job("devices: 1\n", LOAD, head=head), "--layout", "tp=1")

    assert done.exit_code == 0
    assert "cannot serve: out of memory while loading the weights: 131.4 GiB" in done.stdout


def test_more_requests_than_an_engine_answers(run, job):
    """A rate above the maximum has no time to the first token, and the answer says so."""
    path = job("devices: 1\n", "workload: {input_tokens: 1024, output_tokens: 256, request_rate: 900/s}\n")
    done = run("evaluate", path, "--layout", "tp=1", "--format", "json")
    predicted = json.loads(done.stdout)["predicted"]

    assert (predicted["fits"], predicted["time_to_first_token_seconds"]) == (False, None)
    assert predicted["saturated"]
    code, answer = planned(run, path)
    assert code == 1
    assert "keep up with 900 requests a second" in answer["reasons"][0]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("stack: vllm@0.5\n", LOAD), "known versions are"),
        (("workload: {input_tokens: 9, output_tokens: 9, request_rate: 0/s}\n",), "must be more than 0"),
        (
            ("workload: {input_tokens: 9, output_tokens: 9, request_rate: inf/s}\n",),
            "write a rate with its unit",
        ),
        (("workload: {input_tokens: 9, output_tokens: 9, request_rate: 9999999/s}\n",), "is not supported"),
        (("workload: {input_tokens: 9, output_tokens: 9, concurrency: 10000000}\n",), "is not supported"),
        (
            (LOAD, "limits: {time_per_output_token: {p50: 2 s, p99: 1 s}}\n"),
            "p50 and p99 contradict each other",
        ),
        (
            ("workload: {input_tokens: 9, output_tokens: 9}\n", "limits: {time_to_first_token: 1 s}\n"),
            "needs a load",
        ),
        (("workload: {input_tokens: {trace: none.csv}, output_tokens: 9}\n",), "none.csv"),
        (
            (LOAD, "speculation: {method: draft_model, tokens: 3, acceptance: 0.5, draft_model: llama9}\n"),
            "llama9",
        ),
        (("workload: {input_tokens: 8, output_tokens: 1}\n", "search: {disaggregated: true}\n"), "one token"),
    ],
)
def test_a_wrong_job_ends_with_a_sentence(run, job, parts, said):
    """Exit code 2, and never a traceback."""
    head = HEAD.replace("stack: vllm@0.24\n", "") if parts[0].startswith("stack") else HEAD
    done = run("plan", job("devices: 1\n", *parts, head=head))

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("tp=3", "must divide the 32 query heads"),
        ("tp=64,replicas=1", "tp=64"),
        ("tp=2,replicas=2", "takes 4 devices"),
        ("prefill=(tp=1,x=1,kv=fp8)/decode=(tp=1,x=1)", "one format of keys and values"),
        ("prefill=(tp=1,x=2)/decode=(tp=1,x=1)", "the pools take 3 devices"),
        ("tp=0", "must be an integer from 1"),
        ("seqs=8,tokens=4", "each request needs a token"),
    ],
)
def test_a_wrong_layout_ends_with_a_sentence(run, job, layout, said):
    """Exit code 2 with the rule that it breaks."""
    done = run("evaluate", job("devices: 2\n", LOAD), "--layout", layout)

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr.replace("\n", " ")


def test_a_trace_is_planned_for(run, job, tmp_path):
    """Lengths and arrivals come from the file beside the job."""
    rows = "".join(f"{i * 0.5},{200 + 10 * i},{20 + i}\n" for i in range(40))
    (tmp_path / "requests.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows, encoding="utf-8")
    lengths = "{input_tokens: {trace: requests.csv}, output_tokens: {trace: requests.csv}, request_rate: 2/s}"
    path = job("devices: 1\n", f"workload: {lengths}\n")
    done = run("evaluate", path, "--layout", "tp=1", "--format", "json")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["predicted"]["output_tokens_per_second"] == pytest.approx(79, rel=0.03)


def test_a_recorded_trace_comes_at_its_own_rate(run, job, tmp_path):
    """Without a rate or clients, requests come as the trace says: here two a second."""
    rows = "".join(f"{i * 0.5},{200 + 10 * i},{20 + i}\n" for i in range(41))
    (tmp_path / "requests.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows, encoding="utf-8")
    path = job(
        "devices: 1\n",
        "workload: {input_tokens: {trace: requests.csv}, output_tokens: {trace: requests.csv}}\n",
    )
    done = run("evaluate", path, "--layout", "tp=1", "--format", "json")
    predicted = json.loads(done.stdout)["predicted"]

    assert predicted["requests_per_second"] == pytest.approx(2)
    assert predicted["time_to_first_token_seconds"] > 0


def test_drafts_are_chosen_and_the_batch_above_which_they_lose_is_said(run, job):
    """Few requests gain from drafts; the answer says up to which batch, in text and JSON."""
    drafts = "speculation: {method: eagle3, tokens: [0, 3], acceptance: 70 %}\n"
    load = "workload: {input_tokens: 256, output_tokens: 256, concurrency: 4}\n"
    path = job("devices: 1\n", load, drafts, SMALL)
    code, answer = planned(run, path)

    fastest = answer["front"][0]
    assert (code, fastest["layout"]["spec"]) == (0, 3)
    gain = fastest["predicted"]["speculation"]
    assert gain["speedup"] > 1
    assert gain["tokens_per_step"] == pytest.approx((1 - 0.7**4) / 0.3)
    assert gain["gains_up_to_batch"] is None or gain["gains_up_to_batch"] >= 4
    assert fastest["predicted"]["memory"][0]["draft_weights"] > 0
    table = run("evaluate", path, "--layout", fastest["layout_string"]).stdout
    assert "tokens a step" in table
    assert "drafts make tokens up to" in run("plan", path, "--details").stdout.replace("\n  ", " ")


def test_scaling_has_the_fewest_devices_of_each_load(run, job):
    """Each row is what the load alone gets, devices grow with the load, and the text has the table."""
    lengths = "workload: {input_tokens: 1024, output_tokens: 256}\n"
    rates, limits = "scaling: {request_rate: [2/s, 40/s]}\n", "limits: {time_per_output_token: 30 ms}\n"
    path = job(lengths, rates, SMALL, limits)
    code, answer = planned(run, path)
    table = run("plan", path).stdout
    alone = job(lengths.replace("256}", "256, request_rate: 40/s}"), SMALL, limits)
    _, single = planned(run, alone)

    rows = answer["scaling"]
    assert (code, [row["request_rate"] for row in rows]) == (0, [2.0, 40.0])
    assert 1 == rows[0]["devices"] < rows[1]["devices"] == single["front"][0]["predicted"]["devices"]
    assert answer["front"] == single["front"]
    assert "40/s" in table


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ("{request_rate: [8/s, 2/s]}", "from the least to the most"),
        ("{request_rate: [8/s], concurrency: [2]}", "either request_rate or concurrency"),
        ("{request_rate: [0/s, 2/s]}", "must be more than 0"),
        ("{concurrency: []}", "at least 1"),
    ],
)
def test_loads_that_make_no_table(run, job, scaling, said):
    """Loads out of order, of two kinds, none or zero end with a sentence."""
    done = run("plan", job("workload: {input_tokens: 9, output_tokens: 9}\n", f"scaling: {scaling}\n"))

    assert done.exit_code == 2
    assert said in done.stderr.replace("\n", " ")


def test_a_prefix_saves_prefill_and_cache(run, job):
    """Shared tokens are computed and kept once; a hit rate saves prefill alone."""
    load = "workload: {input_tokens: 1024, output_tokens: 256, concurrency: 32PREFIX}\n"
    values = []
    for prefix in ("", ", prefix: {shared_tokens: 512}", ", prefix: {hit_rate: 50 %}"):
        path = job("devices: 1\n", load.replace("PREFIX", prefix))
        values.append(json.loads(run("evaluate", path, "--layout", "tp=1", "--format", "json").stdout))
    plain, shared, hit = (value["predicted"] for value in values)

    for saved in (shared, hit):
        assert saved["time_to_first_token_seconds"] < 0.8 * plain["time_to_first_token_seconds"]
        assert saved["output_tokens_per_second"] > plain["output_tokens_per_second"]
    assert shared["max_concurrency"] > 1.5 * plain["max_concurrency"]
    assert hit["max_concurrency"] == plain["max_concurrency"]
    wrong = run("plan", job("devices: 1\n", load.replace("PREFIX", ", prefix: {shared_tokens: 4096}")))
    assert wrong.exit_code == 2
    assert "more than the longest prompt" in wrong.stderr.replace("\n", " ")


def test_spec_without_speculation_is_refused(run, job):
    """A layout with drafts needs to know how many are accepted."""
    done = run("evaluate", job("devices: 1\n", LOAD), "--layout", "tp=1,spec=3")

    assert done.exit_code == 2
    assert "needs the section `speculation`" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("limit", "key"),
    [
        ("cost: 0.01", "limits.cost"),
        ("energy: 1000 J", "limits.energy"),
        ("throughput: 1e7", "limits.throughput"),
    ],
)
def test_a_limit_on_cost_energy_or_throughput_has_a_nearest_value(run, job, limit, key):
    """The change says what is possible, and with it the job has a plan."""
    price = "price: {per_device_hour: 2.5, date: 2026-11-01}\n"
    code, answer = planned(run, job("devices: 1\n", LOAD, SMALL, price, f"limits: {{{limit}}}\n"))
    change = next(c for c in answer["changes"] if c["key"] == key)

    assert code == 1
    fixed = f"limits: {{{key.removeprefix('limits.')}: {change['value']}}}\n"
    assert planned(run, job("devices: 1\n", LOAD, SMALL, price, fixed))[0] == 0


def test_a_simulation_of_clients_in_step_counts_whole_rounds(run, job):
    """Clients with equal requests end together: a part of a round would have answers without their time."""
    load = "workload: {input_tokens: 1024, output_tokens: 256, concurrency: 64}\n"
    code, answer = planned(run, job("devices: 1\n", load, SMALL))

    assert code == 0
    assert max(plan["predicted"]["simulation"]["gap"] for plan in answer["front"]) < 0.05


@pytest.mark.parametrize(
    ("bound", "reason", "key"),
    [
        ("limits: {memory_headroom: 99 %}\n", "takes 99 %", "limits.memory_headroom"),
        ("limits: {peak_memory: 4 GiB}\n", "4.0 GiB of a device", "limits.peak_memory"),
        ("search: {gpu_memory_utilization: 1 %}\n", "1 % of a device", "search.gpu_memory_utilization"),
        ("search: {max_num_seqs: 100000}\n", "needs a token", "search.max_num_seqs"),
    ],
)
def test_bounds_of_the_job_that_keep_engines_from_starting_are_named(run, job, bound, reason, key):
    """The job and not the engine leaves no room: that is said, and lifting the bound helps."""
    path = job("devices: 1\n", LOAD, bound)
    code, answer = planned(run, path)

    assert code == 1
    assert any(reason in said for said in answer["reasons"])
    number = next(n for n, change in enumerate(answer["changes"], 1) if change["key"] == key)
    applied = Path(path).with_name("applied.yaml")
    applied.write_text(run("plan", path, "--apply", number).stdout, encoding="utf-8")
    assert planned(run, applied)[0] == 0


def test_a_limit_that_no_number_of_devices_holds_is_explained_once(run, job):
    """Devices left out: 64 are tried, and the reasons are those on the devices of the hardware."""
    code, answer = planned(run, job(LOAD, SMALL, "limits: {time_per_output_token: 1 ms}\n"))

    assert code == 1
    assert answer["conflict"] == ["time_per_output_token"]
    assert [change["key"] for change in answer["changes"]] == ["limits.time_per_output_token"]


def test_limits_on_percentiles_that_contradict_each_other_are_told_alone(run, job):
    """What a bare duration would have needed says nothing of a mapping."""
    path = job("devices: 1\n", LOAD, "limits: {time_to_first_token: {p50: 3 s, p99: 1 s}}\n")
    done = run("plan", path)

    assert done.exit_code == 2
    assert "p50 and p99 contradict each other" in done.stderr
    assert "has no unit" not in done.stderr


def test_layouts_are_compared_at_the_load_and_at_others(run, job):
    """Figures are those of ``evaluate``; loads follow each other, with the best that holds the limits."""
    path = job("devices: 2\n", LOAD, "limits: {time_per_output_token: 12 ms}\n")
    layouts = ("tp=2", "replicas=2")
    done = run(
        "compare", path, *(word for text in layouts for word in ("--layout", text)), "--format", "json"
    )
    answer = json.loads(done.stdout)
    evaluated = [
        json.loads(run("evaluate", path, "--layout", text, "--format", "json").stdout) for text in layouts
    ]

    assert [one["name"] for one in answer["layouts"]] == list(layouts)
    for one, alone in zip(answer["layouts"], evaluated, strict=True):
        assert one["predicted"] == alone["predicted"]
    rates = [one["predicted"]["output_tokens_per_second_per_device"] for one in answer["layouts"]]
    assert answer["best"]["throughput_per_device"] == rates.index(max(rates)) + 1
    ends = [(loads["from"], loads["to"]) for loads in answer["loads"]]
    assert all(first <= last for first, last in ends)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert answer["loads"][-1]["best"] is None
    now = next(loads for loads in answer["loads"] if loads["from"] <= 32 <= loads["to"])
    assert now["best"] == answer["best"]["throughput_per_device"]


def test_a_layout_alone_is_compared_with_the_best(run, job):
    """Which is that of the plan; what cannot be compared is bad input."""
    path = job("devices: 1\n", LOAD, SMALL)
    answer = json.loads(run("compare", path, "--layout", "tp=1,seqs=4", "--format", "json").stdout)

    assert answer["layouts"][1]["name"] == "the best layout"
    assert answer["best"]["throughput_per_device"] == 2
    for options in ([], ["--axes"], ["--layout", "tp=3"]):
        done = run("compare", path, *options)
        assert (done.exit_code, "Traceback" in done.stderr) == (2, False)


def test_what_is_left_to_the_engine_is_listed(run, job):
    """Settings that neither job nor layout says have the values of the version; said ones are left out."""
    path = job("devices: 1\n", LOAD)
    left = json.loads(run("evaluate", path, "--layout", "tp=1", "--format", "json").stdout)["left_to_engine"]
    said = json.loads(run("evaluate", path, "--layout", "tp=1,seqs=64", "--format", "json").stdout)

    # vllm 0.24, engine/arg_utils.py: the API server on devices of 70 GiB and more.
    assert (left["max_num_seqs"], left["max_num_batched_tokens"]) == (1024, 8192)
    assert (left["gpu_memory_utilization"], left["block_tokens"], left["prefix_caching"]) == (0.92, 16, True)
    assert left.keys() - said["left_to_engine"].keys() == {"max_num_seqs"}
    text = run("evaluate", path, "--layout", "tp=1").stdout
    assert "left to vLLM 0.24: max_num_seqs 1,024" in text
    assert "nothing of prompts is cached (workload.prefix)" in text


MIXED = """schema: 1
kind: serving
model: llama3-70b
hardware: dgx-h100
devices: 3
stack: vllm@0.24
workload: {input_tokens: 1024, output_tokens: 256}
precision: {weights: [fp8, int4-awq]}
search: {max_num_seqs: [64, 256], max_num_batched_tokens: 8192, pipeline_parallel: 1, mixed_formats: %s}
objectives: [throughput]
"""


def test_engines_of_unlike_formats_serve_together_only_on_request(run, job):
    """Of 3 devices, fp8 on two and 4 bits on one give most; left out, the answer says so."""
    path = job(head=MIXED % "false")
    alike = planned(run, path)[1]
    mixed = planned(run, job(head=MIXED % "true"))[1]
    formats = [
        {engine["layout"]["weights"] for engine in answer["front"][0]["engines"]} for answer in (alike, mixed)
    ]
    rates = [answer["front"][0]["predicted"]["output_tokens_per_second"] for answer in (alike, mixed)]

    assert formats == [{"int4-awq"}, {"fp8", "int4-awq"}]
    assert mixed["mixing"] is None
    assert alike["mixing"]["plan"]["layout_string"] == mixed["front"][0]["layout_string"]
    assert alike["mixing"]["gain"] == pytest.approx(rates[1] / rates[0] - 1)
    said = run("plan", job(head=MIXED % "false"), "--details").stdout
    assert "engines of unlike formats would be better by throughput" in said


def test_plans_of_unlike_formats_are_verified(run, job, tmp_path):
    """Either answer holds; a gain that plans do not have fails, as do formats that a job keeps apart."""
    for switch in ("false", "true"):
        answer = planned(run, job(head=MIXED % switch))[1]
        path = tmp_path / f"{switch}.json"
        path.write_text(json.dumps(answer))
        assert run("verify", str(path)).exit_code == 0
    alike, mixed = (json.loads((tmp_path / f"{switch}.json").read_text()) for switch in ("false", "true"))
    alike["mixing"]["gain"] *= 2
    (tmp_path / "gain.json").write_text(json.dumps(alike))
    mixed["resolved"]["search"]["mixed_formats"] = False
    (tmp_path / "formats.json").write_text(json.dumps(mixed))

    assert "the gain of unlike formats" in run("verify", str(tmp_path / "gain.json")).stdout
    verdict = run("verify", str(tmp_path / "formats.json"))
    assert verdict.exit_code == 1
    assert "unlike formats, which search.mixed_formats does not allow" in " ".join(verdict.stdout.split())
