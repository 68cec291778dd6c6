"""Manifests and values of charts that start engines."""

import pytest

from autoplan.answers.configure.ask import read
from autoplan.errors import SpecError, UnsupportedError
from autoplan.launch.configuration import LaunchFile
from autoplan.launch.engines.engine_reading import read_engines
from autoplan.launch.engines.served_run import EngineFile

DYNAMO = """apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Frontend: {componentType: frontend, replicas: 1}
    decode:
      subComponentType: decode
      replicas: 2
      extraPodSpec:
        mainContainer:
          image: sglang-runtime
          command: [python3, -m, dynamo.sglang]
          args: [--model-path, Qwen/Qwen3-8B, --tp, "2", --disaggregation-mode, decode]
    prefill:
      replicas: 1
      extraPodSpec:
        mainContainer:
          image: sglang-runtime
          command: [python3, -m, dynamo.sglang]
          args: [--model-path, Qwen/Qwen3-8B, --tp, "1", --disaggregation-mode, prefill]
"""
COMPOSE = """services:
  llm:
    image: vllm/vllm-openai:v0.11.0
    command: >
      --model meta-llama/Llama-3.1-70B-Instruct
      --tensor-parallel-size ${TP:-4}
      --max-model-len 16384
    deploy: {replicas: 2}
  cache: {image: redis, command: redis-server}
"""
DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      containers:
      - name: vllm
        image: vllm/vllm-openai:v0.11.0
        command: ["/bin/sh", "-c"]
        args:
        - |
          set -e
          vllm serve Qwen/Qwen2.5-7B-Instruct \\
            --tensor-parallel-size $TP --max-num-seqs 64
        env:
        - {name: TP, value: "2"}
"""
CHART = """servingEngineSpec:
  modelSpec:
  - name: q
    repository: vllm/vllm-openai
    modelURL: Qwen/Qwen2.5-14B-Instruct
    replicaCount: 2
    vllmConfig: {dtype: half, tensorParallelSize: 4, maxModelLen: 8192, extraArgs: ["--max-num-seqs", "32"]}
"""
RECIPE = """model: {name: deepseek-ai/DeepSeek-R1, tp_size: 8, pp_size: 2}
vllm:
  replicaCount: 1
  serverArgs: {max-model-len: 32768, max-num-seqs: 128, enforce-eager: True}
"""
MISSPELT = """kind: Deployment
spec:
  template:
    spec:
      containers:
      - image: vllm/vllm-openai:latest
        args:
        - --model
        - Qwen/Qwen3-8B
        - --tensor-paralel-size=2
"""


GROUP = """kind: LeaderWorkerSet
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate: {spec: {containers: [{name: a, command: [python3, -m, sglang.launch_server, --model-path,
      Qwen/Qwen3-8B, --tp, "4", --nnodes, $(LWS_GROUP_SIZE), --node-rank, $(LWS_WORKER_INDEX)]}]}}
    workerTemplate: {spec: {containers: [{name: b, command: [python3, -m, sglang.launch_server, --model-path,
      Qwen/Qwen3-8B, --tp, "4", --nnodes, $(LWS_GROUP_SIZE), --node-rank, $(LWS_WORKER_INDEX)]}]}}
"""
KUBEAI = """kind: Model
spec:
  url: hf://Qwen/Qwen2.5-7B-Instruct
  engine: VLLM
  args: [--tensor-parallel-size=2, --max-num-seqs=64]
  resourceProfile: nvidia-gpu-h100:2
