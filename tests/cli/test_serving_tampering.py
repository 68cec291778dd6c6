"""Tampering with saved serving answers: each is refused, refuted, or listed as not checked."""

import copy
import json
from dataclasses import replace

import pytest

from autoplan.deadline import Deadline
from autoplan.planning.serving_plans import evaluate_serving, plan_serving
from autoplan.report.serving.serving_document import serving_front_document, serving_plan_document
from autoplan.results.serving.serving_front import ServingFront
from tests.support.quick_cases import slow_after, slow_but
from tests.support.serving_answers import JOBS, job_of
from tests.support.tampering import (
    accounts,
    change,
    edits_of_leaves,
    is_noticed,
    judged,
    kinds_of_leaves,
    sealed,
    tampered,
)

#: What no check can tell: how the search went. Numbers of options are checked to be no more than there are.
OF_THE_SEARCH = {f"certificate.{name}" for name in ("solves", "dominated", "excluded", "solver")}
F = ("front", 0)
P = (*F, "predicted")
C = ("certificate",)


@pytest.fixture(scope="module")
def answers():
    """Return a function that gives the document of a job's answer, planned once."""
    known = {}

    def answer(kind):
        if kind not in known:
            known[kind] = json.loads(json.dumps(serving_front_document(plan_serving(job_of(kind)))))
        return copy.deepcopy(known[kind])

    return answer


@pytest.mark.parametrize("kind", JOBS)
def test_what_plan_writes_is_verified(answers, tmp_path, kind):
    """Every claim that matters holds, and the question is that of the job."""
    verdict = judged(answers(kind), tmp_path, job=job_of(kind))

    assert verdict.outcome == "verified", [check for check in verdict.checks if check.finding != "holds"]
    assert all(check.finding == "holds" for check in verdict.checks if check.matters)


def without_plan(number):
    """Return an edit that drops a plan."""
    return lambda document: document["front"].pop(number)


def emptied(document):
    """Call an answer with plans infeasible."""
    document["front"] = []
    document["certificate"]["status"] = "infeasible"
    document["reasons"] = ["no plan holds these limits together: time_per_output_token 12.0 ms"]


def worse_plan_alone(document):
    """Put the honest prediction of a worse layout in the place of the front."""
    job, plan = evaluate_serving(job_of("two devices"), "tp=2,replicas=1,seqs=16,tokens=2048")
    other = json.loads(json.dumps(serving_plan_document(job, plan)))
    keys = ("layout", "layout_string", "predicted", "engines", "broken_limits")
    document["front"] = [{key: other[key] for key in keys}]


EDITS = {
    "time per token": change((*P, "time_per_output_token_seconds"), lambda x: x * 0.95),
    "time to first token": change((*P, "time_to_first_token_seconds"), lambda x: x * 0.95),
    "the end of an interval": change((*P, "output_tokens_per_second_high"), lambda x: x * 1.1),
    "what an interval rests on": change((*P, "interval_reasons"), []),
    "throughput": change((*P, "output_tokens_per_second"), lambda x: x * 1.05),
    "memory": change((*P, "memory", 0, "weights"), lambda x: x / 2),
    "a percentile": change((*P, "percentiles", "time_to_first_token_seconds", "p99"), lambda x: x / 2),
    "the seed of a simulation": change((*P, "simulation", "seed"), 7),
    "the layout string": change((*F, "layout_string"), lambda x: x.replace("tp=2", "tp=1")),
    "sizes of a step": change((*F, "layout_string"), lambda x: x.replace("tokens=2048", "tokens=4096")),
    "an unknown layout": change((*F, "layout_string"), "tp=7"),
    "a layout value": change((*F, "layout", "tp"), 8),
    "the share of the load": change((*F, "engines", 0, "share_of_load"), 0.5),
    "a broken limit": change((*F, "broken_limits"), ["goodput is 0 % in a simulation, under 90 %"]),
    "a worse plan alone": worse_plan_alone,
    "the first plan dropped": without_plan(0),
    "the last plan dropped": without_plan(-1),
    "a plan twice": lambda d: d["front"].append(d["front"][0]),
    "called infeasible": emptied,
    "called feasible": change((*C, "status"), "feasible"),
    "the thinning": change((*C, "thinning"), 0.5),
    "units": change((*C, "units"), lambda x: x + 1),
    "options": change((*C, "options"), lambda x: x - 1),
    "all engines": change((*C, "units_total"), lambda x: x + 1),
    "an objective": change((*C, "objectives"), ["throughput"]),
    "a simulated limit": change((*C, "simulated"), []),
    "stopped": change((*C, "stopped"), "interrupted"),
    "the hash of the job": change((*C, "job_hash"), "sha256:0"),
    "the hash of the cost model": change((*C, "cost_model_hash"), "sha256:0"),
    "a rejected engine": lambda d: d["rejected"].append({"reason": "it is Tuesday", "units": 1}),
    "reasons beside plans": change(("reasons",), ["no engine starts"]),
    "the engine's version": change(("job", "engine_version"), "0.33"),
    "the device": change(("job", "hardware", "device"), "b200-sxm-180gb"),
    "a source": change(("provenance", "engine", "sources"), {}),
    "another load": change(("resolved", "workload", "concurrency"), 12),
    "a looser limit": change(("resolved", "limits", "time_per_output_token"), 0.5),
    "faster memory": change(
        ("resolved", "cluster", "device", "memory", "bandwidth", "value"), lambda x: 2 * x
    ),
    "an unknown key": change(("remark",), "best ever"),
    "a wrong type": change((*C, "solves"), "many"),
}


