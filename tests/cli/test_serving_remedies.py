"""Serving jobs that do not fit: several keys changed at once, and machines that people have."""

from __future__ import annotations

import pytest

import autoplan
from autoplan.answers.capacity.ask import capacity
from autoplan.planning.serving_plans import applied_change

SERVE = "--task serve --concurrency 8 --input-tokens 512 --output-tokens 256"


def test_narrower_weights_on_a_larger_machine_are_one_change(tmp_path):
    """70B fits one 24 GB card in no format: two hold 4 bits, and the file that is written plans."""
    front = autoplan.plan(f"--model llama3.1-70b --hardware 1x-rtx4090 {SERVE}")

    both = [change for change in front.changes if len(change.edits) > 1]
    assert [dict(change.edits) for change in both][:1] == [
        {"hardware": "2x-rtx4090", "precision.weights": "int4-awq"}
    ]
    assert not any(change.key == "precision.weights" for change in front.changes)
    number = front.changes.index(both[0]) + 1
    file = tmp_path / "new.yaml"
    file.write_text(applied_change(front, number, tmp_path), encoding="utf-8")
    assert autoplan.plan(file).plans


def test_capacity_names_the_machine_and_the_format():
    """What starts on more devices is a machine that has them, as in a plan."""
    answer = capacity(f"--model llama3.1-70b --hardware 1x-rtx4090 {SERVE}")

    starting = {knob.edits for knob in answer.knobs if knob.fits}
    assert "hardware: 2x-rtx4090; precision.weights: int4-awq" in starting
    assert not any(edits.startswith("devices") for edits in starting)


@pytest.mark.parametrize("hardware", ["1x-mi300x", "1x-h100-pcie-80gb"])
def test_the_assumed_engine_of_any_maker_is_written(hardware):
    """V1 of vLLM on ROCm has the arguments of V1."""
    reference = f"--model llama3.1-8b --hardware {hardware} {SERVE}"

    emission = autoplan.emit(autoplan.plan(reference), "vllm")
    assert "vllm serve meta-llama/Llama-3.1-8B" in emission.files[0].text
