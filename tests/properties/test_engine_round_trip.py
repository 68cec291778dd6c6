"""Engines emitted for a version and read back are the same layout, with flags that this version has."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autoplan.catalog import load_serving_job
from autoplan.catalog.entries import engine, model
from autoplan.errors import AutoplanError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.engines.arguments.engine_settings import (
    InexpressibleEngineError,
    argument_list,
    listed_versions,
)
from autoplan.launch.engines.engine_reading import read_engines
from autoplan.launch.engines.engine_targets import engine_target
from autoplan.launch.engines.served_run import EngineFile, EngineGroupToServe, ServedRun
from autoplan.schema.serving.engine_layout import EngineLayout
from autoplan.schema.serving.serving_choices import SpeculationSpec

JOB = load_serving_job("llama3-70b-8x-h100")
ENGINES = [
    (name, version) for name in ("vllm", "sglang", "tensorrt-llm") for version in listed_versions(name)
]
#: Models with the checkpoints of formats that engines do not make while loading.
MODELS = {
    "llama3-70b": "org/Meta-Llama-3-70B",
    "deepseek-v3": "org/DeepSeek-V3",
    "qwen3-30b-a3b": "org/Qwen3-30B-A3B",
}
OF_NAME = {name: model(name, Path()) for name in MODELS}
OF_VERSION = {key: engine("@".join(key), Path()) for key in ENGINES}
SUFFIXES = {
    "bf16": None,
    "fp16": None,
    "fp8": "FP8",
    "fp8-block": "FP8-block",
    "int8": "quantized.w8a8",
    "int4-awq": "AWQ",
    "int4-gptq": "GPTQ",
    "nvfp4": "NVFP4",
    "mxfp4": "MXFP4",
}


@st.composite
def runs(draw):
    """Return engines of a random version and layout, and a checkpoint in the format of their weights."""
    name, version = draw(st.sampled_from(ENGINES))
    of_model = OF_NAME[draw(st.sampled_from(sorted(MODELS)))]
    tp, pp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 1, 2]))
    adp = draw(st.sampled_from([1, 1, 2, 4, 8])) if of_model.moe else 1
    assume(tp * pp * adp <= 8)
    group = tp * adp
    ep = draw(st.sampled_from([n for n in (1, 2, 4, 8) if group % n == 0])) if of_model.moe else 1
    weights = draw(st.sampled_from(sorted(SUFFIXES)))
    spec = draw(st.sampled_from([0, 0, 1, 3]))
    seqs, tokens = draw(st.sampled_from([0, 1, 48, 256])), draw(st.sampled_from([0, 512, 8192]))
    layout = EngineLayout(
        tp=tp,
        pp=pp,
        adp=adp,
        ep=ep,
        dcp=draw(st.sampled_from([n for n in (1, 1, 1, 2) if tp % n == 0])),
        replicas=draw(st.integers(1, 8 // (tp * pp * adp))),
        weights=weights,
        kv=draw(st.sampled_from(["auto", "auto", "bf16", "fp16", "fp8", "fp8_ds_mla"])),
        seqs=seqs,
        tokens=tokens,
        spec=spec,
    )
    method = draw(st.sampled_from(["ngram", "mtp", "eagle3", "draft_model"])) if spec else None
    drafts = "org/draft" if method == "draft_model" else None
    search = JOB.search.model_copy(
        update={
            "gpu_memory_utilization": draw(st.sampled_from([None, 0.85])),
            "block_tokens": draw(st.sampled_from([None, 32, 64])),
            "enforce_eager": draw(st.booleans()),
        }
    )
    job = replace(
        JOB,
        model=of_model,
        engine=OF_VERSION[name, version],
        search=search,
        speculation=SpeculationSpec(method=method, tokens=(spec,), acceptance=0.7, draft_model=drafts)
        if method
        else None,
    )
    made = of_model.name != "deepseek-v3" and weights == "fp8"
    plain = SUFFIXES[weights] is None and of_model.name != "deepseek-v3"
    suffix = SUFFIXES[weights] or "BF16"
    checkpoint = None if plain or (made and draw(st.booleans())) else f"{MODELS[of_model.name]}-{suffix}"
    return ServedRun(
        job, (EngineGroupToServe(layout),), ("a header",), checkpoint, draft_checkpoint="org/heads"
    )


def read_back(run, emission):
    """Return what is read of an emission, as the version that it is for."""
    files = {file.name: file.text for file in emission.files}
    script = LaunchFile(emission.files[0].name, emission.files[0].text)
    return read_engines(EngineFile(script, files.get), str(run.job.engine))


@given(runs())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_is_emitted_is_read_back(run):
    """Layout, longest request, share of memory, block and drafts are the same; else a part is named."""
    layout, job = run.groups[0].layout, run.job
    try:
        emission = engine_target(job.engine.name).emit(run)
    except InexpressibleEngineError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.part
        assert layout not in refused.nearest
        return
    read = read_back(run, emission)

    assert read.layout == layout
    assert read.engine == str(job.engine)
    assert read.job["workload"]["longest_request"] == job.longest_request
    for key in ("gpu_memory_utilization", "block_tokens"):
        wanted = getattr(job.search, key)
        assert wanted is None or read.search[key] == wanted
    assert read.search.get("enforce_eager", False) is job.search.enforce_eager
    if layout.spec:
        assert read.job["speculation"] == {"method": job.speculation.method, "tokens": layout.spec}


@pytest.mark.parametrize("target", ["kubernetes", "dynamo", "llm-d"])
@given(run=runs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_manifest_is_read_back(target, run):
    """Engines in containers have the layout of their plan: degrees, copies, formats and sizes."""
    layout, job = run.groups[0].layout, run.job
    assume(job.engine.name in engine_target(target).engines)
    try:
        emission = engine_target(target).emit(replace(run, image="registry/engine:1"))
    except UnsupportedError:
        assume(False)
    read = read_back(run, emission)

    assert read.layout == layout
    assert read.job["workload"]["longest_request"] == job.longest_request


@given(runs())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_every_flag_is_in_the_list_of_its_version(run):
    """No flag is emitted that the version lacks, and every value is one of its choices."""
    try:
        emission = engine_target(run.job.engine.name).emit(run)
    except UnsupportedError:
        return
    known = argument_list(run.job.engine.name, run.job.engine.version)
    words = shlex.split(emission.files[0].text, comments=True)
    for at, word in enumerate(words):
        if word.startswith("--"):
            argument = known.arguments[word]
            if argument.choices and not argument.switch:
                assert words[at + 1] in map(str, argument.choices)


@pytest.mark.parametrize(("name", "version"), ENGINES)
def test_every_version_starts_a_plain_engine(name, version):
    """Every listed version has the flags of a plain layout, and is known to the cost model."""
    job = replace(JOB, engine=engine(f"{name}@{version}", Path()))
    layout = EngineLayout(tp=4, replicas=2, seqs=64, tokens=2048)
    run = ServedRun(job, (EngineGroupToServe(layout),))
    emission = engine_target(name).emit(run)

    assert read_back(run, emission).layout == layout


FLAGS = sorted({flag for name, version in ENGINES for flag in argument_list(name, version).arguments})
WORDS = st.one_of(
    st.sampled_from(FLAGS),
    st.sampled_from(
        ["8", "-1", "0.5", "8k", "1e9", "auto", "{}", '{"a": 1}', "[", "x/y", "$TP", "--", "-", "=", "\\"]
    ),
    st.text(max_size=8),
)


@given(
    st.sampled_from(
        ["vllm serve", "python -m sglang.launch_server", "trtllm-serve", "docker run vllm/vllm-openai"]
    ),
    st.lists(st.tuples(WORDS, st.booleans()), max_size=8),
)
@settings(max_examples=60, deadline=None)
def test_any_words_are_read_or_refused(program, words):
    """Whatever follows a program, the answer is a layout or an error of the file."""
    given_words = " ".join(shlex.quote(word) if quoted else word for word, quoted in words)
    file = LaunchFile("serve.sh", f"{program} {given_words}\n")
    try:
        read = read_engines(EngineFile(file))
    except AutoplanError:
        return
    assert read.layout.devices >= 1


@given(
    st.sampled_from(["vllm", "sglang", "tensorrt-llm"]),
    st.dictionaries(
        st.one_of(st.sampled_from([flag.strip("-") for flag in FLAGS]), st.sampled_from(["kv_cache_config"])),
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=5,
        ),
        max_size=5,
    ),
)
@settings(max_examples=60, deadline=None)
def test_any_options_are_read_or_refused(name, values):
    """Whatever a file of options has, the answer is a layout or an error of the file."""
    file = LaunchFile("options.yaml", yaml.safe_dump(values))
    try:
        read = read_engines(EngineFile(file), name)
    except AutoplanError:
        return
    assert read.layout.devices >= 1
