"""Serve commands by engine and version: what is emitted, what is refused, and what is read."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import autoplan
from autoplan.answers.configure.engine_launches import (
    emit_engines,
    engine_file,
    evaluate_engine_file,
    read_engine_file,
    saved_engines,
    serving_job_text,
)
from autoplan.catalog import load_serving_job
from autoplan.catalog.entries import engine
from autoplan.catalog.relatives import engine_kernels_for, kernels_for
from autoplan.catalog.serving_jobs import serving_job_of_text
from autoplan.costs.serving.engine_capacity import predict_capacity
from autoplan.costs.serving.engine_scope import EngineScope
from autoplan.costs.serving.iteration.iteration_of_engine import engine_iteration
from autoplan.errors import AutoplanError, LayoutError, SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.engines.arguments.engine_settings import argument_list
from autoplan.launch.engines.engine_reading import read_engines
from autoplan.launch.engines.served_run import EngineFile
from autoplan.planning.serving_plans import evaluate_serving
from autoplan.report.serving.serving_document import serving_front_document
from autoplan.schema.serving.engine_layout import DisaggregatedLayout, EngineLayout, parse_serving_layout
from autoplan.schema.serving.serving_spec import ServingSpec
from autoplan.schema.yaml.loader import load_model

LLAMA = load_serving_job("llama3-70b-8x-h100")
DEEPSEEK = load_serving_job("deepseek-v3-8x-h200")
IMAGE = "registry/engine:tag"


def at(job, reference):
    """Return ``job`` with another engine."""
    return replace(job, engine=engine(reference, Path()))


def emitted(job, layout, target=None, **options):
    """Return what is emitted for a layout, without its price."""
    pools = parse_serving_layout(layout)
    if isinstance(pools, DisaggregatedLayout):
        return emit_engines(job, pools, target or job.engine.name, **options)
    job, plan = evaluate_serving(job, layout)
    return emit_engines(job, plan, target or job.engine.name, **options)


def words(emission):
    """Return the words of a script."""
    return shlex.split(emission.files[0].text.replace("\\\n", " "), comments=True)


def read(text, framework=None, name="serve.sh"):
    """Return what a text says."""
    return read_engines(EngineFile(LaunchFile(name, text)), framework)


def test_the_header_has_prediction_version_and_command():
    """Times, throughput, memory, version and command are in a comment."""
    text = emitted(LLAMA, "tp=4,replicas=2,weights=fp8", command="autoplan emit x").files[0].text
    header = [line for line in text.splitlines() if line.startswith("# ")]

    assert "time to first token" in header[1]
    assert "time per output token" in header[1]
    assert "output tokens/s" in header[1]
    assert "GiB per device" in header[1]
    assert header[2] == "# requests of up to 8,192 tokens are admitted, the longest of the job"
    assert header[3] == "# for vLLM 0.24 (names checked against the wheel of 0.24.0)"
    assert header[4].endswith(": autoplan emit x")


def test_each_replica_has_devices_and_a_port_of_its_own():
    """Two engines of four devices are two commands, in the background, that the script waits for."""
    text = emitted(LLAMA, "tp=4,replicas=2,weights=fp8").files[0].text

    assert "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve" in text
    assert "CUDA_VISIBLE_DEVICES=4,5,6,7 vllm serve" in text
    assert text.count("--port 8000 &") == text.count("--port 8001 &") == 1
    assert text.rstrip().endswith("wait")


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.5.20", ["--dp-size", "8", "--enable-dp-attention"]),
        ("0.5.23", ["--attn-dp-size", "8"]),
    ],
)
def test_attention_groups_follow_the_version_of_sglang(version, flags):
    """The same layout has the flags of its version; sizes of a step count all groups."""
    given = words(emitted(at(DEEPSEEK, f"sglang@{version}"), "adp=8,ep=8,seqs=32,tokens=4096"))

    start = given.index(flags[0])
    assert given[start : start + len(flags)] == flags
    assert given[given.index("--max-running-requests") + 1] == "256"
    assert given[given.index("--chunked-prefill-size") + 1] == "32768"


def test_an_engine_on_two_nodes_is_started_on_each():
    """Rank and address are variables of the shell, in double quotes."""
    job = replace(DEEPSEEK, cluster=replace(DEEPSEEK.cluster, devices=16))
    emission = emitted(at(job, "sglang@0.5.23"), "tp=16,ep=16")

    assert '--node-rank "$NODE_RANK"' in emission.files[0].text
    assert "--nnodes 2" in emission.files[0].text
    assert "on each of the 2 nodes" in emission.notes[0]
    assert "CUDA_VISIBLE_DEVICES" not in emission.files[0].text


def test_options_of_tensorrt_llm_are_a_file_beside_the_script(tmp_path):
    """What its command has no flag for is in the file that the command names, and is read from there."""
    job = at(replace(DEEPSEEK, engine=LLAMA.engine), "tensorrt-llm@1.2")
    emission = emitted(job, "adp=8,ep=8,kv=fp8,seqs=64")
    for file in emission.files:
        (tmp_path / file.name).write_text(file.text, encoding="utf-8")
    document = yaml.safe_load(emission.files[1].text)

    assert document["enable_attention_dp"] is True
    assert document["kv_cache_config"]["dtype"] == "fp8"
    configuration = read_engine_file(engine_file(tmp_path / emission.files[0].name))
    assert configuration.layout == parse_serving_layout("adp=8,ep=8,kv=fp8,seqs=64,weights=fp8-block")


@pytest.mark.parametrize(
    ("reference", "layout", "part", "nearest"),
    [
        ("vllm@0.24", "tp=8,ep=4", "all 8 devices of a stage", "ep=8"),
        ("vllm@0.11", "tp=8,kv=fp8_ds_mla", "kv=fp8_ds_mla", "kv=auto"),
        ("sglang@0.5.12", "tp=8,dcp=2", "decode context parallelism", "tp=8"),
        ("tensorrt-llm@1.1", "tp=2,adp=4,ep=8", "data-parallel attention is on every device", "tp=1"),
        ("tensorrt-llm@1.1", "tp=8,kv=bf16", "kv=bf16", "kv=auto"),
    ],
)
def test_what_cannot_be_expressed_names_the_part_and_the_nearest(reference, layout, part, nearest):
    """Nothing is dropped: the error has the part, and a layout that the engine takes."""
    with pytest.raises(UnsupportedError) as caught:
        emitted(at(DEEPSEEK, reference), layout)

    said = str(caught.value)
    assert part in said
    assert nearest in said.split("The nearest layout that it can: ")[1]


@pytest.mark.parametrize(
    ("job", "target", "options", "said"),
    [
        (LLAMA, "sglang", {}, "the engine of the job is vllm@0.24, not SGLang"),
        (LLAMA, "vlm", {}, "did you mean 'vllm'?"),
        (LLAMA, "kubernetes", {}, "give --image"),
        (at(DEEPSEEK, "sglang@0.5.8"), "llm-d", {"image": IMAGE}, "emit it for sglang, kubernetes, dynamo"),
        (at(LLAMA, "tensorrt-llm@0.20"), "tensorrt-llm", {}, "known versions are 1.0, 1.1, 1.2"),
        (at(LLAMA, "lmdeploy@0.2"), "vllm", {}, "it cannot be emitted"),
    ],
)
def test_targets_that_do_not_fit_are_refused(job, target, options, said):
    """An engine, a version or an image that is missing is named with what is known."""
    with pytest.raises(UnsupportedError, match=r".") as caught:
        emitted(job, "tp=8", target, **options)

    assert said in str(caught.value)


def test_quantized_weights_need_a_checkpoint():
    """AWQ is not made while loading; a checkpoint whose name says another format is refused."""
    with pytest.raises(UnsupportedError, match="name one with --checkpoint"):
        emitted(LLAMA, "tp=4,weights=int4-awq")
    with pytest.raises(UnsupportedError, match="says nvfp4"):
        emitted(LLAMA, "tp=4,weights=int4-awq", checkpoint="org/Meta-Llama-3-70B-NVFP4")

    assert "--quantization" not in words(
        emitted(LLAMA, "tp=4,weights=int4-awq", checkpoint="org/Meta-Llama-3-70B-AWQ")
    )


def test_texts_of_users_are_quoted():
    """A checkpoint with signs of the shell stays one word, and is read back."""
    name = "folder/it's; rm -rf $HOME `id`-fp8"
    emission = emitted(LLAMA, "tp=4,weights=fp8", checkpoint=name)

    assert name in words(emission)
    assert read(emission.files[0].text).checkpoint == name


@pytest.mark.parametrize("reference", ["vllm@0.33", "sglang@0.5.23"])
def test_pools_are_read_back(reference):
    """Engines that prefill and engines that decode keep their roles."""
    layout = "prefill=(tp=2,x=2,weights=fp8-block)/decode=(adp=4,ep=4,x=1,weights=fp8-block,seqs=64)"
    emission = emitted(at(DEEPSEEK, reference), layout)

    assert read(emission.files[0].text).layout == parse_serving_layout(layout)
    assert "router" in emission.notes[0]


def test_pools_beyond_the_devices_are_refused():
    """Pools keep the rules of model and job, as one layout does."""
    with pytest.raises(LayoutError, match="the pools take 12 devices and the job has 8"):
        emitted(at(DEEPSEEK, "vllm@0.33"), "prefill=(tp=4,x=1)/decode=(tp=8,x=1)")
    with pytest.raises(LayoutError, match="must divide the 128 query heads"):
        emitted(at(DEEPSEEK, "vllm@0.33"), "prefill=(tp=3,x=1)/decode=(tp=4,x=1)")


def flags_of(arguments):
    """Return the flags among arguments of a container."""
    return {word for word in arguments if word.startswith("--")}


@pytest.mark.parametrize("target", ["kubernetes", "dynamo", "llm-d"])
def test_manifests_have_the_flags_of_the_version_and_all_replicas(target):
    """Containers get flags of the engine's list, the devices of an engine, and as many replicas."""
    text = emitted(LLAMA, "tp=4,replicas=2,weights=fp8", target, image=IMAGE).files[0].text
    first = next(yaml.safe_load_all(text))
    if target == "kubernetes":
        group, pod = first["spec"], first["spec"]["template"]["spec"]
    elif target == "dynamo":
        group = first["spec"]["components"][1]
        pod = group["podTemplate"]["spec"]
    else:
        group = pod = first["decode"]
    container = pod["containers"][0]

    assert group["replicas"] == 2
    assert container["image"] == IMAGE
    assert flags_of(container["args"]) <= set(argument_list("vllm", "0.24").arguments)
    if target == "llm-d":
        assert group["parallelism"] == {"tensor": 4, "data": 1, "dataLocal": 1}
        assert "--tensor-parallel-size" not in container["args"]
    else:
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == "4"
        assert container["args"][container["args"].index("--tensor-parallel-size") + 1] == "4"


