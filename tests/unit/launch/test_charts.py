"""Values of charts of Helm whose templates lie beside them, and engines of Ray's LLMs."""

import pytest

import autoplan
from autoplan.errors import SpecError
from autoplan.launch.engines.chart_templates import Renderer, TemplateError, parse_template
from autoplan.launch.engines.helm_charts import FUNCTIONS

VALUES = {"Values": {"tp": 4, "share": 0.9, "on": True, "list": ["a", "b"], "map": {"maxLen": 8, "x": 1}}}
TEMPLATES = {
    "{{ .Values.tp }}": "4",
    "{{ .Values.missing | default 2 | quote }}": '"2"',
    "{{- if and .Values.on (eq .Values.tp 4) }}yes{{ else }}no{{ end -}}": "yes",
    "{{ range $i, $v := .Values.list }}{{ $i }}{{ $v }},{{ end }}": "0a,1b,",
    "{{ range $k, $v := .Values.map }}--{{ $k | kebabcase }} {{ $v }} {{ end }}": "--max-len 8 --x 1 ",
    '{{ define "n" }}[{{ .tp }}]{{ end }}{{ include "n" .Values }}': "[4]",
    "{{ $x := 1 }}{{ if .Values.on }}{{ $x = 2 }}{{ end }}{{ $x }}": "2",
    "{{ with .Values.map }}{{ .maxLen }}{{ end }}": "8",
    '{{ printf "%s-%v" "a" .Values.share }}': "a-0.9",
    '{{ (index .Values.list 1) | upper | replace "B" "c" }}': "c",
    "a:{{ toYaml .Values.list | nindent 2 }}": "a:\n  - a\n  - b",
    '{{/* a remark */}}{{ ternary "x" "y" .Values.on }}': "x",
}


def rendered(text):
    """Return what a template becomes with the values above."""
    renderer = Renderer(FUNCTIONS)
    actions = parse_template(text)
    renderer.define(actions)
    return renderer.whole(actions, VALUES)


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_are_filled_in_as_helm_does(template):
    """Conditions, loops, names, pipelines and functions have the meaning that Go's templates give them."""
    assert rendered(template) == TEMPLATES[template]


@pytest.mark.parametrize("text", ["{{ genCA 1 }}", "{{ if .x }}", "{{ .Values | }}", '{{ include "no" . }}'])
def test_what_is_not_read_of_a_template_is_said(text):
    """An unknown function, an open block or a name that nothing defines is an error with its line."""
    with pytest.raises(TemplateError) as caught:
        rendered(f"\n{text}")
    assert caught.value.line == 2


CHART = {
    "Chart.yaml": "name: engines\nversion: 1.0.0\n",
    "values.yaml": "model: Qwen/Qwen3-8B\nreplicas: 1\nparameters: {}\ngpus: 1\n",
    "values-large.yaml": "replicas: 3\nparameters: {tensorParallelSize: 2, maxModelLen: 8192}\ngpus: 2\n",
    "templates/_helpers.tpl": (
        '{{- define "words" -}}\n{{- range $key, $value := .Values.parameters }}'
        '{{ printf "--%s %v " ($key | kebabcase) $value }}{{ end -}}\n{{- end -}}\n'
    ),
    "templates/engine.yaml": (
        "apiVersion: apps/v1\nkind: Deployment\nspec:\n  replicas: {{ .Values.replicas }}\n  template:\n"
        "    spec:\n      containers:\n        - image: vllm/vllm-openai:v0.11.0\n"
        '          command: ["/bin/sh", "-c"]\n'
        '          args: ["vllm serve {{ .Values.model }} {{ include "words" . | trim }}"]\n'
        "          resources: {limits: {nvidia.com/gpu: {{ .Values.gpus }}}}\n"
    ),
}


def chart(folder, **changed):
    """Write the chart above with some files changed, and return its folder."""
    for name, text in {**CHART, **changed}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return folder


def test_values_of_a_chart_are_read_as_its_templates_render_them(tmp_path):
    """Values of a file go over those of the chart, and the manifests that they make are read."""
    folder = chart(tmp_path)

    small, large = (autoplan.read(folder / name) for name in ("values.yaml", "values-large.yaml"))

    assert (small.layout.tp, small.layout.replicas, small.job["model"]) == (1, 1, "qwen3-8b")
    assert (large.layout.tp, large.layout.replicas, large.job["devices"]) == (2, 3, 6)
    assert large.job["workload"]["longest_request"] == 8192
    assert "as its templates make them" in large.warnings[0]


def test_what_is_read_of_a_chart_has_the_lines_of_its_values(tmp_path):
    """A key like an argument is the place to change it; what only the templates say has no line."""
    values = "parameters:\n  tensorParallelSize: 2\n  maxModelLen: 8192\ngpus: 2\n"
    read = autoplan.read(chart(tmp_path, **{"values-large.yaml": values}) / "values-large.yaml")

    tp, longest = read.values["tp"], read.values["longest_request"]
    assert (tp.line, tp.words) == (2, "tensorParallelSize: 2")
    assert (longest.line, longest.words) == (3, "maxModelLen: 8192")


