"""Serving jobs without a plan: each change, made in the file by ``--apply``, has a plan."""

import json

import pytest

HEAD = "schema: 1  # ours\nkind: serving\nmodel: {model}\nhardware: dgx-h100\nstack: vllm@0.24\n"
LOAD = "workload: {input_tokens: 512, output_tokens: 64, concurrency: 16%s}  # as measured\n"
SEARCH = "search: {tensor_parallel: [1, 2], pipeline_parallel: 1, max_num_batched_tokens: 2048%s}\n"
SMALL = HEAD.replace("{model}", "llama3.1-8b") + "devices: 1\n"
#: Jobs with the keys of the changes that have to be among those that help.
JOBS = {
    "limits": (
        SMALL + LOAD % "" + SEARCH % "" + "limits: {time_per_output_token: 1 ms, request_latency: 60 s}\n",
        {"limits.time_per_output_token"},
    ),
    "percentiles": (
        SMALL + LOAD % "" + SEARCH % "" + "limits: {time_to_first_token: {p99: 5 ms}}\n",
        {"limits.time_to_first_token"},
    ),
    "seqs": (
        SMALL + LOAD % "" + SEARCH % ", max_num_seqs: 1" + "limits: {request_latency: 1500 ms}\n",
        {"limits.request_latency", "search.max_num_seqs", "devices"},
    ),
    "context": (
        SMALL.replace("dgx-h100", "2x-rtx4090").replace("0.24", "0.19")
        + LOAD % ", longest_request: 131072"
        + SEARCH % ", max_num_seqs: 16",
        {"workload.longest_request", "devices"},
    ),
    "formats": (
        HEAD.replace("{model}", "llama3.1-70b") + "devices: 1\n" + LOAD % "" + SEARCH % ", max_num_seqs: 16",
        {"precision.weights", "devices"},
    ),
    "a fuller machine": (
        HEAD.replace("{model}", "llama3.1-70b").replace("dgx-h100", "1x-rtx4090").replace("0.24", "0.19")
        + "devices: 1\n"
        + LOAD % ""
        + "search: {max_num_batched_tokens: 2048, max_num_seqs: 16}\n",
        {"hardware"},
    ),
    "one more device": (
        SMALL.replace("devices: 1", "devices: 2")
        + "workload: {input_tokens: 512, output_tokens: 64, request_rate: 200/s}\n"
        + SEARCH % "",
        {"devices"},
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_change_applied_has_a_plan(run, tmp_path, name):
    """The edited file is planned, its comments stay, and the changes that everybody would try are there."""
    text, keys = JOBS[name]
    file, new = tmp_path / "job.yaml", tmp_path / "new.yaml"
    file.write_text(text)
    done = run("plan", file, "--format", "json")
    changes = json.loads(done.stdout)["changes"]

    assert done.exit_code == 1
    assert keys <= {change["key"] for change in changes}
    for number, change in enumerate(changes, start=1):
        written = run("plan", file, "--apply", number, "--output", new)
        assert written.exit_code == 0, written.stderr
        edited = new.read_text()
        assert all(words in edited for words in ("# ours", "# as measured") if words in text)
        again = run("plan", new, "--format", "json")
        assert again.exit_code == 0, (change["key"], change["value"])
        best = json.loads(again.stdout)["front"]
        assert change["plan"]["predicted"]["devices"] >= min(p["predicted"]["devices"] for p in best)


def test_the_fewest_more_devices_are_named(run, tmp_path):
    """One device fewer than the change says has no plan."""
    text, _ = JOBS["one more device"]
    file = tmp_path / "job.yaml"
    file.write_text(text)
    changes = json.loads(run("plan", file, "--format", "json").stdout)["changes"]
    devices = next(int(change["value"]) for change in changes if change["key"] == "devices")
    file.write_text(text.replace("devices: 2", f"devices: {devices - 1}"))

    assert devices > 2
    assert run("plan", file).exit_code == 1


@pytest.mark.parametrize(("number", "said"), [(0, "there is no change 0"), (99, "there is no change 99")])
def test_a_change_that_is_not_there(run, tmp_path, number, said):
    """Exit code 2 with the numbers that there are; nothing is written."""
    file, new = tmp_path / "job.yaml", tmp_path / "new.yaml"
    file.write_text(JOBS["limits"][0])
    done = run("plan", file, "--apply", number, "--output", new)

    assert done.exit_code == 2
    assert said in done.stderr
    assert not new.exists()


def test_a_trace_stays_found_in_another_folder(run, tmp_path):
    """Paths in the job are rewritten for the folder of the new file."""
    rows = "".join(f"{i * 0.1},{200 + i},{20 + i}\n" for i in range(40))
    (tmp_path / "requests.csv").write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    lengths = "{input_tokens: {trace: requests.csv}, output_tokens: {trace: requests.csv}, request_rate: 9/s}"
    file, new = tmp_path / "job.yaml", tmp_path / "below" / "new.yaml"
    file.write_text(
        SMALL + f"workload: {lengths}\n" + SEARCH % "" + "limits: {time_per_output_token: 1 ms}\n"
    )
    new.parent.mkdir()

    assert run("plan", file, "--apply", 1, "--output", new).exit_code == 0
    assert "../requests.csv" in new.read_text()
    assert run("plan", new).exit_code == 0
