"""Models by the paths of their files: a Hugging Face config.json wherever it lies; names stay names."""

from __future__ import annotations

import json

import pytest

from autoplan.answers.guide.ask import guided_job
from autoplan.catalog import load_job, load_serving_job
from autoplan.catalog.entries import model
from autoplan.errors import CatalogError, SpecError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
}
#: Where the file lies, seen from the folder of the job, and the name that the model gets.
PATHS = {
    "config.json": "job-config.json",
    "./config.json": "job-config.json",
    "../config.json": "a-folder-with-capitals-config.json",
    "../Llama 3/config.json": "llama-3-config.json",
    "../Llama 3/My_Model.JSON": "llama-3-my_model.json",
    "../Modèle/config.json": "mod-le-config.json",
}
JOBS = {
    "training": "workload: {sequence_length: 1024, global_batch_size: 8}",
    "serving": "stack: vllm\nworkload: {input_tokens: 128, output_tokens: 16}",
}


@pytest.fixture
def folder(tmp_path):
    """A folder whose name has capitals, with a config.json at each of the paths below it."""
    job = tmp_path / "A Folder with Capitals" / "job"
    for path in PATHS:
        file = job / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(CONFIG), encoding="utf-8")
    return job


def job_file(folder, kind, reference):
    """Return a job file that names its model by a path."""
    file = folder / "job.yaml"
    lines = [
        "schema: 1",
        f"kind: {kind}",
        f"model: {json.dumps(reference)}",
        "hardware: 1x-h100-sxm5-80gb",
        JOBS[kind],
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_config_is_read_wherever_it_lies(folder, path, absolute, monkeypatch):
    """Relative or absolute, with capitals or not: in jobs for training and serving, and in a guide."""
    reference = str((folder / path).resolve()) if absolute else path

    jobs = [
        load_job(job_file(folder, "training", reference)),
        load_serving_job(job_file(folder, "serving", reference)),
    ]
    monkeypatch.chdir(folder)
    guided, _ = guided_job(reference, "1x-h100-sxm5-80gb")

    assert {job.model.layers for job in (*jobs, guided)} == {16}
    assert {job.model.name for job in jobs} == {PATHS[path]}


def test_a_name_never_becomes_a_path(folder, monkeypatch):
    """A name without a separator or suffix is one of the catalogue, whatever files there are."""
    monkeypatch.chdir(folder)
    (folder / "mine").write_text(json.dumps(CONFIG), encoding="utf-8")

    for name in ("mine", "config", "..", "My"):
        with pytest.raises(CatalogError, match="no model is called"):
            model(name, folder)
    with pytest.raises(CatalogError, match="not a YAML or JSON file"):
        model("./mine", folder)
    (folder / "other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(SpecError, match="model_type is missing"):
        model("other.json", folder)