@pytest.mark.parametrize("name", ["values.yaml", "values-large.yaml"])
def test_values_that_are_no_yaml_are_refused(tmp_path, name):
    """Neither the file nor that of the chart is taken as one without values."""
    folder = chart(tmp_path, **{name: f"{CHART[name]}more: [1, 2\nlast: 3\n"})
    with pytest.raises(SpecError, match=rf"{name}:\d+: .*no YAML"):
        autoplan.read(folder / "values-large.yaml")


def test_a_degree_that_a_chart_renders_and_no_engine_has_is_refused(tmp_path):
    """Problems have the line of the rendered manifest, and a template that is not read has its own."""
    folder = chart(tmp_path, **{"values-large.yaml": "parameters: {tensorParallelSizes: 2}\n"})
    with pytest.raises(SpecError, match=r"rendered-values-large\.yaml:10: --tensor-parallel-sizes"):
        autoplan.read(folder / "values-large.yaml")

    template = f"{CHART['templates/engine.yaml']}# {{{{ genSignedCert 1 }}}}\n"
    folder = chart(tmp_path, **{"templates/engine.yaml": template})
    with pytest.raises(SpecError, match=r"templates/engine\.yaml:12: .*genSignedCert is not read"):
        autoplan.read(folder / "values-large.yaml")


RAY = """applications:
  - name: pools
    import_path: own:builder
    args:
      prefill_config:
        model_loading_config: {model_id: a, model_source: Qwen/Qwen3-32B}
        deployment_config: {autoscaling_config: {min_replicas: 2, max_replicas: 2}}
        engine_kwargs: {tensor_parallel_size: 2, kv_transfer_config: {kv_connector: NixlConnector}}
      decode_config:
        model_loading_config: {model_id: a, model_source: Qwen/Qwen3-32B}
        engine_kwargs: {tensor_parallel_size: 4, enable_prefix_caching: false}
"""


def test_a_builder_of_its_own_has_configurations_of_rays_pools(tmp_path):
    """The names of its arguments say what each is, whatever builds the application."""
    path = tmp_path / "serve.yaml"
    path.write_text(RAY)

    read = autoplan.read(path)

    assert (read.layout.prefill.tp, read.layout.prefill.replicas) == (2, 2)
    assert (read.layout.decode.tp, read.job["devices"]) == (4, 8)


PROGRAM = """import os
from ray import serve
from ray.serve.llm import LLMConfig, build_openai_app

KWARGS = dict(tensor_parallel_size={tp}, max_model_len=4096)
config = LLMConfig(
    model_loading_config={{"model_id": "m", "model_source": os.getenv("MODEL", "Qwen/Qwen3-8B")}},
    deployment_config={{"num_replicas": 2}},
    engine_kwargs=KWARGS,
)
app = build_openai_app({{"llm_configs": [config]}})
"""


def test_a_program_of_rays_llms_is_read_and_never_run(tmp_path):
    """Constants and variables of the environment are followed; a degree that is computed is refused."""
    path = tmp_path / "app.py"
    path.write_text(PROGRAM.format(tp=2))
    read = autoplan.read(path)
    other = autoplan.read(path, variables={"MODEL": "Qwen/Qwen3-32B"})

    assert (read.layout.tp, read.layout.replicas, read.job["model"]) == (2, 2, "qwen3-8b")
    assert other.job["model"] == "qwen3-32b"
    path.write_text(PROGRAM.format(tp="torch.cuda.device_count()"))
    with pytest.raises(SpecError, match=r"app\.py:5: --tensor-parallel-size: .* the program computes"):
        autoplan.read(path)


CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
data:
  serve.py: |
    import os
    from ray import serve
    arguments = AsyncEngineArgs(
        model=os.getenv("MODEL", "Qwen/Qwen3-8B"),
        tensor_parallel_size=int(os.getenv("TENSOR_PARALLEL_SIZE", "1")),
    )
"""
SERVICE = """---
kind: RayService
spec:
  rayClusterConfig:
    workerGroupSpecs:
      - template:
          spec:
            containers:
              - env: [{name: TENSOR_PARALLEL_SIZE, value: "4"}]
"""


def test_the_environment_of_rays_workers_decides_before_a_default_of_the_program(tmp_path):
    """Where what sets the environment is not in the file, no default is taken."""
    path = tmp_path / "service.yaml"
    path.write_text(CONFIG_MAP + SERVICE)
    assert autoplan.read(path).layout.tp == 4

    path.write_text(CONFIG_MAP)
    with pytest.raises(SpecError, match=r"service\.yaml:9: --tensor-parallel-size"):
        autoplan.read(path)
