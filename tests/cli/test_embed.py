"""The launchers of docs/embed.md run as they are printed, with stand-ins of what is not installed here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import autoplan
from autoplan.results.plan import layout_fields
from autoplan.schema.saved_front import SavedFront
from autoplan.schema.yaml.loader import json_schema

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "embed.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+\n# file: (\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
PROGRAMS = {name: text for name, text in FILES.items() if not name.endswith(".yaml")}
JOB = """
schema: 1
kind: training
model: llama2-7b
hardware: dgx-a100-80gb
devices: 2
stack: megatron-core
workload: {sequence_length: 4096, global_batch_size: 64}
search: {tensor_parallel: 2, microbatch_size: 1, recompute: full, zero_stage: 1}
"""
RAY = """
class ScalingConfig:
    def __init__(self, num_workers, use_gpu): self.workers = num_workers
"""
RAY_TORCH = """
class TorchTrainer:
    def __init__(self, loop, train_loop_config, scaling_config):
        self.run = lambda: (print("workers", scaling_config.workers), loop(train_loop_config))
    def fit(self): self.run()
"""
HYDRA = """
from types import SimpleNamespace
def main(**_):
    return lambda f: lambda: f(SimpleNamespace(job=open("given.yaml").read()))
"""
OMEGACONF = """
class OmegaConf:
    @staticmethod
    def save(config, path, resolve): path.write_text(config)
"""


@pytest.fixture
def run(tmp_path):
    """Return what runs a program of the page in a folder with a job, and returns its output."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    for name in ("job.yaml", "given.yaml"):
        (tmp_path / name).write_text(JOB)
    modules = {"ray/__init__.py": "", "ray/train/__init__.py": RAY, "ray/train/torch.py": RAY_TORCH}
    modules |= {"hydra.py": HYDRA, "omegaconf.py": OMEGACONF}
    for name, text in modules.items():
        (tmp_path / "modules" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "modules" / name).write_text(text)
    shims = {
        "torchrun": 'echo "$AUTOPLAN_LAYOUT" "$@"',
        "autoplan": f'exec {sys.executable} -m autoplan "$@"',
    }
    (tmp_path / "bin").mkdir()
    for name, text in shims.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path / 'modules'}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "AUTOPLAN_JOB": "job.yaml",
    }

    def started(*command):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        return done.returncode, done.stdout, done.stderr

    return started


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """Return the job of the page, planned."""
    path = tmp_path_factory.mktemp("job") / "job.yaml"
    path.write_text(JOB)
    return autoplan.plan(path)


def test_the_page_has_the_programs():
    """The four launchers are found, and nothing else."""
    assert sorted(PROGRAMS) == ["hydra_launch.py", "launch.py", "ray_launch.py", "task_prolog.sh"]


def test_the_torchrun_wrapper_becomes_torchrun(run, planned):
    """It gives torchrun the nodes, the devices and the user's program, and the layout in the environment."""
    code, out, errors = run(sys.executable, "launch.py", "job.yaml", "train.py", "--steps", "3")

    assert (code, errors) == (0, "")
    assert out == f"{planned.fastest.layout_string} --nnodes=1 --nproc-per-node=2 train.py --steps 3\n"


def test_the_torchrun_wrapper_says_what_is_wrong(run):
    """A job that is not there is a message and not a traceback."""
    code, out, errors = run(sys.executable, "launch.py", "missing.yaml", "train.py")

    assert (code, out) == (1, "")
    assert errors.startswith("launch.py: cannot read missing.yaml")


def test_the_prolog_exports_the_layout(run, planned, tmp_path):
    """Slurm reads one export, and the shared folder holds the answer for the other tasks."""
    code, out, _ = run("bash", "task_prolog.sh")

    assert (code, out) == (0, f"export AUTOPLAN_LAYOUT={planned.fastest.layout_string}\n")
    assert len(list((tmp_path / ".autoplan").glob("*.json"))) == 1


@pytest.mark.slow
def test_no_cache_leaves_nothing(run, tmp_path):
    """One option turns the cache off, whatever the environment says; with it the answer is the same."""
    folder = tmp_path / "shared"
    asked = f'AUTOPLAN_CACHE_DIR="{folder}" autoplan plan job.yaml --format json'
    without, kept, again = (
        run("bash", "-c", f"{asked} {option}") for option in ("--no-cache", "", "--cache")
    )

    assert without[0] == 0
    assert without[1] == kept[1] == again[1]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.slow
def test_ray_trains_with_as_many_workers_as_devices(run):
    """The plan decides the workers, and each of them gets the layout."""
    code, out, errors = run(sys.executable, "ray_launch.py", "job.yaml")

    assert (code, out, errors) == (0, "workers 2\ntraining with tp 2\n", "")


@pytest.mark.slow
def test_hydra_plans_the_job_of_its_configuration(run, planned):
    """The job that the configuration holds is planned."""
    code, out, errors = run(sys.executable, "hydra_launch.py")

    assert (code, out, errors) == (0, f"layout {planned.fastest.layout_string}\n", "")


def test_answers_keep_the_published_schema(planned):
    """The document of an answer is valid under the schema that ``autoplan schema plan`` prints."""
    from autoplan.report.document_fields import front_document

    schema, document = json_schema(SavedFront), json.loads(json.dumps(front_document(planned)))
    jsonschema.Draft202012Validator.check_schema(schema)
    checked = jsonschema.Draft202012Validator(schema)

    assert list(checked.iter_errors(document)) == []
    layout = schema["$defs"]["SavedPlan"]["properties"]["layout"]
    assert sorted(layout["required"]) == sorted(layout_fields(planned.fastest.layout))
    for key in ("certificate", "front"):
        assert list(checked.iter_errors({name: x for name, x in document.items() if name != key}))
    del document["front"][0]["layout"]["tp"]
    assert list(checked.iter_errors(document))
