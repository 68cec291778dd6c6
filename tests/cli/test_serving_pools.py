"""Pools for prefill and decode as a user asks for them: planned, verified, evaluated, emitted and read."""

import json

import pytest

JOB = """schema: 1
kind: serving
model: llama3.1-8b
hardware: dgx-h100
devices: 4
stack: vllm@0.24
workload: {input_tokens: 4000, output_tokens: 200, request_rate: 8/s}
search: {disaggregated: [false, true], pipeline_parallel: 1, max_num_seqs: 256}
limits: {time_per_output_token: 7 ms}
objectives: [throughput]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the job."""
    path = tmp_path_factory.mktemp("pools")
    (path / "job.yaml").write_text(JOB)
    return path


def answered(run, *words):
    """Return what a command prints; it ends well."""
    done = run(*map(str, words))
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_plan_says_whether_pools_are_worth_it_and_is_verified(run, folder):
    """The answer has the best of both kinds, names pools in its front, and holds when derived again."""
    document = json.loads(answered(run, "plan", folder / "job.yaml", "--format", "json"))
    compared, plan = document["disaggregation"], document["front"][0]

    assert compared["worth_it"] == (compared["both"] is None or compared["gain"] > 0)
    pools = compared["pools"]
    assert pools["layout_string"].startswith("prefill=(")
    assert {engines["role"] for engines in pools["engines"]} == {"prefill", "decode"}
    # 4,000 tokens x 131,072 B.
    assert pools["predicted"]["disaggregated"]["transferred_bytes"] == 4000 * 131_072
    assert plan["predicted"]["time_per_output_token_seconds"] <= 7e-3

    (folder / "answer.json").write_text(json.dumps(document))
    verdict = run("verify", str(folder / "answer.json"))
    assert verdict.exit_code == 0, verdict.stdout
    assert "pools are compared with engines that do both" in verdict.stdout.replace("\n", " ")


@pytest.mark.slow
def test_a_tampered_comparison_is_refused(run, folder):
    """A gain that the plans do not have fails its check."""
    document = json.loads(answered(run, "plan", folder / "job.yaml", "--format", "json"))
    document["disaggregation"]["pools"]["predicted"]["requests_per_second"] *= 2
    (folder / "other.json").write_text(json.dumps(document))
    verdict = run("verify", str(folder / "other.json"))

    assert verdict.exit_code == 1
    assert "the plan of pools" in verdict.stdout


LAYOUT = "prefill=(tp=1,x=2)/decode=(tp=2,x=1)"


@pytest.mark.parametrize("target", ["vllm", "kubernetes", "dynamo", "llm-d"])
def test_pools_are_emitted_and_read_back(run, folder, target):
    """Both roles are written, with their prediction; what can be read is the same layout and price."""
    image = ("--image", "vllm/vllm-openai:v0.24.0") if target != "vllm" else ()
    text = answered(run, "emit", folder / "job.yaml", "--for", target, "--layout", LAYOUT, *image)

    assert "kv_producer" in text
    assert "kv_consumer" in text
    assert "predicted: time to first token" in text
    if target != "vllm":
        return
    (folder / "serve.sh").write_text(text)
    read = answered(run, "evaluate", folder / "job.yaml", "--from", folder / "serve.sh", "--format", "json")
    own = answered(run, "evaluate", folder / "job.yaml", "--layout", LAYOUT, "--format", "json")
    one, other = json.loads(read), json.loads(own)
    assert one["layout_string"] == other["layout_string"]
    assert one["predicted"] == other["predicted"]


def test_sglang_has_roles_of_its_own(run, folder):
    """Its servers are told their role, and its first token comes from the prefill engine."""
    text = JOB.replace("vllm@0.24", "sglang@0.5.23")
    (folder / "sglang.yaml").write_text(text)
    emitted = answered(run, "emit", folder / "sglang.yaml", "--for", "sglang", "--layout", LAYOUT)

    assert "--disaggregation-mode prefill" in emitted
    assert "--disaggregation-mode decode" in emitted


def test_a_page_says_what_goes_between_pools(run, folder):
    """The page of a layout has the transfer and both memories, and loads nothing."""
    answered(run, "evaluate", folder / "job.yaml", "--layout", LAYOUT, "--output", folder / "page.html")
    page = (folder / "page.html").read_text()

    assert "500.0 MiB a prompt" in page
    assert "prefill decides" in page or "decode decides" in page
    assert "GiB of a device, prefill" in page


CLASSES = """schema: 1
kind: serving
model: llama3.1-8b
hardware: dgx-h100
devices: 4
stack: vllm@0.24
workload:
  classes:
    - {name: chat, request_rate: 10/s, input_tokens: {uniform: [64, 512]},
       output_tokens: {uniform: [64, 512]},
       limits: {time_to_first_token: {p99: %s}, time_per_output_token: 8 ms}}
    - {name: rag, request_rate: 2/s, input_tokens: {uniform: [6000, 16000]}, prefix: {shared_tokens: 2048},
       output_tokens: {uniform: [128, 384]}, limits: {request_latency: 6 s}}
search: {pipeline_parallel: 1, max_num_seqs: 256, disaggregated: true}
"""