"""
KSERVE = """kind: LLMInferenceService
spec:
  model: {uri: hf://Qwen/Qwen3-30B-A3B}
  replicas: 3
  parallelism: {tensor: 4, expert: true}
  template:
    containers:
    - name: main
      env: [{name: VLLM_ADDITIONAL_ARGS, value: "--max-num-seqs 32"}]
"""
LABELLED = """kind: Deployment
spec:
  replicas: 4
  template:
    metadata: {labels: {llm-d.ai/role: prefill}}
    spec: {containers: [{command: [vllm, serve], args: [Qwen/Qwen3-8B, --tensor-parallel-size=1]}]}
---
kind: Deployment
spec:
  replicas: 2
  template:
    metadata: {labels: {llm-d.ai/role: decode}}
    spec: {containers: [{command: [vllm, serve], args: [Qwen/Qwen3-8B, --tensor-parallel-size=2]}]}
"""
SRT_SLURM = """model: {path: Qwen/Qwen3-32B}
resources: {prefill_workers: 1, decode_workers: 3}
backend:
  sglang_config:
    prefill: {tensor-parallel-size: 4, context-length: 9600}
    decode: {tensor-parallel-size: 8, context-length: 9600, trust-remote-code: true}
"""
SRT_VLLM = """model: {path: hf:Qwen/Qwen3-32B}
resources: {agg_workers: 8}
backend:
  type: vllm
  vllm_config:
    aggregated: {tensor-parallel-size: 2, async-scheduling: true, max-num-seqs: 16}
"""
SRT_TRTLLM = """model: {path: deepseek-ai/DeepSeek-R1}
resources: {prefill_workers: 1, decode_workers: 3}
backend:
  trtllm_config:
    prefill: {tensor_parallel_size: 4, max_batch_size: 8, kv_cache_config: {dtype: fp8}}
    decode: {tensor_parallel_size: 8, max_batch_size: 128, kv_cache_config: {dtype: fp8}}
"""
RUNTIME = """kind: VLLMRuntime
spec:
  model: {modelURL: meta-llama/Llama-3.1-8B-Instruct, maxNumSeqs: 32}
  vllmConfig: {tensorParallelSize: 2, gpuMemoryUtilization: "0.8"}
  deploymentConfig: {replicas: 3, resources: {gpu: "2"}}
"""
OTHER_IMAGE = """services:
  llm: {image: "${REGISTRY:-opea}/vllm-rocm:1.4", command: "--model Qwen/Qwen3-8B --tensor-parallel-size 4"}
"""
RAY = """kind: RayClusterFleet
spec:
  replicas: 1
  template: {spec: {headGroupSpec: {template: {spec: {containers: [{name: head, command: [/bin/bash, -lc, --],
    args: ["ulimit -n 65536; vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2"]}]}}}}}
"""
ROLES = """kind: StormService
spec:
  replicas: 2
  template: {spec: {roles: [
    {name: prefill, replicas: 2, template: {spec: {containers: [{command: [vllm, serve, Qwen/Qwen3-8B]}]}}},
    {name: decode, replicas: 1, template: {spec: {containers: [{command: [vllm, serve, Qwen/Qwen3-8B]}]}}}]}}
"""
SHELL_WORKER = """kind: DynamoGraphDeployment
spec:
  services:
    Worker:
      replicas: 2
      extraPodSpec:
        mainContainer:
          command: [/bin/sh, -c]
          args:
          - |
            export MODEL=Qwen3-8B TP=2
            python3 -m dynamo.vllm --model /models/$MODEL \\
              --tensor-parallel-size $TP --max-num-seqs 16
"""

RAY_SERVICE = """kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - model_loading_config: {model_id: qwen, model_source: Qwen/Qwen3-8B}
          engine_kwargs: {tensor_parallel_size: 2, pipeline_parallel_size: 2, max_num_seqs: 32, device: auto}
          deployment_config: {num_replicas: 3}
"""
START_COMMAND = """base_image: {image: "vllm/vllm-openai:v0.11.0"}
docker_server:
  start_command: vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2
"""
BARE = """kind: Deployment
spec:
  replicas: 2
  template:
    spec:
      containers:
      - name: server
        image: registry/own:1
        args: [--model=Qwen/Qwen3-8B, --tensor-parallel-size, "2"]
"""
IN_CONFIG_MAP = """kind: ConfigMap
data:
  inference_config.yaml: |
    vllm:
      model: Qwen/Qwen3-8B
      tensor-parallel-size: 2
      max-num-seqs: 16
"""


def of(tmp_path, text):
    """Return what a manifest says."""
    (tmp_path / "m.yaml").write_text(text)
    return read(tmp_path / "m.yaml")


@pytest.mark.parametrize(
    ("text", "layout", "model"),
    [
        (COMPOSE, {"tp": 4, "replicas": 2}, "llama3.1-70b"),
        (DEPLOYMENT, {"tp": 2, "replicas": 3, "seqs": 64}, "qwen2.5-7b"),
        (CHART, {"tp": 4, "replicas": 2, "seqs": 32, "weights": "fp16"}, "qwen2.5-14b"),
        (RECIPE, {"tp": 8, "pp": 2, "replicas": 1, "seqs": 128}, "deepseek-v3"),
        (GROUP, {"tp": 4, "replicas": 2}, "qwen3-8b"),
        (KUBEAI, {"tp": 2, "replicas": 1, "seqs": 64}, "qwen2.5-7b"),
        (KSERVE, {"tp": 4, "ep": 4, "replicas": 3, "seqs": 32}, "qwen3-30b-a3b"),
        (SHELL_WORKER, {"tp": 2, "replicas": 2, "seqs": 16}, "qwen3-8b"),
        (SRT_VLLM, {"tp": 2, "replicas": 8, "seqs": 16}, "qwen3-32b"),
        (RUNTIME, {"tp": 2, "replicas": 3, "seqs": 32}, "llama3.1-8b"),
        (OTHER_IMAGE, {"tp": 4, "replicas": 1}, "qwen3-8b"),
        (RAY, {"tp": 2, "replicas": 1}, "qwen3-8b"),
        (RAY_SERVICE, {"tp": 2, "pp": 2, "replicas": 3, "seqs": 32}, "qwen3-8b"),
        (START_COMMAND, {"tp": 2, "replicas": 1}, "qwen3-8b"),
        (BARE, {"tp": 2, "replicas": 2}, "qwen3-8b"),
        (IN_CONFIG_MAP, {"tp": 2, "replicas": 1, "seqs": 16}, "qwen3-8b"),
    ],
)
def test_engines_of_manifests_are_read(tmp_path, text, layout, model):
    """Degrees, copies and sizes are those of the container's command, or of the values of the chart."""
    found = of(tmp_path, text)

    assert {key: getattr(found.layout, key) for key in layout} == layout
    assert found.job["model"] == model


def test_a_degree_that_a_machine_decides_stays_open(tmp_path):
    """What `nvidia-smi` counts is open, with the devices; the rest of the command is read."""
    (tmp_path / "serve.sh").write_text(
        "vllm serve Qwen/Qwen3-8B -tp $(nvidia-smi -L | wc -l) --max-num-seqs 8\n"
    )
    found = read(tmp_path / "serve.sh")

    assert "tp" in found.unspecified
    assert "devices" not in found.job
    assert found.layout.seqs == 8


def test_pools_of_a_graph_are_one_layout(tmp_path):
    """Workers for prefill and decode of Dynamo are the two pools of a disaggregated layout."""
    found = of(tmp_path, DYNAMO)

    assert (found.layout.prefill.tp, found.layout.decode.tp, found.layout.decode.replicas) == (1, 2, 2)


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        (LABELLED, (1, 4, 2, 2)),
        (SRT_SLURM, (4, 1, 8, 3)),
        (SRT_TRTLLM, (4, 1, 8, 3)),
        (ROLES, (1, 4, 1, 2)),
    ],
    ids=["labels", "srt-slurm", "srt-slurm of TensorRT-LLM", "copies of roles"],
)
def test_pools_are_those_of_labels_or_sections(tmp_path, text, pools):
    """A label of a pod, or a section of a recipe, says which pool an engine is of."""
    layout = of(tmp_path, text).layout
    prefill, decode = layout.prefill, layout.decode

    assert (prefill.tp, prefill.replicas, decode.tp, decode.replicas) == pools