@pytest.mark.parametrize("name", EDITS)
def test_tampering_is_noticed(answers, tmp_path, name):
    """A claim fails, the file is refused, or what could not be checked is said; never verified."""
    outcome = judged(tampered(answers("two devices"), EDITS[name]), tmp_path)

    if name == "the hash of the cost model":
        assert outcome.outcome == "not all checked"
    else:
        assert isinstance(outcome, str) or outcome.outcome == "refuted", outcome


OF_INFEASIBLE = {
    "a reason": change(("reasons", 0), "it is Tuesday"),
    "no reason": change(("reasons",), []),
    "another conflict": change(("conflict",), ["request_latency"]),
    "a change's value": change(("changes", 0, "value"), "2 ms"),
    "a change's plan": change(("changes", 0, "plan", "predicted", "devices"), 1),
    "a change left out": lambda d: d["changes"].pop(0),
    "called optimal": change((*C, "status"), "optimal"),
}


@pytest.mark.parametrize("name", OF_INFEASIBLE)
def test_tampering_where_nothing_is_feasible_is_noticed(answers, tmp_path, name):
    """Reasons, conflict and changes are those of planning the job again."""
    outcome = judged(tampered(answers("infeasible"), OF_INFEASIBLE[name]), tmp_path)

    assert isinstance(outcome, str) or outcome.outcome == "refuted", outcome


@pytest.mark.parametrize(("kind", "every"), [("two devices", 12)])
def test_each_kind_of_leaf_is_checked_or_listed(answers, tmp_path, kind, every):
    """Of certificate and rejections all, of the plans a part: no leaf is neither, and few are listed."""
    document = answers(kind)
    kinds = kinds_of_leaves(document)
    few = {
        kind: kinds[kind] for n, kind in enumerate(kinds) if not kind.startswith("front") or n % every == 0
    }
    found = accounts(document, few, tmp_path, seed=1)
    listed = {kind for kind, account in found.items() if account == "listed"}

    assert [kind for kind, account in found.items() if account == "neither"] == []
    assert {kind for kind in listed if "solver_parameters" not in kind} <= {
        *OF_THE_SEARCH,
        "certificate.cost_model_hash",
    }


@pytest.mark.parametrize("kind", ["two devices", "infeasible"])
def test_a_proven_answer_called_feasible_is_noticed(answers, tmp_path, kind):
    """It claims less than holds, so nothing in it is false; that nothing is better is found and said."""
    weaker = change(C, lambda x: {**x, "status": "feasible", "stopped": "interrupted"})
    verdict = judged(tampered(answers(kind), weaker), tmp_path)

    assert verdict.outcome == "not all checked"
    assert "none is better: status feasible says less than holds" in verdict.unchecked[0].details[0]


