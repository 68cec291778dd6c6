"""Values of a chart of Helm whose templates lie beside them, as the manifests that Helm makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from autoplan.errors import Problem, SpecError
from autoplan.launch.engines.chart_functions import FUNCTIONS
from autoplan.launch.engines.chart_templates import Renderer, TemplateError, parse_template
from autoplan.launch.engines.container_commands import is_manifest

__all__ = ["CHART", "VALUES", "rendered_chart"]

CHART: Final = "Chart.yaml"
VALUES: Final = "values.yaml"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def rendered_chart(text: str, name: str, files: Mapping[str, str]) -> str | None:
    """Return the manifests of a chart, filled in with values; None where none of them serves.

    Args:
        text: the values of one file.
        name: what messages call it.
        files: the files of its chart by path, such as ``Chart.yaml`` and ``templates/deployment.yaml``.

    Raises SpecError for values that are no YAML, and for a template that serves and is not read.
    """
    values = _merged(_mapping(files.get(VALUES, ""), VALUES), _mapping(text, name))
    chart = {key[:1].upper() + key[1:]: value for key, value in _mapping(files[CHART], CHART).items()}
    context = {
        "Values": values,
        "Chart": chart,
        "Release": {"Name": "release", "Namespace": "default", "Service": "Helm"},
        "Capabilities": {"APIVersions": {}, "KubeVersion": {}},
    }
    renderer = Renderer(FUNCTIONS)
    parsed: dict[str, Any] = {}
    problems: list[Problem] = []
    for path, template in files.items():
        if path.startswith("templates/"):
            try:
                parsed[path] = parse_template(template)
                renderer.define(parsed[path])
            except TemplateError as error:
                problems.append(Problem(error.sentence, "template", path, error.line))
    made: list[str] = []
    for path, actions in parsed.items():
        if path.endswith((".yaml", ".yml")):
            try:
                made.append(renderer.whole(actions, context))
            except TemplateError as error:
                problems.append(Problem(error.sentence, "template", path, error.line))
    serving = any(is_manifest(document) for document in made)
    if not serving and problems and any("serve" in text or "vllm" in text for text in files.values()):
        raise SpecError(problems)
    return "\n---\n".join(made) if serving else None


def _mapping(text: str, name: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, _LOADER)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        sentence = f"it is no YAML: {str(error).splitlines()[0][:120]}"
        raise SpecError([Problem(sentence, "$", name, mark.line + 1 if mark else None)]) from error
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "$", name)]) from error
    return found if isinstance(found, dict) else {}


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those of another file over them; null removes a key, as Helm does."""
    merged = dict(one)
    for key, value in other.items():
        before = merged.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            merged[key] = _merged(before, value)
        elif value is None and key in merged:
            del merged[key]
        else:
            merged[key] = value
    return merged