def test_what_a_script_appends_to_its_options_counts(tmp_path):
    """A second here-document comes behind the first one, where the script runs it; the other is left out."""
    text = (
        "cat > o.yml << EOF\nkv_cache_config: {dtype: fp8}\nEOF\n"
        'if [ "$MORE" = yes ]; then\ncat << EOF >> o.yml\nmax_batch_size: $SEQS\nEOF\nfi\n'
        "trtllm-serve Qwen/Qwen3-8B --tp_size 2 --extra_llm_api_options o.yml\n"
    )
    (tmp_path / "s.sh").write_text(text)
    more = read(tmp_path / "s.sh", variables={"MORE": "yes", "SEQS": "24"})
    less = read(tmp_path / "s.sh", variables={"MORE": "no", "SEQS": "24"})

    assert (more.layout.kv, more.layout.seqs) == ("fp8", 24)
    assert (less.layout.kv, less.layout.seqs) == ("fp8", 0)


def test_an_argument_of_a_manifest_is_refused_with_its_line(tmp_path):
    """A misspelt argument has the line of its word."""
    with pytest.raises(SpecError, match=r"m.yaml:10: --tensor-paralel-size"):
        of(tmp_path, MISSPELT)


def test_the_node_that_follows_is_no_engine_of_its_own(tmp_path):
    """Two commands of one engine, the second of which has a rank and no head, are one engine."""
    common = "vllm serve deepseek-ai/DeepSeek-R1 --tensor-parallel-size 8 --data-parallel-size 2"
    text = f"{common} --enable-expert-parallel\n{common} --enable-expert-parallel --headless"
    (tmp_path / "s.sh").write_text(f"{text} --data-parallel-start-rank 1\n")
    found = read(tmp_path / "s.sh")

    assert (found.layout.replicas, found.layout.devices) == (1, 16)
    with pytest.raises(SpecError, match="not --devices 8"):
        read(tmp_path / "s.sh", devices=8)


