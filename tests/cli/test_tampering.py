"""Tampering with answers of five kinds, each resealed: every one is noticed, or listed as not checked."""

import copy
import json

import pytest

from autoplan import evaluate, load_job, plan
from autoplan.answers.verify import ask as verifying
from autoplan.deadline import Deadline
from autoplan.planning.infeasible.smallest_relaxations import suggested
from autoplan.report.document_fields import plan_document
from autoplan.schema.resolved_job import hashes
from tests.support.quick_cases import slow_after, slow_but
from tests.support.tampering import (
    accounts,
    both,
    change,
    document_of,
    edits_of_leaves,
    is_noticed,
    judged,
    kinds_of_leaves,
    sealed,
    tampered,
)
from tests.support.training_answers import JOBS, answers_in, replanned


@pytest.fixture(autouse=True)
def _planned_once(monkeypatch):
    monkeypatch.setattr(verifying, "_replanned", replanned)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return a function that returns the answer of a kind, and the file of its job."""
    return answers_in(tmp_path_factory.mktemp("answers"))


@pytest.mark.parametrize("kind", JOBS)
def test_the_answers_themselves_are_verified(answers, tmp_path, kind):
    """What nobody edited holds in every claim that matters, for the job of its file."""
    document, job = answers(kind)
    verdict = judged(document, tmp_path, job=job)

    assert verdict.verified, verdict
    assert all(check.finding == "holds" for check in verdict.checks if check.matters)


C, P = ("certificate",), ("front", 0, "predicted")


def row(kind):
    """Return a function that finds the count of a kind of reason in a part of a document."""
    return lambda part: next(r for r in part["rejected"] if r["kind"] == kind)


def count_left(document, more):
    """Count layouts more among those not on the front."""
    row("not on the front")(document)["layouts"] += more


def without(number, *, forged):
    """Return an edit that takes a plan out and adds up its counts; ``forged`` adapts bound and gap too."""

    def edit(document):
        del document["front"][number]
        count_left(document, 1)
        if forged:
            fastest = document["front"][0]["predicted"]["step_seconds"]
            document["certificate"] |= {"best_bound_step_seconds": fastest, "gap": 0.0}

    return edit


def emptied(document):
    """Call a front infeasible, with counts and reasons that go with it."""
    count = len(document["front"])
    document["front"] = []
    count_left(document, count)
    row("not on the front")(document)["reason"] = (
        "fit into memory with some recompute, but none of them satisfies the limits"
    )
    document["certificate"] |= {
        "status": "infeasible",
        "best_bound_step_seconds": None,
        "gap": None,
        "thinning": 0.0,
        "solves": 0,
        "candidates_solved": 0,
    }
    document["reasons"] = ["memory: the layout that needs least needs 100.0 GiB"]


def slower_as_fastest(layout):
    """Return an edit that puts a slower layout, truly priced, in the place of those that beat it."""

    def edit(document):
        job = load_job(edit.job)
        stated = plan_document(job, evaluate(job, layout))
        for stage in stated["predicted"]["memory"]["stages"]:
            del stage["events"]
        one = {key: stated[key] for key in ("layout", "layout_string", "predicted")}
        memory = one["predicted"]["peak_memory_bytes_per_device"]
        kept = [
            p
            for p in document["front"]
            if p["predicted"]["step_seconds"] > one["predicted"]["step_seconds"]
            and p["predicted"]["peak_memory_bytes_per_device"] < memory
        ]
        count_left(document, len(document["front"]) - len(kept) - 1)
        document["front"] = [one, *kept]
        bound = one["predicted"]["step_seconds"]
        document["certificate"] |= {"best_bound_step_seconds": bound, "gap": 0.0}

    return edit


#: Edits of an answer with plans: its first layouts, its certificate, its counts and the facts of its job.
OF_PLANS = {
    "a faster step": change((*P, "step_seconds"), lambda x: x * 0.999),
    "less memory": change((*P, "peak_memory_bytes_per_device"), lambda x: x - 1e6),
    "a component of the step": change((*P, "time", "compute"), lambda x: x * 1.1),
    "a number of one's own": change((*P, "magic"), 1),
    "a number left out": lambda d: d["front"][0]["predicted"].pop("fits"),
    "a layout spelled otherwise": change(("front", 0, "layout_string"), lambda x: f" {x}"),
    "a layout's field": change(("front", 0, "layout", "dp"), 7),
    "a plan twice": lambda d: d["front"].insert(0, d["front"][0]),
    "plans in another order": lambda d: d["front"].reverse(),
    "the fastest plan gone": without(0, forged=False),
    "the fastest plan gone, forged": without(0, forged=True),
    "the smallest plan gone": without(-1, forged=False),
    "called infeasible": emptied,
    "a bound above the fastest step": change((*C, "best_bound_step_seconds"), lambda x: x * 1.01),
    "a bound lowered": change((*C, "best_bound_step_seconds"), lambda x: x * 0.9),
    "a bound lowered, with its gap": both(
        change((*C, "best_bound_step_seconds"), lambda x: x * 0.9), change((*C, "gap"), 0.1)
    ),
    "a gap": change((*C, "gap"), 0.01),
    "no bound": change((*C, "best_bound_step_seconds"), None),
    "a negative bound": change((*C, "best_bound_step_seconds"), -1.0),
    "a larger thinning": change((*C, "thinning"), 0.3),
    "no thinning": change((*C, "thinning"), 0.0),
    "stopped and optimal": change((*C, "stopped"), "interrupted"),
    "feasible and not stopped": change((*C, "status"), "feasible"),
    "infeasible with plans": change((*C, "status"), "infeasible"),
    "an unknown status": change((*C, "status"), "certain"),
    "more layouts covered": change((*C, "layouts_covered"), lambda x: x + 1),
    "more layouts in all": change((*C, "layouts_total"), lambda x: x + 1),
    "fewer choices": change((*C, "candidates"), lambda x: x - 1),
    "more choices solved than there are": change((*C, "candidates_solved"), 10**9),
    "a count as text": change((*C, "layouts_total"), lambda x: f"{x:,}"),
    "a count as a fraction": change((*C, "layouts_total"), float),
    "another job": change((*C, "job_hash"), "sha256:0"),
    "another cost model": change((*C, "cost_model_hash"), "sha256:0"),
    "another version": change((*C, "autoplan_version"), "9.9"),
    "a reason's count": change(("rejected", 0, "layouts"), lambda x: x + 2),
    "a count moved to another reason": both(
        change(("rejected", 0, "layouts"), lambda x: x + 1), lambda d: count_left(d, -1)
    ),
    "a reason's words": change(("rejected", 0, "reason"), "rule broken: it is Tuesday"),
    "a reason's kind": change(("rejected", 0, "kind"), "memory"),
    "a reason left out": lambda d: d["rejected"].pop(0),
    "a reason twice": lambda d: d["rejected"].append(d["rejected"][0]),
    "a reason of one's own": lambda d: d["rejected"].append({"reason": "x", "layouts": 0, "kind": "rule"}),
    "a reason's own key": change(("rejected", 0, "because"), "x"),
    "reasons beside plans": change(("reasons",), ["memory: none"]),
    "a conflict beside plans": change(("conflict",), ["search.recompute allows none"]),
    "the number of parameters": change(("job", "parameters"), lambda x: x * 2),
    "the device": change(("job", "hardware", "device"), "b200"),
    "the nodes": change(("job", "nodes"), lambda x: x + 1),
    "a limit": change(("job", "limits", "step_time_seconds"), 1.0),
    "the memory limit": change(("job", "limits", "memory_limit_bytes_per_device"), lambda x: x / 2),
    "a search key": change(("job", "search", "microbatch_size"), "any"),
    "a price": change(("job", "price"), {"per_device_hour": 1}),
    "choices": change(("job", "choices"), [{"devices": 3, "global_batch_size": 1}]),
    "the objectives": change(("job", "objectives"), ["peak_memory"]),
    "a fact of one's own": change(("job", "fastest"), True),
    "the number of measured numbers": change(("provenance", "kernels", "numbers", "measured"), 10**4),
    "measured on the device": change(("provenance", "kernels", "measured_on_device"), "yes"),
    "a source": change(("provenance", "stack", "sources"), {}),
    "an interval": change(("provenance", "uncertainty", "step_time", "half_width"), 1e-3),
    "a larger batch": change(("resolved", "workload", "global_batch_size"), lambda x: x * 2),
    "a faster device": change(("resolved", "cluster", "node", "fabric", "latency", "value"), lambda x: x / 2),
    "the schema": change(("schema",), 2),
    "an unknown key": change(("remark",), "best ever"),
    "the resolved job's own key": change(("resolved", "remark"), "x"),
    "a plan's own key": change(("front", 0, "remark"), "x"),
}


@pytest.mark.parametrize("name", OF_PLANS)
@pytest.mark.parametrize("kind", slow_after(1, ["two devices", "own rules"]))
def test_tampering_with_plans_is_noticed(answers, tmp_path, kind, name):
    """A claim fails, or the file is refused; the hash of the whole is right."""
    document = tampered(answers(kind)[0], OF_PLANS[name])
    outcome = judged(document, tmp_path)

    assert isinstance(outcome, str) or outcome.outcome == "refuted", outcome
    assert isinstance(outcome, str) or outcome.checks[0].finding == "holds"


#: The edits that only the bounds of all choices can notice, and what they say.
OF_SIXTEEN = {
    "a slower plan called optimal": slower_as_fastest("tp=2,pp=2,dp=4,mbs=1,zero=1"),
    "an emptied front called infeasible": emptied,
    "the fastest plan dropped": without(0, forged=True),
    "a plan in the middle dropped": without(2, forged=False),
    "the smallest plan dropped": without(-1, forged=False),
    "all but the fastest dropped": lambda d: [without(-1, forged=False)(d) for _ in d["front"][1:]],
}


@pytest.mark.parametrize("name", slow_after(1, OF_SIXTEEN))
def test_what_is_missing_on_sixteen_devices_is_noticed(answers, tmp_path, name):
    """No list of layouts is as long; bounds of all choices lead to the layouts that are missing."""
    document, job = answers("sixteen devices")
    edit = OF_SIXTEEN[name]
    edit.job = job
    verdict = judged(tampered(document, edit), tmp_path)
    failed = [check.claim for check in verdict.failed]

    assert any(
        claim.startswith(("no layout dominates a plan", "no layout is feasible")) for claim in failed
    ), failed


@pytest.mark.parametrize("name", slow_after(1, OF_SIXTEEN))
def test_without_time_it_is_not_checked(answers, tmp_path, name):
    """What nobody had time for is listed, and the outcome is not that all is verified."""
    document, job = answers("sixteen devices")
    edit = OF_SIXTEEN[name]
    edit.job = job
    assert not judged(tampered(document, edit), tmp_path, deadline=Deadline(0.0)).verified


OF_INFEASIBLE = {
    "a reason's number": change(("reasons", 0), lambda x: x.replace("needs", "needs about")),
    "a reason of one's own": lambda d: d["reasons"].append("memory: none"),
    "no reason": change(("reasons",), []),
    "another conflict": change(("conflict",), ["it is Tuesday"]),
    "less of the conflict": lambda d: d["conflict"].pop(),
    "a suggestion's edit": change(("suggestions", 0, "edits", 0, "after"), "any"),
    "a suggestion's step": change(("suggestions", 0, "predicted", "step_seconds"), lambda x: x * 0.9),
    "a suggestion's layout": change(("suggestions", 0, "layout", "tp"), 4),
    "a suggestion left out": lambda d: d["suggestions"].pop(0),
    "a suggestion twice": lambda d: d["suggestions"].append(d["suggestions"][0]),
    "a suggestion's devices": change(("suggestions", 0, "devices"), 64),
    "a bound": change((*C, "best_bound_step_seconds"), 1.0),
    "a gap": change((*C, "gap"), 0.0),
    "solves": change((*C, "solves"), 3),
    "called optimal": change((*C, "status"), "optimal"),
    "fewer layouts": change((*C, "layouts_covered"), lambda x: x - 1),
    "what does not fit": change(("rejected", -1, "layouts"), lambda x: x + 1),
}


@pytest.mark.parametrize("name", OF_INFEASIBLE)
def test_tampering_where_nothing_is_feasible_is_noticed(answers, tmp_path, name):
    """Reasons, conflict and suggestions are those of planning the job again."""
    outcome = judged(tampered(answers("infeasible")[0], OF_INFEASIBLE[name]), tmp_path)

    assert isinstance(outcome, str) or outcome.outcome == "refuted", outcome


@pytest.mark.parametrize("kind", slow_but(["two devices", "infeasible"], JOBS))
def test_tampering_with_any_leaf_is_noticed_or_listed(answers, tmp_path, kind):
    """A number, a text or a flag anywhere: refuted, refused, or listed as not checked."""
    document, _ = answers(kind)
    edits = edits_of_leaves(document, 14, seed=3)
    missed = [
        name for name, path, edit in edits if not is_noticed(judged(tampered(document, edit), tmp_path), path)
    ]

    assert len(edits) >= 10
    assert missed == []


#: What no check can tell: how the search went.
OF_THE_SEARCH = {"certificate.candidates_solved", "certificate.solver", "certificate.solves"}


@pytest.mark.parametrize(("kind", "every"), [("two devices", 12), ("infeasible", 1)])
def test_each_kind_of_leaf_is_checked_or_listed(answers, tmp_path, kind, every):
    """Of certificate and rejections all, of the plans a part: no leaf is neither, and few are listed."""
    document, _ = answers(kind)
    kinds = kinds_of_leaves(document)
    few = {
        kind: kinds[kind] for n, kind in enumerate(kinds) if not kind.startswith("front") or n % every == 0
    }
    found = accounts(document, few, tmp_path, seed=1)
    listed = {kind for kind, account in found.items() if account == "listed"}

    assert [kind for kind, account in found.items() if account == "neither"] == []
    listed_parameters = {kind for kind in listed if kind.startswith("certificate.solver_parameters.")}
    # Where nothing is feasible, nothing was solved, and the numbers of it are checked to be none.
    assert listed - listed_parameters == OF_THE_SEARCH - {k for k in OF_THE_SEARCH if found[k] == "checked"}
    assert listed_parameters


def test_an_optimal_answer_called_feasible_is_noticed(answers, tmp_path):
    """It claims less than holds, so nothing in it is false; that nothing is better is found and said."""
    document, _ = answers("two devices")
    far = 1.0 - 1e-3 / document["front"][0]["predicted"]["step_seconds"]
    for more in ({}, {"gap": 1.0, "fastest_gap": far, "best_bound_step_seconds": 1e-3}):
        weaker = change(C, lambda x, more=more: {**x, "status": "feasible", "stopped": "interrupted", **more})
        verdict = judged(tampered(document, weaker), tmp_path)
        (check,) = verdict.unchecked

        assert verdict.outcome == "not all checked"
        assert "no layout is better than its plans: status feasible says less" in check.details[0]


def test_a_stopped_search_that_missed_a_plan_is_verified_for_what_it_is(answers, tmp_path):
    """A layout that is better is named, and nothing that the answer says is false."""
    document, _ = answers("two devices")
    stopped = change(C, lambda x: {**x, "status": "feasible", "stopped": "interrupted", "gap": 0.9})
    verdict = judged(tampered(document, both(without(-1, forged=False), stopped)), tmp_path)
    (check,) = (check for check in verdict.checks if "may have left better" in check.claim)

    assert (verdict.outcome, check.finding) == ("verified", "holds")
    assert check.details[0].startswith("better is ")


@pytest.mark.parametrize("number", slow_after(2, range(1, 12)))
def test_a_plan_left_out_is_noticed_or_as_good_as_others(answers, tmp_path, number):
    """Within the thinning a plan may be left out, which the verdict says; all others are missed."""
    document, _ = answers("two devices")
    verdict = judged(tampered(document, without(number, forged=False)), tmp_path)
    said = [detail for check in verdict.checks if check.finding == "not checked" for detail in check.details]

    assert verdict.outcome == "refuted" or (
        "front: a plan that others are as good as within the thinning may have been left out" in said
    )


def test_a_forged_question_is_noticed_by_its_job(answers, tmp_path):
    """Whoever forges the hashes of the job as well answers another question: ``job`` tells."""
    from autoplan.schema.resolved_job import job_from

    document, job = answers("two devices")
    forged = copy.deepcopy(document)
    forged["resolved"]["model"]["title"] = "Llama of another name"
    forged["certificate"]["job_hash"] = hashes(job_from(forged["resolved"], name="forged"))[0]
    verdict = judged(sealed(forged), tmp_path)

    assert "the question is that of the job file" in [
        c.claim for c in verdict.checks if c.finding == "not checked"
    ]
    assert judged(sealed(forged), tmp_path, job=job).outcome == "refuted"


def test_any_edit_is_noticed_by_the_hash(answers, tmp_path):
    """Where the hash is not made anew, even what leaves no trace is noticed."""
    document = copy.deepcopy(answers("two devices")[0])
    document["certificate"]["solves"] += 1

    assert [check.claim for check in judged(document, tmp_path).failed] == [
        "nothing in the file was edited: it has the hash that it states"
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            '{"certificate": {}, "certificate": {}, "job": {"a": 1, "a": 2}}',
            "$.certificate: this key stands twice",
        ),
        ('{"certificate": {}, "job": {"a": 1, "a": 2}}', "$.job.a: this key stands twice"),
        ('{"certificate": ' + "[" * 500 + "]" * 500 + "}", "recursion limit"),
        ('{"certificate": {"gap": 1e999}}', "1e999 is too large for a number"),
        ('{"certificate": {"gap": ' + "9" * 5000 + "}}", "not JSON"),
        ('{"certificate": {"gap": Infinity}}', "Infinity is not a JSON number"),
        ('{"certificate": {"solver": "\\ud800"}}', "Invalid JSON"),
        ("\x00", "not JSON"),
    ],
)
def test_what_no_answer_has_is_refused(tmp_path, text, says):
    """Keys twice, depth, numbers that JSON has not: what is wrong, and where."""
    file = tmp_path / "answer.json"
    file.write_text(text)
    outcome = judged_file(file)

    assert says in outcome


def judged_file(file):
    """Return what the reader says against a file."""
    from autoplan.errors import AutoplanError

    with pytest.raises(AutoplanError) as raised:
        verifying.verify(file)
    return str(raised.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """A file that is not UTF-8 is named."""
    file = tmp_path / "answer.json"
    file.write_bytes(b'{"certificate": "\xff\xfe"}')
    assert "is not UTF-8 text" in judged_file(file)


def test_all_that_is_wrong_is_said_at_once(answers, tmp_path):
    """Unknown keys and wrong types, each with its place."""
    document = copy.deepcopy(answers("two devices")[0])
    document["remark"] = 1
    document["certificate"]["solves"] = "many"
    document["rejected"][0]["layouts"] = 1.5
    outcome = judged(sealed(document), tmp_path)

    assert all(place in outcome for place in ("$.remark", "$.certificate.solves", "$.rejected[0].layouts"))


def test_two_answers_are_compared_field_by_field(answers, run, tmp_path):
    """Exit code 0 for the same answer, 1 with the fields for another one."""
    document, _ = answers("two devices")
    one, same, other = (tmp_path / name for name in ("one.json", "same.json", "other.json"))
    one.write_text(json.dumps(document))
    same.write_text(json.dumps(document, indent=1, sort_keys=True))
    other.write_text(json.dumps(tampered(document, change((*C, "solves"), lambda x: x + 1))))

    assert run("verify", one, "--against", same).exit_code == 0
    done = run("verify", one, "--against", other)
    assert done.exit_code == 1
    assert "$.certificate.solves: " in done.stdout
    assert "different: " in done.stdout
    assert run("verify", one, "--against", tmp_path / "none.json").exit_code == 2


def test_an_answer_of_python_states_no_conflicts(tmp_path):
    """``plan`` looks for no conflicts: that they are missing is listed as not checked, not as false."""
    job = tmp_path / "job.yaml"
    job.write_text(
        "{kind: training, model: gpt2, hardware: 2x-rtx3090, devices: 1, stack: fsdp2,"
        " workload: {sequence_length: 512, global_batch_size: 1},"
        " limits: {peak_memory: 1 MiB, step_time: 1 us}}"
    )
    front = plan(job)
    verdict = judged(document_of(front), tmp_path)

    assert len(suggested(front).further_conflicts) == 1
    assert verdict.outcome == "not all checked"
    assert [check.details[0] for check in verdict.unchecked] == [
        "conflict: none is stated, and planned again there is one"
    ]
