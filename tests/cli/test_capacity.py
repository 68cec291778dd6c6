"""``autoplan capacity`` as a user runs it."""

import json

import pytest
import yaml

from autoplan.catalog import entry_names

SHIPPED = entry_names("serving")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_jobs_start(run, name):
    """Every shipped serving job has an engine that starts, in a table and in a document."""
    table = run("capacity", name)
    document = json.loads(run("capacity", name, "--format", "json").stdout)

    assert table.exit_code == 0
    assert "what buys most" in table.stdout
    assert document["fits"] is True
    assert document["requests"][-1]["requests"] >= 1


def test_a_document_holds_every_number_of_the_table(run):
    """Memory by part of each stage, the pool, requests at lengths, knobs and sources."""
    document = yaml.safe_load(run("capacity", "llama3-70b-8x-h100", "-l", "tp=4", "-f", "yaml").stdout)
    stage = document["memory"][0]
    parts = ("weights", "activation", "overhead", "graphs", "reserve", "cache", "free")

    assert document["layout"].startswith("tp=4,pp=1,replicas=2")
    assert sum(stage[f"{part}_bytes"] for part in parts) == pytest.approx(stage["device_bytes"])
    assert [row["tokens"] for row in document["requests"]] == [1024, 8192]
    assert document["pool"]["caches"] == 2
    assert document["knobs"][0]["key"] == "precision.kv_cache"
    assert document["knobs"][0]["more_tokens"] > 0
    assert document["job"]["engine_version"] == "0.24"
    assert document["sources"]


def test_what_does_not_start_says_why_and_what_helps(run, tmp_path):
    """70B in 16 bits on one card: exit code 1, the reason, and changes that each let it start."""
    text = "kind: serving\nmodel: llama3-70b\nhardware: dgx-h100\ndevices: 1\nstack: vllm@0.24\n"
    job = tmp_path / "job.yaml"
    job.write_text(text + "workload: {input_tokens: 1024, output_tokens: 1024}\n", encoding="utf-8")
    done = run("capacity", str(job))
    document = json.loads(run("capacity", str(job), "-f", "json").stdout)

    assert done.exit_code == 1
    assert "does not start: out of memory while loading the weights: 131.4 GiB" in done.stdout
    helpful = {knob["key"]: knob for knob in document["knobs"] if knob["fits"]}
    assert set(helpful) == {"precision.weights", "devices"}
    for knob in document["knobs"]:
        if knob["key"] != "devices":
            continue
        job.write_text(
            text.replace("devices: 1", f"devices: {knob['value']}")
            + "workload: {input_tokens: 1024, output_tokens: 1024}\n",
            encoding="utf-8",
        )
        assert run("capacity", str(job)).exit_code == 0