@pytest.mark.parametrize(
    ("said", "read_as"), [("v0.10.0", "vllm@0.11"), ("v0.11.0", "vllm@0.11"), ("v0.8.5", "vllm@0.11")]
)
def test_a_version_that_is_not_listed_is_read_as_the_nearest(said, read_as):
    """The note says so; a version that the user names is refused, as nothing hides behind it."""
    text = f"docker run --gpus all vllm/vllm-openai:{said} --model meta-llama/Llama-3.1-8B --max-num-seqs 8\n"
    found = read_engines(EngineFile(LaunchFile("run.sh", text, {}, (), None), str))
    assert found.engine == read_as
    assert any("are not listed: read with those of" in note for note in found.warnings) == (said != "v0.11.0")
    with pytest.raises(UnsupportedError, match="are not listed"):
        read_engines(EngineFile(LaunchFile("run.sh", text, {}, (), None), str), "vllm@0.10")


def test_a_chart_says_its_version_and_a_model_what_it_is():
    """The tag of an image decides; an encoder and decoder is refused by its name, with the line."""
    chart = (
        "servingEngineSpec:\n  modelSpec:\n  - name: a\n    repository: vllm/vllm-openai\n    tag: v0.11.0\n"
        "    modelURL: meta-llama/Llama-3.1-8B\n    replicaCount: 1\n    requestGPU: 1\n"
    )
    assert read_engines(EngineFile(LaunchFile("values.yaml", chart, {}, (), None), str)).engine == "vllm@0.11"
    with pytest.raises(SpecError, match=r"serve.sh:1.*flan-t5-xxl is an encoder and a decoder"):
        read_engines(EngineFile(LaunchFile("serve.sh", "vllm serve google/flan-t5-xxl\n", {}, (), None), str))