def test_pools_hold_the_limits_of_single_classes(run, folder):
    """Each class has times of its own, a limit on a percentile is simulated, and the answer is verified."""
    path = folder / "classes.yaml"
    path.write_text(CLASSES % "500 ms")
    document = json.loads(answered(run, "plan", path, "--format", "json"))
    chat, rag = document["front"][0]["predicted"]["classes"]

    assert document["certificate"]["simulated"] == ["chat.time_to_first_token.p99"]
    assert chat["percentiles"]["time_to_first_token_seconds"]["p99"] <= 0.5
    assert chat["time_per_output_token_seconds"] <= 8e-3
    assert chat["time_to_first_token_seconds"] < rag["time_to_first_token_seconds"]
    assert rag["request_latency_seconds"] <= 6
    assert len(chat["engines"]) == 2
    (folder / "classes.json").write_text(json.dumps(document))
    assert run("verify", str(folder / "classes.json")).exit_code == 0


def test_a_limit_of_a_class_that_pools_break_is_named(run, folder):
    """The nearest value that pools hold is among the changes."""
    path = folder / "classes.yaml"
    path.write_text(CLASSES % "1 ms")
    done = run("plan", str(path), "--format", "json")
    document = json.loads(done.stdout)

    assert done.exit_code == 1
    assert document["conflict"] == ["chat.time_to_first_token"]
    assert any(
        change["key"] == "workload.classes.0.limits.time_to_first_token" for change in document["changes"]
    )


CAPPED = """schema: 1
kind: serving
model: llama3.1-8b
hardware: dgx-h100
devices: 2
stack: sglang@0.5.23
workload: {input_tokens: 4000, output_tokens: 300, concurrency: 16}
search: {disaggregated: true, prefill: {cache_tokens: 16384}, max_num_seqs: 64}
"""
ONE_EACH = "prefill=(tp=1,x=1)/decode=(tp=1,x=1)"


def caches_of(text):
    """Return the GiB of the caches of both pools, the decode pool first."""
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("cache ")]


def test_a_cap_on_the_tokens_of_a_cache_is_priced_written_and_read(run, folder):
    """SGLang's max_total_tokens of one pool bounds its cache alone; a file that has it is priced so."""
    path, script, plain = (folder / name for name in ("capped.yaml", "capped.sh", "plain.yaml"))
    path.write_text(CAPPED)
    plain.write_text(CAPPED.replace("prefill: {cache_tokens: 16384}, ", ""))
    script.write_text(answered(run, "emit", path, "--for", "sglang", "--layout", ONE_EACH))
    assert script.read_text().count("--max-total-tokens 16384") == 1
    decode, prefill = caches_of(answered(run, "evaluate", path, "--layout", ONE_EACH))

    # 16,384 tokens x 131,072 B are 2 GiB; the decode engine has what memory holds.
    assert prefill == 2.0
    assert decode > 40
    assert caches_of(answered(run, "evaluate", plain, "--from", script)) == [decode, prefill]


def test_a_cap_that_an_engine_is_not_told_is_refused(run, folder):
    """A flag of tokens is none of vLLM: the plan is priced, and emit says why it writes nothing."""
    path = folder / "capped.yaml"
    path.write_text(CAPPED.replace("sglang@0.5.23", "vllm@0.24"))
    done = run("emit", str(path), "--for", "vllm", "--layout", ONE_EACH)

    assert done.exit_code == 2
    assert "search.cache_tokens: vLLM is not told" in done.stderr


def test_a_full_engine_keeps_no_more_than_its_cap(run, folder):
    """100,000 tokens of 64 clients that need 267,000: the cache is the first limit, and reached."""
    path = folder / "capped.yaml"
    path.write_text(
        CAPPED.replace("disaggregated: true, prefill: {cache_tokens: 16384}", "cache_tokens: 100000").replace(
            "concurrency: 16", "concurrency: 64"
        )
    )
    predicted = json.loads(answered(run, "evaluate", path, "--layout", "tp=1", "--format", "json"))[
        "predicted"
    ]

    assert predicted["cache_tokens"] == 100_000
    assert predicted["saturated"]
    assert predicted["saturated_by"] == "kv cache"


def test_a_table_of_plans_says_which_engines_prefill(run, folder):
    """On the first screen and in the details alike, one line for each pool."""
    path = folder / "classes.yaml"
    path.write_text(CLASSES % "500 ms")
    for option in ((), ("--details",)):
        table = answered(run, "plan", path, *option)
        assert "1 prefill engine" in table
        assert "1 decode engine" in table