def test_a_longest_request_that_the_cache_cannot_hold_is_infeasible(run, tmp_path):
    """The answer says how long a request may be."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "kind: serving\nmodel: gpt-oss-120b\nhardware: dgx-h100\ndevices: 1\nstack: vllm@0.24\n"
        "workload: {input_tokens: 130000, output_tokens: 1000}\nprecision: {weights: mxfp4}\n",
        encoding="utf-8",
    )
    done = run("capacity", str(job))

    assert done.exit_code == 1
    assert "a request of 131,072 tokens cannot be admitted" in done.stdout  # the model has no more positions


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("llama3-70b-8x-h100", "-l", "tp=3"), "must divide the 64 query heads"),
        (("llama3-70b-8x-h100", "-l", "tp=16"), "takes 16 devices and the job has 8"),
        (("llama3-70b-8x-h100", "-l", "ep=2,tp=2"), "needs experts"),
        (("llama3-70b-8x-h100", "-l", "kv=fp8_ds_mla"), "a format of latent attention"),
        (("llama3-70b-8x-h100", "-l", "spec=2"), "needs the section"),
        (("llama3-70b-8x-h100", "-l", "prefill=(tp=2)/decode=(tp=4)"), "one pool"),
        (("deepseek-v3-8x-h200", "-l", "tp=8,ep=3"), "does not divide"),
        (("llama3-70b-9x-h100",), "did you mean llama3-70b-8x-h100"),
    ],
)
def test_bad_input_is_refused(run, arguments, said):
    """Exit code 2, one message and no traceback."""
    done = run("capacity", *arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_targets_of_training_say_which_engines_a_serving_job_has(run):
    """A serving job for a framework that trains is refused with the targets that serve."""
    done = run("emit", SHIPPED[0], "--for", "deepspeed")

    assert done.exit_code == 2
    assert "no target of engines is called 'deepspeed': known are vllm, sglang" in done.stderr


def test_commands_for_training_say_what_a_serving_job_needs(run, tmp_path):
    """A serving job by name or in a file is refused with the command that takes it."""
    job = tmp_path / "job.yaml"
    job.write_text("kind: serving\nmodel: llama3-8b\n", encoding="utf-8")
    for reference in (SHIPPED[0], str(job)):
        done = run("diagnose", reference, "--layout", "tp=2", "--trace", "trace.json")

        assert done.exit_code == 2
        assert f"autoplan plan {reference}" in done.stderr


def test_a_capacity_cannot_be_asked_of_a_training_job(run):
    """The message names the key that says so."""
    done = run("capacity", "specs/jobs/llama3-8b-8x-a100.yaml")

    assert done.exit_code == 2
    assert "$.kind: a training job has no engines: `autoplan plan specs/jobs/" in done.stderr


def test_without_a_layout_it_is_what_people_run(run):
    """The least tensor parallelism with room for the clients; what holds most is named beside it."""
    document = json.loads(run("capacity", "llama3-70b-8x-h100", "--format", "json").stdout)
    widest = [x for x in document["other_layouts"] if "weights=bf16,kv=auto" in x["layout"]]
    most = max(widest, key=lambda other: other["tokens"])
    two = json.loads(run("capacity", "llama3-70b-8x-h100", "-l", "tp=2", "--format", "json").stdout)

    assert document["layout"].startswith("tp=4,pp=1,replicas=2,")
    assert two["fits"]
    assert two["tokens"] < 64 * 2048 <= document["tokens"] < document["most_tokens"]["tokens"]
    assert document["most_tokens"]["tokens"] >= 0.98 * most["tokens"]
    assert "most     1," in run("capacity", "llama3-70b-8x-h100").stdout


def test_a_narrower_format_is_tried_before_more_devices(run):
    """70 B parameters on two cards of 24 GB start in four bits: that is said before eight cards are.

    A plan says of eight cards in one machine before those of several.
    """
    job = ("--model", "llama3.1-70b", "--hardware", "2x-rtx4090", "--task", "serve", "--format", "json")
    knobs = json.loads(run("capacity", *job).stdout)["knobs"]
    changes = json.loads(run("plan", *job).stdout)["changes"]

    for told, more in ((knobs, ["hardware"]), (changes, ["hardware", "hardware", "devices"])):
        assert [change["key"] for change in told] == ["precision.weights", *more]
        assert told[0]["value"] == "int4-awq"
    assert knobs[0]["fits"]
    assert changes[0]["plan"]["predicted"]["fits"]


def test_a_format_that_holds_every_client_comes_before_one_that_makes_them_wait(run):
    """14 B parameters on 24 GB: fp8 leaves room for half of 32 clients, four bits for all of them."""
    job = ("--model", "phi4", "--hardware", "1x-a10g", "--task", "serve")
    document = json.loads(run("plan", *job, "--format", "json").stdout)
    formats = [x for x in document["changes"] if x["key"] == "precision.weights"]
    screen = run("plan", *job).stdout

    assert [x["value"] for x in formats] == ["int4-awq", "fp8"]
    assert screen.rstrip().splitlines()[-1].endswith("--task serve --apply 1 > new.yaml")
