"""What is suggested for cards that a job does not fit: cards that one adds to, and steps of which batch."""

import pytest

import autoplan
from autoplan.planning.infeasible.smallest_relaxations import suggested


def suggestion_of(reference, kind):
    """Return the edits of the suggestion of this kind, by key, and its plan."""
    front = suggested(autoplan.plan(reference))
    found = next(x for x in front.suggestions if x.kind == kind)
    return {edit.key: edit.after for edit in found.edits}, found.plan


@pytest.mark.parametrize(
    ("hardware", "larger", "devices"),
    [("4x-rtx3090", "4x-a100-pcie-40gb", 4), ("g5.12xlarge", "aws-g6e-12xlarge", 4)],
)
def test_larger_devices_are_cards_rather_than_a_rack(hardware, larger, devices):
    """As many cards of the smallest kind that is large enough, of the provider whose machine it is."""
    line = f"--model mistral-7b-v0.3 --hardware {hardware} --task full"
    edits, plan = suggestion_of(line, "larger devices")

    assert edits == {"hardware": larger}
    assert plan.layout.devices == devices


@pytest.mark.parametrize(
    ("options", "kind", "edits"),
    [
        (
            "--model llama3.1-70b --hardware 2x-rtx-6000-ada --task train --batch 32 --program accelerate",
            "low-rank adapters on a quantised base",
            {"program": "usual", "adapters": "{rank: 16, base: nf4}"},
        ),
        (
            "--model llama3.1-70b --hardware 2x-h100-pcie --rl dpo --program trainer --optimizer paged-adamw",
            "low-rank adapters on a quantised base",
            {"adapters": "{rank: 16, base: nf4}"},
        ),
        (
            "--model qwen3-32b --hardware 1x-rtx4090 --task train --sequence-length 1024 --rl simpo",
            "larger devices, and low-rank adapters on a quantised base",
            {"hardware": "1x-rtx-5090", "adapters": "{rank: 16, base: nf4}"},
        ),
    ],
    ids=["a program without adapters", "pages beyond the host", "no card is large enough by itself"],
)
def test_whoever_cannot_train_all_of_a_model_is_told_how_to_adapt_it(options, kind, edits):
    """Adapters on a base of 4 bits are suggested by a program that has them, on larger cards where needed."""
    assert suggestion_of(options, kind)[0] == edits


def test_a_program_without_a_recipe_is_not_suggested():
    """The recipe of torchtune is of Mistral 7B's first version alone, which fits with updates in backward."""
    kinds = {}
    for model in ("mistral-7b", "mistral-7b-v0.3"):
        reference = f"--model {model} --hardware 1x-rtx4090 --task full --sequence-length 1024"
        front = suggested(autoplan.plan(reference))
        kinds[model] = {suggestion.kind for suggestion in front.suggestions}

    assert "updates in backward" in kinds["mistral-7b"]
    assert "updates in backward" not in kinds["mistral-7b-v0.3"]
