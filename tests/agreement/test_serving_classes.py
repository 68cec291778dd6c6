"""Plans for several classes of requests against brute force, and limits of single classes (S2)."""

import json
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import engine_kernels_for, kernels_for
from autoplan.costs.serving.served_layouts import ServingCosts
from autoplan.planning.serving_plans import evaluate_serving, plan_serving
from autoplan.report.serving.serving_document import serving_front_document
from autoplan.search.serving.engine_allocation import AllocationProblem
from autoplan.search.serving.engine_options import WHOLE
from autoplan.search.serving.serving_search import ServingSearch
from autoplan.verification.serving.better_choices import SetTable, class_sums
from tests.support.engine_choices import Engine, front_by_force, front_by_search
from tests.support.quick_cases import slow_after
from tests.support.serving_jobs import serving_job
from tests.support.tampering import change, judged, tampered

SETS = ((), ("chat",), ("rag",))
CHAT = {"name": "chat", "input_tokens": 256, "output_tokens": 128}
RAG = {"name": "rag", "input_tokens": 8000, "output_tokens": 128}

engines = st.builds(
    Engine,
    st.sampled_from((1, 2, 3, 4)),
    st.sampled_from((WHOLE, WHOLE // 2, WHOLE * 2 // 3, WHOLE // 3)),
    st.integers(1, 90).map(float),
    st.sampled_from((0.01, 0.02, 0.05)),
    st.sampled_from((0.1, 0.2, 0.9)),
    st.sampled_from(SETS),
)


def classes_job(devices=4, rates=(20.0, 4.0), chat=None, rag=None, **more):
    """Return a job of two classes with a rate each, and limits of each."""
    named = [
        {**base, "request_rate": rate, "limits": limits}
        for base, rate, limits in zip((CHAT, RAG), rates, (chat, rag), strict=True)
    ]
    search = {"max_num_seqs": 64, "max_num_batched_tokens": 8192, "pipeline_parallel": 1}
    return serving_job(
        devices=devices,
        stack="vllm@0.24",
        workload={"classes": tuple(named)},
        search={**search, **more.pop("search", {})},
        **more,
    )


@given(
    options=st.lists(engines, min_size=2, max_size=5),
    objectives=st.sampled_from((("devices", "time_per_output_token"), ("throughput", "time_to_first_token"))),
)
@settings(max_examples=30, deadline=None)
def test_the_split_of_classes_equals_brute_force(options, objectives):
    """On up to 8 devices every choice that no other dominates is found: shared and dedicated engines."""
    problem = AllocationProblem(tuple(options), 8, 8, objectives, shared=True, classes=("chat", "rag"))

    assert front_by_search(problem) == front_by_force(problem)


@pytest.mark.slow
def test_the_split_of_a_priced_job_equals_brute_force():
    """So it does with priced engines for all classes and for one."""
    job = classes_job(objectives=("devices", "time_per_output_token"))
    name = job.cluster.device.name
    search = ServingSearch(job, ServingCosts(kernels_for(name), engine_kernels_for(name)))
    options = [x for x in search.candidates() if x.share in {WHOLE, WHOLE // 2}]
    chosen = [option for classes in SETS for option in [x for x in options if x.classes == classes][:3]]
    problem = search.problem(chosen, job.objectives, 4)

    assert {option.classes for option in chosen} == set(SETS)
    assert problem.classes == ("chat", "rag")
    assert front_by_search(problem) == front_by_force(problem)


@given(
    options=st.lists(
        st.tuples(st.sampled_from(SETS), st.integers(1, 3), st.sampled_from((2, 3, 6)), st.integers(1, 50)),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=30, deadline=None)
def test_sums_of_classes_are_those_of_brute_force(options):
    """What `verify` forms for each number of devices is the most tokens of all counts of engines."""
    from autoplan.verification.serving.better_choices import _sums

    names, whole, devices = ("chat", "rag"), 6, 4
    own = {}
    for classes, size, share, tokens in options:
        own.setdefault(classes or names, []).append(Engine(size, share, tokens / 10, 0.01, 0.1))
    tables = [SetTable(classes, _sums(some, devices, whole, 1)[0]) for classes, some in own.items()]
    sums = class_sums(tables, names, devices, whole, 100_000)

    assert {n: choice.tokens for n, choice in sums.items() if n} == _by_force(options, names, whole, devices)


def _by_force(options, names, whole, devices):
    best = {}
    for counts in product(range(devices + 1), repeat=len(options)):
        used = sum(n * option[1] for n, option in zip(counts, options, strict=True))
        loads = {
            sum(n * o[2] for n, o in zip(counts, options, strict=True) if name in (o[0] or names))
            for name in names
        }
        if 1 <= used <= devices and loads == {whole}:
            tokens = sum(n * o[3] for n, o in zip(counts, options, strict=True))
            best[used] = max(best.get(used, 0), tokens)
    return best


def test_a_limit_of_one_class_sends_the_other_to_engines_of_its_own():
    """Long prompts keep short requests waiting, so that a short wait of these needs engines without them."""
    strict = {"time_to_first_token": 0.05, "time_per_output_token": 0.012}
    front = plan_serving(classes_job(chat=strict, objectives=("devices",)))
    together = plan_serving(
        classes_job(chat=strict, objectives=("devices",), search={"class_routing": (False,)})
    )

    (plan,) = front.plans
    assert {group.classes for group in plan.groups} == {("chat",), ("rag",)}
    chat = next(group.predicted for group in plan.groups if group.classes == ("chat",))
    assert chat.classes[0].time_to_first_token <= 0.05
    assert chat.classes[0].time_per_output_token <= 0.012
    assert not together.plans or together.plans[0].devices > plan.devices
    named = {change.key: change for change in together.changes}
    if not together.plans:
        change = named["workload.classes.0.limits.time_to_first_token"]
        assert change.plan.groups[0].predicted.classes[0].time_to_first_token > 0.05


@pytest.mark.slow
def test_a_percentile_of_a_class_is_that_of_a_simulation_of_its_engines():
    """Options that break it are left out, and the certificate says that it was simulated."""
    limits = {"time_to_first_token": {"p99": 0.5}}
    front = plan_serving(classes_job(chat=limits, objectives=("devices",)))

    assert front.certificate.simulated == ("chat.time_to_first_token.p99",)
    for group in front.plans[0].groups:
        for known in group.predicted.simulation.statistics.classes:
            assert known.name != "chat" or known.time_to_first_token.p99 <= 0.5


@pytest.mark.slow
def test_without_limits_classes_share_engines_where_that_takes_fewer():
    """Two small loads take one engine, not one each."""
    (plan,) = plan_serving(classes_job(rates=(2.0, 0.3), objectives=("devices",))).plans

    assert plan.devices == 1
    assert [group.classes for group in plan.groups] == [()]


@pytest.mark.parametrize(
    ("limits", "sentence"),
    slow_after(
        1,
        [
            ({"time_to_first_token": 1e-3}, "class rag: time_to_first_token is"),
            ({"time_to_first_token": {"p90": 1e-3}}, "class rag: time_to_first_token.p90 is"),
            ({"request_latency": 0.5, "goodput": 0.99}, "class rag: goodput is 0.0 % in a simulation"),
        ],
    ),
)
def test_a_layout_says_which_class_breaks_which_limit(limits, sentence):
    """The other class has no limit, so that it breaks none."""
    _, plan = evaluate_serving(classes_job(rag=limits), "tp=1")

    assert any(text.startswith(sentence) for text in plan.broken)
    assert not any("class chat" in text for text in plan.broken)


def test_goodput_counts_each_request_by_the_limits_of_its_class():
    """The goodput of all is that of the classes, weighed by their requests."""
    job = classes_job(chat={"request_latency": 1.5}, rag={"request_latency": 60.0})
    job = replace(job, limits=job.limits.model_copy(update={"goodput": 0.01}))
    _, plan = evaluate_serving(job, "tp=1")
    run = plan.statistics
    chat, rag = run.classes

    assert rag.goodput == 1.0 > chat.goodput
    mean = sum(known.goodput * known.requests for known in run.classes) / run.requests
    assert run.goodput == pytest.approx(mean)
    assert chat.requests + rag.requests == run.requests


@pytest.mark.slow
def test_a_prefix_of_one_class_computes_less_of_its_prompts():
    """It hastens the class, and takes its blocks of the cache once."""
    plain = classes_job()
    shared = plain.workload.classes[1].model_copy(
        update={"prefix": plain.workload.prefix.model_copy(update={"shared_tokens": 6000})}
    )
    job = replace(
        plain,
        workload=plain.workload.model_copy(update={"classes": (plain.workload.classes[0], shared)}),
    )
    _, before = evaluate_serving(plain, "tp=1")
    _, after = evaluate_serving(job, "tp=1")
    first = [plan.groups[0].predicted.classes[1].time_to_first_token for plan in (before, after)]

    assert first[1] < first[0] / 2


@pytest.fixture(scope="module")
def routed_answer():
    """Return a job whose best plan has engines for each class, and its answer as a document."""
    job = classes_job(
        devices=2,
        rates=(10.0, 2.0),
        chat={"time_to_first_token": 0.05},
        objectives=("devices",),
        search={"tensor_parallel": 1},
    )
    return job, json.loads(json.dumps(serving_front_document(plan_serving(job))))


def test_verify_derives_what_each_class_gets(routed_answer, tmp_path):
    """Plans with engines for single classes are priced again, and all sums of such engines are formed."""
    job, document = routed_answer

    assert document["front"][0]["predicted"]["classes"][0]["dedicated"]
    verdict = judged(document, tmp_path, job=job)
    assert verdict.outcome == "verified", [check for check in verdict.checks if check.finding != "holds"]


@pytest.mark.parametrize(
    ("path", "value"),
    slow_after(
        2,
        [
            (("front", 0, "predicted", "classes", 0, "time_to_first_token_seconds"), 0.001),
            (("front", 0, "predicted", "classes", 1, "goodput"), 0.5),
            (("front", 0, "engines", 0, "classes", 0, "name"), "rag"),
            (("front", 0, "engines", 0, "classes", 0, "name"), "nobody"),
            (("front", 0, "engines", 0, "classes"), []),
            (("front", 0, "engines", 0, "share_of_load"), 0.1),
            (("certificate", "options"), 3),
        ],
    ),
)
def test_what_is_said_of_a_class_cannot_be_edited(routed_answer, tmp_path, path, value):
    """Each edit is refuted by what is derived."""
    job, document = routed_answer
    verdict = judged(tampered(document, change(path, value)), tmp_path, job=job)

    assert verdict.outcome == "refuted", path


@pytest.mark.slow
def test_verify_lists_engines_with_drafts(tmp_path):
    """Numbers of drafts are engines of their own, which the verification prices and weighs as well."""
    job = serving_job(
        devices=2,
        stack="vllm@0.24",
        workload={"input_tokens": 512, "output_tokens": 64, "concurrency": 24},
        speculation={"method": "eagle3", "tokens": (0, 3), "acceptance": 0.7},
        search={"max_num_seqs": (16, 64), "max_num_batched_tokens": 2048, "pipeline_parallel": 1},
    )
    document = json.loads(json.dumps(serving_front_document(plan_serving(job))))
    verdict = judged(document, tmp_path, job=job)

    assert verdict.outcome == "verified", [check for check in verdict.checks if check.finding != "holds"]
    faster = change(("front", 0, "predicted", "speculation"), {"drafts": 3})
    assert judged(tampered(document, faster), tmp_path, job=job).outcome == "refuted"
