"""Each engine and each plan of the table of serving shapes: what is emitted is accepted by the engine itself.

Degrees, formats, sizes and pools that vLLM's VllmConfig and SGLang's ServerArgs have are those of the plan.
TensorRT-LLM has no wheel on the index: its names are checked against its list of arguments.
"""

import functools
import shlex
from pathlib import Path

import pytest
import yaml

from autoplan.launch.engines.arguments.engine_settings import InexpressibleEngineError
from autoplan.launch.engines.engine_targets import engine_target
from tests.frameworks.framework_python import asked, has_module, unpacked, wheel
from tests.frameworks.matrix import cell
from tests.support.serving_shapes import CONFIGS, SERVED, served

pytestmark = pytest.mark.frameworks

HERE = Path(__file__).parent
#: The words that a command has before its arguments, the script that asks, and the module that it needs.
PROGRAMS = {
    "vllm": (("vllm", "serve"), "vllm_parser.py", "msgspec"),
    "sglang": (("python3", "-m", "sglang.launch_server", "--model-path"), "sglang_parser.py", "torch"),
}
#: Formats of weights, and of the cache, in words of an engine; vLLM's has that of the checkpoint, too.
WEIGHTS = {"bf16": None, "fp8": "fp8", "fp8-block": "fp8"}
CACHE = {"vllm": {"auto": "auto", "fp8": "fp8"}, "sglang": {"auto": "auto", "fp8": "fp8_e4m3"}}
VLLM_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", None: None}
PAIRS = [(name, shape) for name in PROGRAMS for shape in SERVED]


def commands(name, text):
    """Return the arguments of each engine that a script starts."""
    before = PROGRAMS[name][0]
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removesuffix("&"))[1:]
        if line.startswith("CUDA_VISIBLE_DEVICES="):
            assert tuple(words[: len(before)]) == before
            yield words[len(before) + 1 :]


def cases_of(name, shape):
    """Return the cases of a shape, one for each engine, beside the group that it is of."""
    run = served(name, shape)
    words = list(commands(name, engine_target(name).emit(run).files[0].text))
    groups = [group for group in run.groups for _ in range(group.layout.replicas)]
    for group, given in zip(groups, words, strict=True):
        # The port is one of the server in front of the engine.
        engine = given[: given.index("--port")] if name == "vllm" else given
        yield run, group, {"words": engine, "config": CONFIGS[run.job.model.name]}


@functools.cache
def answers(name):
    """Return the engines of all shapes, and what the program says of them."""
    listed = [(shape, *case) for shape in SERVED for case in cases_of(name, shape)]
    found = asked(HERE / PROGRAMS[name][1], [case for *_, case in listed], unpacked(name))
    return [(shape, run, group, answer) for (shape, run, group, _), answer in zip(listed, found, strict=True)]


def of_vllm(run, group):
    """Return what VllmConfig has of an engine."""
    layout = group.layout
    return {
        **{name: getattr(layout, name) for name in ("tp", "pp", "adp", "dcp", "seqs", "tokens")},
        "experts_split": layout.ep > 1,
        "devices": layout.devices_per_engine,
        "longest": run.job.longest_request,
        "dtype": "torch.bfloat16",
        "quantization": WEIGHTS[layout.weights],
        "kv": CACHE["vllm"][layout.kv],
        "memory": run.job.engine.facts.budget.utilization.value,
        "spec": layout.spec,
        "role": VLLM_ROLES[group.role],
    }


def of_sglang(run, group):
    """Return what ServerArgs has of an engine, whose sizes are those of all its groups together."""
    layout = group.layout
    return {
        "tp_size": layout.tp * layout.adp,
        "pp_size": layout.pp,
        "ep_size": layout.ep,
        "dcp_size": layout.dcp,
        "enable_dp_attention": layout.adp > 1,
        "max_running_requests": layout.seqs * layout.adp,
        "context_length": run.job.longest_request,
        "quantization": None if layout.weights == "fp8-block" else WEIGHTS[layout.weights],
        "kv_cache_dtype": CACHE["sglang"][layout.kv],
        "disaggregation_mode": group.role or "null",
        "nnodes": 1,
    }


@pytest.mark.parametrize(("name", "shape"), PAIRS, ids=lambda part: part)
def test_the_engine_accepts_a_plan_and_has_it(name, shape):
    """What is emitted is accepted, and the engine's configuration is that of the plan."""
    _, _, module = PROGRAMS[name]
    if not (has_module(module) and wheel(name)):
        cell(name, "", shape, "not there")
        pytest.skip(f"{name} is not there")
    expected = {"vllm": of_vllm, "sglang": of_sglang}[name]
    mine = [entry for entry in answers(name) if entry[0] == shape]
    for _, run, group, answer in mine:
        assert "accepted" in answer, answer
        wanted = expected(run, group)
        assert {key: answer["accepted"][key] for key in wanted} == wanted
    assert mine
    cell(name, Path(wheel(name)).name.split("-")[1], shape, "accepted")


@pytest.mark.parametrize("shape", SERVED)
def test_names_of_tensorrt_llm_are_checked(shape):
    """Every flag and option that is emitted is one of the list of its version; else the part is named."""
    run = served("tensorrt-llm", shape)
    version = f"{run.known.version} (names checked)"
    try:
        emission = engine_target("tensorrt-llm").emit(run)
    except InexpressibleEngineError as error:
        nearest = f"; nearest is {error.nearest[0]}" if error.nearest else ""
        cell("tensorrt-llm", version, shape, f"refused: {error.part}{nearest}")
        return
    words = shlex.split(emission.files[0].text, comments=True)
    assert {word for word in words if word.startswith("--")} <= set(run.known.arguments) | {"--port"}
    for file in emission.files[1:]:
        assert yaml.safe_load(file.text)
    cell("tensorrt-llm", version, shape, "names checked")


@pytest.mark.parametrize("shape", SERVED)
def test_kubernetes_keeps_every_field(shape):
    """The models of Kubernetes' client take each manifest of a plan, and lose no field of it."""
    if not has_module("kubernetes"):
        pytest.skip("kubernetes is not installed")
    text = engine_target("kubernetes").emit(served("vllm", shape)).files[0].text
    cases = [
        {"kind": document["kind"], "text": yaml.safe_dump(document)} for document in yaml.safe_load_all(text)
    ]
    assert {case["kind"] for case in cases} == {"Deployment", "Service"}

    for found in asked(HERE / "launcher_parser.py", cases):
        assert found.get("error") is None
        assert found["kept"]
    cell("kubernetes", "apps/v1, v1", shape, "accepted")
