"""What a message suggests for a name that no entry has."""

import pytest

from autoplan import AutoplanError, load_job
from autoplan.catalog.entries import device

JOB = (
    "kind: {kind}\nmodel: {model}\nhardware: {hardware}\n{rest}"
    "workload: {{sequence_length: 8, global_batch_size: 1}}"
)


def message(tmp_path, **fields):
    """Return what is said against a job."""
    file = tmp_path / "job.yaml"
    told = {"kind": "training", "model": "gpt2", "hardware": "2x-rtx3090", "rest": "", **fields}
    file.write_text(JOB.format(**told), encoding="utf-8")
    with pytest.raises(AutoplanError) as raised:
        load_job(file)
    return str(raised.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "llama3-8"}, "did you mean llama3-8b?"),
        ({"hardware": "rtx3090"}, "8x-rtx-3090; the catalogue also has 2x-rtx3090, 2x-rtx3090-nvlink"),
        ({"hardware": "DGX-H10"}, "did you mean dgx-h100"),
        ({"rest": "stack: megatron-cor\n"}, "did you mean megatron-core or megatron-core-graphs?"),
        ({"kind": "inference"}, "'inference' is neither training nor serving"),
    ],
)
def test_names_that_a_word_is_a_part_of_come_first(tmp_path, fields, said):
    """A name cut short or in capitals leads to the entries it is a part of, not to ones spelt alike."""
    assert said in message(tmp_path, **fields)


def test_a_device_without_its_form_leads_to_its_forms():
    """``a100`` is no a10: the forms of the A100 are named."""
    with pytest.raises(AutoplanError, match=r"did you mean a100-\S+ or a100-\S+"):
        device("a100")
