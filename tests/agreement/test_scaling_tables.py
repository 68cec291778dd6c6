"""Scaling tables of saved answers: each row is derived again, and fewer devices are shown not to do."""

import json

import pytest

from autoplan.planning.serving_plans import plan_serving
from autoplan.report.serving.serving_document import serving_front_document
from tests.support.serving_jobs import serving_job
from tests.support.tampering import change, judged, tampered


@pytest.fixture(scope="module")
def table():
    """Return a job of two loads, and its answer as a document: one device, and two."""
    job = serving_job(
        "llama3.1-8b",
        devices=2,
        stack="vllm@0.24",
        workload={"input_tokens": 1024, "output_tokens": 256},
        scaling={"request_rate": (5.0, 25.0)},
        limits={"time_per_output_token": 0.016},
        search={"max_num_seqs": 64, "max_num_batched_tokens": 8192, "tensor_parallel": 1},
    )
    return job, json.loads(json.dumps(serving_front_document(plan_serving(job))))


@pytest.mark.slow
def test_a_scaling_table_is_verified(table, tmp_path):
    """Every row has the fewest devices, and the front is that of the largest load."""
    job, document = table

    assert [row["devices"] for row in document["scaling"]] == [1, 2]
    verdict = judged(document, tmp_path, job=job)
    assert verdict.outcome == "verified", [check for check in verdict.checks if check.finding != "holds"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "key", "value"),
    [
        (0, "devices", 2),
        (1, "devices", None),
        (1, "output_tokens_per_second", 1e6),
        (0, "request_rate", 6.0),
        (0, "engines", []),
    ],
)
def test_an_edited_row_is_refuted(table, tmp_path, row, key, value):
    """More devices than needed, none where some do, other figures: each is noticed."""
    job, document = table
    edited = tampered(document, change(("scaling", row, key), value))

    assert judged(edited, tmp_path, job=job).outcome == "refuted", (row, key)
