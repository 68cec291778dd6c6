"""Rules of the user's own that are wrong, in a file with other mistakes, and what is said of each."""

import pytest

#: Lists of a rule, in the order of the table of recompute modes.
LISTED = (
    "layers, selective, layernorm, moe_act, layernorm_moe_act, mla_up_proj, mla_up_proj_mlp, mlp, moe,"
    " layernorm_moe, full"
)
JOB = """kind: training
model: llama3.2-1b
hardware: dgx-a100-80gb
devices: 2
workload: {sequence_length: 4096, global_batch_size: 8}
"""


@pytest.fixture
def told(run, tmp_path):
    """Return a function that plans a job file and returns the lines of its refusal, as (line, path, text)."""

    def plan(text):
        file = tmp_path / "job.yaml"
        file.write_text(text, encoding="utf-8")
        done = run("plan", file)
        assert done.exit_code == 2, done.stdout
        assert done.stdout == ""
        said = done.stderr.splitlines()
        rows = [line.split(f"{file}:", 1)[1] for line in said if f"{file}:" in line]
        return [tuple(part.strip() for part in row.split(":", 2)) for row in rows]

    return plan


def test_a_rule_that_cannot_be_read_hides_no_other_mistake(told):
    """A wrong model, batches, an objective without its price and two rules: all at once, by line."""
    text = (
        JOB.replace("llama3.2-1b", "llama3.2-1bb").replace("size: 8", "size: {from: 8, to: 4}")
        + "rules:\n  - tpp <= 4\n  - tp <= 8 8\nobjectives: [cost]\nlimits: {step_tim: 3 s}\n"
    )
    found = told(text)

    assert [(line, path) for line, path, _ in found] == [
        ("2", "$.model"),
        ("5", "$.workload.global_batch_size"),
        ("7", "$.rules[0]"),
        ("8", "$.rules[1]"),
        ("9", "$.objectives"),
        ("10", "$.limits.step_tim"),
    ]
    assert "did you mean llama3.2-1b" in found[0][2]
    assert found[1][2].startswith("the range has 0 batches")
    assert found[2][2] == "column 1: unknown name 'tpp' - did you mean 'tp'?"
    assert found[3][2] == "column 9: nothing is expected after the relation before '8'"
    assert found[4][2].startswith("cost needs a price")
    assert found[5][2] == "unknown key 'step_tim': did you mean 'step_time'?"


def test_what_is_wrong_brings_no_complaint_about_what_needs_it(told):
    """A price that cannot be read is no missing price, and a missing model is not looked up."""
    text = JOB.replace("model: llama3.2-1b\n", "") + "price: {per_device_hour: 2}\nobjectives: [cost]\n"

    assert [path for _, path, _ in told(text)] == ["$.model", "$.price.date"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("layer[0] <= 3", "column 1: unknown list 'layer' - did you mean 'layers'?"),
        ("stages[0] <= 3", f"column 1: unknown list 'stages': known are {LISTED}"),
        ("tp[0] <= 3", "column 1: tp is the same for all stages: write it without brackets"),
        (
            "recompute[0] == 1",
            "column 1: recompute has two numbers for each stage: write full[0] or selective[0]",
        ),
        ("layer[0] is uniform", "column 1: unknown list 'layer' - did you mean 'layers'?"),
        (
            "schedule == layer[0] or tpp < 2",
            (
                "column 13: unknown list 'layer' - did you mean 'layers'?; "
                "column 25: unknown name 'tpp' - did you mean 'tp'?"
            ),
        ),
        ("len(layers) <= 3", "column 1: unknown function 'len': known are sum, min, max"),
        (
            "sum(layer) <= 3",
            f"column 5: sum takes one of {LISTED} - did you mean 'layers'?",
        ),
        (
            "layers[first] <= tpp",
            (
                "column 8: a stage is needed: 0 for the first, -1 for the last, or each; "
                "column 18: unknown name 'tpp' - did you mean 'tp'?"
            ),
        ),
        ("tpp in {1, 2, 4}", "column 1: unknown name 'tpp' - did you mean 'tp'?"),
        ("layer[0 <= 3", "column 6: '[' is not closed"),
    ],
)
def test_each_mistake_of_a_rule_is_told_once(told, rule, said):
    """One mistake, one complaint, at its column; the rest of the rule is still read."""
    assert told(f'{JOB}rules: ["{rule}"]\n') == [("6", "$.rules[0]", said)]
