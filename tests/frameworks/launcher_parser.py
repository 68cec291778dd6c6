"""What launchers' own parsers make of what is emitted, run by the Python that has them.

SkyPilot's schemas are imported from the folder of its wheel, the first argument.

A case has the ``kind`` of parser and the ``words`` or the ``text``; the answer to each is what was read, or
the ``error`` that refused it.
"""

import contextlib
import functools
import io
import json
import sys
import types
from unittest.mock import MagicMock

import yaml


def torchrun(case):
    """Return the nodes, processes and the program that torchrun's parser finds in words."""
    from torch.distributed.run import config_from_args, get_args_parser

    arguments = get_args_parser().parse_args(case["words"])
    config, program, words = config_from_args(arguments)
    return {
        "nodes": [config.min_nodes, config.max_nodes],
        "processes": config.nproc_per_node,
        "endpoint": config.rdzv_endpoint,
        "rank": config.rdzv_configs.get("rank"),
        "backend": config.rdzv_backend,
        "words": words[words.index("-u") + 1 :] if "-u" in words else [str(program), *words],
    }


@functools.cache
def sky_schemas():
    """Return SkyPilot's modules of schemas and of their validator, without its server and its clouds."""
    sky = types.ModuleType("sky")
    sky.__path__ = [f"{sys.argv[1]}/sky"]
    sys.modules["sky"] = sky
    for name in ("utils.common_utils", "skylet.autostop_lib", "server.daemons", "sky_logging"):
        sys.modules[f"sky.{name}"] = MagicMock()
    from sky.utils import schemas, validator

    return schemas, validator


def skypilot(case):
    """Return the nodes and accelerators of a task that SkyPilot's schema accepts."""
    schemas, validator = sky_schemas()
    task = yaml.safe_load(case["text"])
    validator.get_schema_validator()(schemas.get_task_schema()).validate(task)
    validator.get_schema_validator()(schemas.get_resources_schema()).validate(task["resources"])
    return {"nodes": task["num_nodes"], "accelerators": task["resources"]["accelerators"]}


def as_text(value):
    """Return a value with its numbers as text, as clients have quantities."""
    if isinstance(value, dict):
        return {key: as_text(inner) for key, inner in value.items()}
    return [as_text(inner) for inner in value] if isinstance(value, list) else str(value)


def pytorchjob(case):
    """Return the replicas of a PyTorchJob that the client of the Training Operator accepts."""
    from kubeflow.training import KubeflowOrgV1PyTorchJob
    from kubeflow.training.api_client import ApiClient

    class Response:
        data = json.dumps(yaml.safe_load(case["text"]))

    job = ApiClient().deserialize(Response, KubeflowOrgV1PyTorchJob)
    plain = ApiClient().sanitize_for_serialization(job)
    specs = job.spec.pytorch_replica_specs
    kept = as_text(plain) == as_text(yaml.safe_load(case["text"]))
    return {"replicas": {name: spec.replicas for name, spec in specs.items()}, "kept": kept}


def workload(case):
    """Return the replicas of a Deployment, or the ports of a Service, that Kubernetes' client accepts."""
    from kubernetes import client

    document = yaml.safe_load(case["text"])

    class Response:
        data = json.dumps(document)

    api = client.ApiClient()
    made = api.deserialize(Response, f"V1{document['kind']}")
    plain = api.sanitize_for_serialization(made)
    return {"kept": as_text(plain) == as_text(document)}


def trainjob(case):
    """Return the nodes of a TrainJob that the models of Kubeflow Trainer accept."""
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    document = yaml.safe_load(case["text"])
    job = TrainerV1alpha1TrainJob.from_dict(document)
    plain = json.loads(job.to_json())
    return {"nodes": job.spec.trainer.num_nodes, "kept": plain == document}


PARSERS = {
    "torchrun": torchrun,
    "skypilot": skypilot,
    "pytorchjob": pytorchjob,
    "trainjob": trainjob,
    "Deployment": workload,
    "Service": workload,
}


def answer(case):
    """Return what a parser makes of a case, or its error."""
    shown = io.StringIO()
    try:
        with contextlib.redirect_stderr(shown), contextlib.redirect_stdout(shown):
            return PARSERS[case["kind"]](case)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a parser refuses with
        return {"error": f"{type(error).__name__}: {error} {shown.getvalue()}"[:500]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps([answer(case) for case in json.load(sys.stdin)]))
