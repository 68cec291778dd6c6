"""Tampering with every kind of leaf of answers of ten kinds, training and serving.

Whoever tampers makes the hash of the whole anew. All is noticed, or listed as not checked.
"""

import json

import pytest

from autoplan.answers.verify import ask as verifying
from autoplan.planning.serving_plans import plan_serving
from autoplan.report.serving.serving_document import serving_front_document
from tests.support.serving_answers import JOBS as SERVING_JOBS
from tests.support.serving_answers import job_of
from tests.support.tampering import accounts, edits_of_leaves, is_noticed, judged, kinds_of_leaves, tampered
from tests.support.training_answers import JOBS, answers_in, replanned


@pytest.fixture(autouse=True)
def _planned_once(monkeypatch):
    monkeypatch.setattr(verifying, "_replanned", replanned)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return a function that returns the answer of a kind, and the file of its job."""
    return answers_in(tmp_path_factory.mktemp("answers"))


#: What may be listed as not checked; the cost model's hash where it is another one than here.
LISTED = ("solver", "solver_parameters", "solves", "candidates_solved", "dominated", "excluded")


@pytest.fixture(scope="module")
def served():
    """Return a function that gives the document of the answer to a serving job, planned once."""
    known = {}

    def answer(kind):
        if kind not in known:
            known[kind] = json.loads(json.dumps(serving_front_document(plan_serving(job_of(kind)))))
        return known[kind]

    return answer


def missed_of(document, count, seed, folder):
    """Return how many leaves were edited, and the edits that were neither noticed nor listed."""
    edits = edits_of_leaves(document, count, seed)
    missed = [
        name for name, path, edit in edits if not is_noticed(judged(tampered(document, edit), folder), path)
    ]
    return len(edits), missed


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("kind", JOBS)
def test_tampering_with_every_leaf_is_noticed_or_listed(answers, tmp_path, kind, seed):
    """Some thousands of edits: each number, text and flag, by a value of its type or of another."""
    edited, missed = missed_of(answers(kind)[0], 200, seed, tmp_path)

    assert edited > 50
    assert missed == []


@pytest.mark.parametrize("kind", SERVING_JOBS)
def test_tampering_with_every_leaf_of_a_serving_answer_is_noticed_or_listed(served, tmp_path, kind):
    """Three hundred edits of five answers."""
    edited, missed = missed_of(served(kind), 200, 0, tmp_path)

    assert edited >= 60
    assert missed == []


@pytest.mark.parametrize("kind", [*JOBS, *(f"serving {kind}" for kind in SERVING_JOBS)])
def test_each_kind_of_leaf_is_checked_or_listed(answers, served, tmp_path, kind):
    """Of certificate, rejections and plans every kind of leaf: none is neither, and few are listed."""
    document = served(kind[8:]) if kind.startswith("serving ") else answers(kind)[0]
    found = accounts(document, kinds_of_leaves(document), tmp_path, 0)
    listed = {name for name, account in found.items() if account == "listed"} - {
        "certificate.cost_model_hash"
    }

    assert [name for name, account in found.items() if account == "neither"] == []
    assert {name.split("certificate.")[1].split(".")[0].split("[")[0] for name in listed} <= set(LISTED)