BROKEN = {
    "one letter off": ("vllm serve m/x --tensor-paralel-size 2", "did you mean --tensor-parallel-size?"),
    "unknown argument": ("vllm serve m/x --frobnicate-quickly 2", "has no such argument"),
    "no number": ("vllm serve m/x --max-num-seqs many", "'many' is not an integer"),
    "negative": ("vllm serve m/x --tensor-parallel-size -2", "is not an integer of at least 1"),
    "missing value": ("vllm serve m/x --max-num-seqs --port 8000", "its value is missing"),
    "unknown choice": ("vllm serve m/x --kv-cache-dtype fp9", "'fp9' is none of auto"),
    "share of memory": ("vllm serve m/x --gpu-memory-utilization 1.4", "more than 0 and at most 1"),
    "no JSON": ("vllm serve m/x --speculative-config '{method: ngram}'", "is not a JSON object"),
    "no drafts": ("""vllm serve m/x --speculative-config '{"method": "ngram"}'""", "num_speculative_tokens"),
    "fewer tokens than requests": (
        "vllm serve m/x --max-num-seqs 512 --max-num-batched-tokens 256",
        "tokens=256 is less than seqs=512",
    ),
    "experts of a dense model": (
        "vllm serve meta-llama/Llama-3.1-8B -tp 2 --enable-expert-parallel",
        "llama3.1-8b has no experts",
    ),
    "groups that do not divide": (
        "python -m sglang.launch_server --model-path m/x --tp-size 4 --dp-size 3 --enable-dp-attention",
        "3 attention data-parallel ranks do not divide 4",
    ),
    "experts that do not divide": ("trtllm-serve m/x --tp_size 8 --ep_size 3", "ep=3 does not divide the 8"),
    "dashes for underscores": ("trtllm-serve m/x --tp-size 8", "did you mean --tp_size?"),
    "unknown variable": ("vllm serve m/x -tp $TP", "give --set TP=VALUE"),
    "engines that differ": ("vllm serve m/x -tp 2 &\nvllm serve m/x -tp 4 &", "engines differ"),
    "two engines": ("vllm serve m/x &\ntrtllm-serve m/x &", "name one with --framework"),
    "no command": ("echo vllm serve m/x", "there is no serve command"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_commands_are_refused(name):
    """Each is an error with file, line and what is wrong."""
    text, said = BROKEN[name]
    with pytest.raises(SpecError) as caught:
        read(f"#!/bin/sh\n{text}\n")

    assert said in str(caught.value)
    assert "serve.sh" in str(caught.value)
    assert name in {"no command", "engines that differ", "two engines"} or "serve.sh:2:" in str(caught.value)


BROKEN_OPTIONS = {
    "key one letter off": ("tensor-paralel-size: 2\nmax-num-seqs: 8\nkv-cache-dtype: fp8\n", "vllm"),
    "value of another kind": ("max-num-seqs: many\nkv-cache-dtype: fp8\n", "vllm"),
    "key of TensorRT-LLM": ("kv_cache_confg: {dtype: fp8}\nenable_attention_dp: true\n", "tensorrt-llm"),
    "no mapping": ("- 1\n", "vllm"),
}


@pytest.mark.parametrize("name", BROKEN_OPTIONS)
def test_broken_files_of_options_are_refused(name):
    """A key that is almost a known one, or a value that is none, has its line."""
    text, framework = BROKEN_OPTIONS[name]
    with pytest.raises(SpecError, match=r"options\.yaml"):
        read(text, framework, "options.yaml")


def test_versions_are_those_that_a_file_says():
    """An image, a package or the user names the version; one near none is refused with the known ones."""
    run = "docker run vllm/vllm-openai:v0.11.2 --model m/x -tp 2"

    assert read(run).engine == "vllm@0.11"
    assert read("vllm serve m/x", "vllm@0.19").engine == "vllm@0.19"
    with pytest.raises(
        UnsupportedError, match=r"vllm 0\.99 are not listed: known versions are 0\.4, 0\.7, 0\.11"
    ):
        read("vllm serve m/x", "vllm@0.99")
    with pytest.raises(UnsupportedError, match="known versions are"):
        read("docker run vllm/vllm-openai:v0.60.0 --model m/x")
    near = read("docker run vllm/vllm-openai:v0.6.3 --model m/x -tp 2")
    assert near.engine == "vllm-v0@0.7"
    assert any("0.6.3 are not listed: read with those of 0.7" in warning for warning in near.warnings)


def test_a_back_end_of_sglang_decides_how_experts_are_split():
    """DeepEP splits experts over all devices of a stage, of which attention has groups."""
    command = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3"
    text = f"{command} --tp 8 --dp 8 --enable-dp-attention"

    assert read(text).layout == parse_serving_layout("adp=8,weights=fp8-block")
    assert read(f"{text} --moe-a2a-backend deepep").layout == parse_serving_layout(
        "adp=8,ep=8,weights=fp8-block"
    )


def test_the_command_line_takes_precedence_over_its_file(tmp_path):
    """What both have is the command's; the rest of the file counts."""
    (tmp_path / "own.yaml").write_text("tensor-parallel-size: 4\nmax-num-seqs: 64\n", encoding="utf-8")
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m/x --config own.yaml --tensor-parallel-size 2\n", encoding="utf-8")

    assert read_engine_file(engine_file(script)).layout == parse_serving_layout("tp=2,seqs=64")


def test_what_is_read_is_a_job_file_with_the_hardware_added():
    """The job of a command loads once hardware and lengths are there."""
    text = serving_job_text(read("vllm serve meta-llama/Llama-3.1-8B -tp 2 --gpu-memory-utilization 0.8"))
    added = "hardware: dgx-h100\nworkload: {input_tokens: 8, output_tokens: 8}\n"
    spec = load_model(text + added, ServingSpec, name="job.yaml")

    assert (spec.model, spec.stack, spec.devices) == ("llama3.1-8b", "vllm@0.33", 2)
    assert spec.search.gpu_memory_utilization == pytest.approx(0.8)


def test_a_command_is_priced_for_a_job():
    """Layout and share of memory are the file's; model and version the job's, and differences are said."""
    text = "vllm serve meta-llama/Llama-3.1-70B -tp 8 --max-model-len 4096 --gpu-memory-utilization 0.8\n"
    answer = evaluate_engine_file(LLAMA, LaunchFile("serve.sh", text))

    assert answer.plan.layout_string.startswith("tp=8")
    assert answer.job.search.gpu_memory_utilization == pytest.approx(0.8)
    assert answer.configuration.engine == "vllm@0.24"
    assert any("llama3.1-70b" in said for said in answer.differences)
    assert any("4,096" in said for said in answer.differences)
    with pytest.raises(AutoplanError, match="the job's engine is sglang"):
        evaluate_engine_file(DEEPSEEK, LaunchFile("serve.sh", text))


OLD = """kind: serving
model: llama3.1-8b
hardware: dgx-h100
devices: 2
stack: vllm-v0@{version}
workload: {{input_tokens: 1024, output_tokens: 512, concurrency: 16, longest_request: 4096}}
precision: {{weights: [bf16, fp8]}}
speculation: {{method: ngram, tokens: [0, 3], acceptance: 0.7}}
"""


def old_job(version):
    """Return a job of vLLM before 0.8."""
    return serving_job_of_text(OLD.format(version=version), "job.yaml", name="x", base=Path())


@pytest.mark.parametrize(
    ("version", "layout"),
    [("0.4", "tp=2,seqs=64,tokens=8192"), ("0.7", "tp=1,pp=2,weights=fp8,seqs=16,tokens=4096,spec=3")],
)
def test_engines_of_old_versions_are_emitted_and_read_back(version, layout):
    """Their server is a module, and what they say is read as of their version."""
    emission = emitted(old_job(version), layout, "vllm")
    script = words(emission)
    configuration = read(emission.files[0].text)

    assert script[script.index("-m") + 1] == "vllm.entrypoints.openai.api_server"
    assert configuration.engine == f"vllm-v0@{version}"
    assert configuration.layout == parse_serving_layout(layout)
    assert ("--enable-chunked-prefill" in script) == (version == "0.7")


@pytest.mark.parametrize(
    ("version", "layout", "part"),
    [
        ("0.4", "tp=1,pp=2", "pipeline stages"),
        ("0.4", "tp=2,weights=fp8", "takes awq, gptq, squeezellm"),
        ("0.4", "tp=2,spec=3", "has no --speculative-model"),
        ("0.7", "tp=2,tokens=2048,seqs=16", "in one piece, the longest of 4,096 tokens.*tokens=4096"),
    ],
)
def test_old_versions_refuse_what_they_lack(version, layout, part):
    """By their lists of arguments, and by what their engines check at the start."""
    with pytest.raises(UnsupportedError, match=part):
        emitted(old_job(version), layout, "vllm")


def test_arguments_of_an_old_version_alone_decide_the_version():
    """A script that says no version is of the newest one that has its arguments."""
    serve = "vllm serve meta-llama/Llama-3.1-8B -tp 2"
    old = read(f"{serve} --speculative-model '[ngram]' --num-speculative-tokens 4")

    assert (old.engine, old.layout.spec) == ("vllm-v0@0.7", 4)
    assert read(f"# pip install vllm==0.4.2\n{serve}").engine == "vllm-v0@0.4"
    near = read(f"# vllm==0.5.4\n{serve}")
    assert near.engine == "vllm-v0@0.4"
    assert any("0.5.4 are not listed: read with those of 0.4" in warning for warning in near.warnings)


def test_python_emits_and_reads_engines_as_the_command_line_does(tmp_path):
    """``autoplan.emit`` and ``autoplan.read`` take answers and scripts of both kinds."""
    job, plan = evaluate_serving(LLAMA, "tp=4,replicas=2,weights=fp8")
    emission = autoplan.emit(plan, "vllm", job=job)
    script = tmp_path / "serve.sh"
    script.write_text("vllm serve m/x -tp 4\n", encoding="utf-8")

    assert emission == emit_engines(job, plan, "vllm", command='autoplan.emit(plan, "vllm")')
    assert autoplan.read(script, "vllm@0.24").layout.tp == 4
    script.write_text("vllm serve m/x -tp 4 \0\n", encoding="utf-8")
    with pytest.raises(SpecError, match="no text"):
        autoplan.read(script)
    with pytest.raises(UnsupportedError, match="with its job"):
        autoplan.emit(plan, "vllm")
    with pytest.raises(UnsupportedError, match="no training program"):
        autoplan.emit(plan, "vllm", job=job, program=["train.py"])
    with pytest.raises(UnsupportedError, match="one of serving"):
        autoplan.emit(plan, "vllm", job=autoplan.load_job("llama3-8b-8x-a100"))


def test_a_saved_answer_is_emitted(tmp_path):
    """The file has its job, so that it is emitted where the job's file is not."""
    front = autoplan.plan(autoplan.load_serving_job("llama3.1-8b-1x-h100"))
    saved = tmp_path / "answer.json"
    saved.write_text(json.dumps(serving_front_document(front)), encoding="utf-8")
    job, plan = saved_engines(saved, 1)

    assert autoplan.emit(plan, "vllm", job=job) == autoplan.emit(front, "vllm")
    with pytest.raises(UnsupportedError, match=rf"no plan 99 in .*: plans are 1 to {len(front.plans)}"):
        saved_engines(saved, 99)


def read_serve(text, name="serve.sh", beside=None):
    """Return what a text says as a launch file of an engine, with the texts of files beside it."""
    return read_engines(EngineFile(LaunchFile(name, text), (beside or {}).get))


def test_an_engine_gets_no_more_devices_than_it_is_shown():
    """Degrees of more devices than CUDA_VISIBLE_DEVICES shows are refused with both."""
    text = "CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve Qwen/Qwen2.5-72B-Instruct -tp 4 -pp {}\n"
    assert read_serve(text.format(1)).layout.devices == 4
    with pytest.raises(SpecError, match=r"serve\.sh:1: .*8 devices .*CUDA_VISIBLE_DEVICES shows 4"):
        read_serve(text.format(2))


def test_what_a_missing_file_of_options_decides_stays_open():
    """TensorRT-LLM has attention data parallelism in its file of options alone."""
    text = "trtllm-serve m --backend pytorch --tp_size 8 --extra_llm_api_options options.yaml\n"
    found = read_serve(text)
    assert {"ep", "adp"} <= set(found.unspecified)
    assert "tp" not in found.unspecified
    whole = read_serve(text, beside={"options.yaml": "enable_attention_dp: true\n"})
    assert whole.layout.adp == 8
    assert "adp" not in whole.unspecified


def test_the_module_of_vllms_commands_serves():
    """The module behind the program ``vllm`` is read like it."""
    text = "python -m vllm.entrypoints.cli.main serve Qwen/Qwen3-32B --tensor-parallel-size 8\n"
    assert (read_serve(text).layout.tp, read_serve(text).job["model"]) == (8, "qwen3-32b")


def test_pods_with_numbers_are_nodes_of_one_engine():
    """Replicas of a StatefulSet are the nodes of engines; an earlier switch leaves experts open."""
    text = """apiVersion: apps/v1
kind: StatefulSet
spec:
  replicas: 4
  template:
    spec:
      containers:
      - image: lmsysorg/sglang:latest
        command: [/bin/bash, -c]
        args:
        - python3 -m sglang.launch_server --model-path m --tp 16 --nnodes 2 --node-rank $RANK --enable-ep-moe
        resources: {limits: {nvidia.com/gpu: 8}}
"""
    found = read_serve(text, "engines.yaml")
    assert (found.layout.replicas, found.layout.devices) == (2, 32)
    assert "ep" in found.unspecified


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cpu-offload-gb 10", "not priced: --cpu-offload-gb 10 (weights in host memory)"),
        ("--cpu-offload-gb 0", None),
        ("--dtype float32", "not priced: --dtype float32 (weights of 4 bytes)"),
        ("--no-async-scheduling", "not priced: --no-async-scheduling (the host's part beside the device)"),
        ("--async-scheduling", None),
    ],
)
def test_arguments_that_nothing_is_priced_for_are_said(words, said):
    """What an argument turns off, or leaves as it is by default, is no note."""
    warnings = read(f"vllm serve meta-llama/Llama-3.1-8B {words}").warnings
    assert [warning for warning in warnings if warning.startswith("not priced")] == ([said] if said else [])


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve meta-llama/Llama-3.1-8B --enforce-eager",
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B --disable-cuda-graph",
    ],
)
def test_an_engine_without_graphs_is_priced_so(command):
    """One decode of 8B on an H100 waits for its launches: 288 kernels of 58.4 us are 16.8 ms, of 6 ms."""
    assert read(command).search == {"enforce_eager": True}
    job = at(load_serving_job("llama3.1-8b-1x-h100"), "sglang" if "sglang" in command else "vllm")
    eager = replace(job, search=job.search.model_copy(update={"enforce_eager": True}))
    device = "h100-sxm5-80gb"
    captured, launched = (
        engine_iteration(EngineScope(x, EngineLayout()), kernels_for(device), engine_kernels_for(device))
        for x in (job, eager)
    )
    assert captured.seconds(1, 1024) < 9e-3
    assert launched.seconds(1, 1024) == pytest.approx(288 * 58.4e-6, rel=0.1)
    assert predict_capacity(EngineScope(eager, EngineLayout())).pool.tokens >= (
        predict_capacity(EngineScope(job, EngineLayout())).pool.tokens
    )