def test_a_stopped_search_that_missed_a_plan_is_verified_for_what_it_is(answers, tmp_path):
    """A choice of engines that is better is named, and nothing that the answer says is false."""
    document = answers("two devices")
    document["front"].pop(0)
    document["certificate"] |= {"status": "feasible", "stopped": "interrupted"}
    verdict = judged(sealed(document), tmp_path)
    (check,) = (check for check in verdict.checks if "may have left better" in check.claim)

    assert (verdict.outcome, check.finding) == ("verified", "holds")
    assert check.details[0].endswith("is better, and holds every limit")


def test_reasons_beside_the_plans_of_one_number_of_devices_are_refuted(answers, tmp_path):
    """An answer with plans has no reasons, those for each number of devices neither."""
    forged = change(("answers", 0, "reasons"), ["it is Tuesday"])

    assert judged(tampered(answers("several"), forged), tmp_path).outcome == "refuted"


def test_more_options_gone_than_there_are_is_refuted(answers, tmp_path):
    """What is dominated and what a simulation excluded are parts of the options."""
    forged = change(C, lambda x: {**x, "dominated": x["options"], "excluded": 1})

    assert judged(tampered(answers("two devices"), forged), tmp_path).outcome == "refuted"


@pytest.mark.parametrize("kind", slow_but(["two devices"], JOBS))
def test_tampering_with_any_leaf_is_noticed_or_listed(answers, tmp_path, kind):
    """A number, a text or a flag anywhere."""
    edits = edits_of_leaves(answers(kind), 20, seed=5)
    document = answers(kind)
    missed = [
        name for name, path, edit in edits if not is_noticed(judged(tampered(document, edit), tmp_path), path)
    ]

    assert len(edits) >= 10
    assert missed == []


@pytest.mark.parametrize("name", slow_after(1, ["a dropped plan", "called infeasible"]))
def test_on_sixteen_devices_what_is_missing_is_noticed(answers, tmp_path, name):
    """All sums of engines are formed where bounds do not do."""
    document = answers("sixteen devices")
    edit = emptied if name == "called infeasible" else without_plan(0)
    claims = [check.claim for check in judged(tampered(document, edit), tmp_path).failed]

    assert any(claim.startswith("no choice of engines on 16 devices is better") for claim in claims), claims


def test_without_time_it_is_not_checked(answers, tmp_path):
    """What nobody had time for is listed, and the outcome is not that all is verified."""
    outcome = judged(answers("two devices"), tmp_path, deadline=Deadline(0.0))

    assert outcome.outcome == "not all checked"


def test_a_hash_that_is_not_made_anew_is_noticed(answers, tmp_path):
    """Even what leaves no trace."""
    document = answers("two devices")
    document["certificate"]["solves"] += 1

    assert [check.claim for check in judged(document, tmp_path).failed] == [
        "nothing in the file was edited: it has the hash that it states"
    ]


def test_an_answer_to_another_job_is_noticed(answers, tmp_path):
    """``job`` pins the question."""
    other = replace(job_of("two devices"), objectives=("throughput",))

    assert judged(sealed(answers("two devices")), tmp_path, job=other).outcome == "refuted"


def test_exit_codes_tell_the_outcomes_apart(answers, tmp_path, run):
    """0: verified; 1: refuted; 3: not all checked; 2: no answer."""
    found = []
    for edit in (
        lambda _: None,
        EDITS["throughput"],
        EDITS["the hash of the cost model"],
        EDITS["a wrong type"],
    ):
        file = tmp_path / "answer.json"
        file.write_text(json.dumps(tampered(answers("two devices"), edit)))
        found.append(run("verify", file).exit_code)

    assert found == [0, 1, 3, 2]


def test_a_front_is_of_the_class_that_is_documented(answers):
    """The document of a front is what ``verify`` reads: sealed, with the resolved job."""
    assert {"resolved", "answer_hash"} <= answers("two devices").keys()
    assert isinstance(plan_serving(job_of("infeasible")), ServingFront)
