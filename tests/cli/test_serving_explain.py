"""``explain`` of serving jobs: what bounds a plan, what other choices lose, and when the answer flips."""

import json

import pytest

JOB = """schema: 1
kind: serving
model: llama3.1-8b
hardware: dgx-h100
devices: 4
stack: vllm@0.24
workload: {input_tokens: 512, output_tokens: 64, concurrency: 64}
search: {pipeline_parallel: 1, max_num_batched_tokens: 2048, max_num_seqs: [16, 64, 128]}
limits: {time_per_output_token: 14 ms, time_to_first_token: 2 s}
"""


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """Return the explanation of the job as a document, and the path of the job."""
    from autoplan.answers.explain.explained_serving import explain_serving
    from autoplan.answers.explain.serving_blocks import serving_explanation_document

    path = tmp_path_factory.mktemp("explain") / "job.yaml"
    path.write_text(JOB)
    document = json.loads(json.dumps(serving_explanation_document(explain_serving(str(path)))))
    return document, path


def planned(run, path, text):
    """Return exit code and document of a plan of ``text``."""
    file = path.parent / "other.yaml"
    file.write_text(text)
    done = run("plan", file, "--format", "json")
    return done.exit_code, json.loads(done.stdout)


def test_other_choices_lose_what_a_narrowed_job_loses(run, explained):
    """Why not tp 4, why not 4 replicas: planning the narrowed job gives the same plan."""
    document, path = explained
    best = document["best"]["predicted"]["output_tokens_per_second_per_device"]
    rows = {(row["key"], row["value"]): row for row in document["why_not"]}
    for key, value in (("search.tensor_parallel", "4"), ("search.replicas", "4")):
        row = rows[key, value]
        name = key.partition(".")[2]
        code, answer = planned(run, path, JOB.replace("search: {", f"search: {{{name}: {value}, "))
        each = max(p["predicted"]["output_tokens_per_second_per_device"] for p in answer["front"])
        assert code == 0
        assert row["loss"] == pytest.approx(1 - each / best, abs=1e-3)
        assert row["loss"] > 0


def test_a_choice_without_a_plan_says_why(explained):
    """One request a step cannot hold a limit, or a value is excluded: a sentence, no number."""
    document, _ = explained
    without = [row for row in document["why_not"] if row["layout_string"] is None]

    assert all(row["why"] and row["loss"] is None for row in without)


def test_the_tightest_limit_is_the_one_whose_absence_gains_most(run, explained):
    """Planning without it gains what is said."""
    document, path = explained
    limit = next(x for x in document["limits"] if x["limit"] == document["tightest_limit"])
    assert limit["limit"] == "time_per_output_token"
    _, answer = planned(run, path, JOB.replace("time_per_output_token: 14 ms, ", ""))
    each = max(p["predicted"]["output_tokens_per_second_per_device"] for p in answer["front"])
    best = document["best"]["predicted"]["output_tokens_per_second_per_device"]

    assert limit["gain"] == pytest.approx(each / best - 1, abs=0.01)
    assert limit["share"] <= 1


def test_the_parts_of_an_iteration_add_up_to_it(explained):
    """Each part names what it waits for, and the bound is the resource with most of the time."""
    document, _ = explained
    for engine in document["engines"]:
        for step in (engine["decode"], engine["mixed"]):
            assert sum(part["seconds"] for part in step["parts"]) == pytest.approx(step["seconds"])
            by_resource = {}
            for part in step["parts"]:
                by_resource[part["resource"]] = by_resource.get(part["resource"], 0) + part["seconds"]
            assert step["bound"] == max(by_resource, key=by_resource.get)
    assert document["engines"][0]["decode"]["bound"] == "memory bandwidth"


def test_the_verdict_flips_where_it_is_said(run, explained):
    """Up to the load that holds there is a plan, and from the next one on there is none."""
    document, path = explained
    flip = next(x for x in document["load_flips"] if x["subject"].startswith("some plan"))
    held = JOB.replace("concurrency: 64", f"concurrency: {flip['holds']}")
    broken = JOB.replace("concurrency: 64", f"concurrency: {flip['fails']}")

    assert flip["holds"] < flip["fails"] <= 1.03 * flip["holds"] + 1
    assert planned(run, path, held)[0] == 0
    assert planned(run, path, broken)[0] == 1


def test_the_plan_itself_breaks_where_it_is_said(run, explained):
    """The best layout evaluated at the two loads holds every limit, and breaks one."""
    document, path = explained
    flip = next(x for x in document["load_flips"] if x["subject"].startswith("this plan"))
    layout = document["best"]["layout_string"]
    broken = []
    for load in (flip["holds"], flip["fails"]):
        file = path.parent / "load.yaml"
        file.write_text(JOB.replace("concurrency: 64", f"concurrency: {load}"))
        done = run("evaluate", file, "--layout", layout, "--format", "json")
        broken.append(json.loads(done.stdout)["broken_limits"])

    assert "+" not in layout
    assert broken[0] == []
    assert broken[1]


def test_a_layout_is_set_beside_the_front(run, explained):
    """One that is dominated names the plan; one that breaks a rule or a limit says which, with what helps."""
    _, path = explained
    worse = run("explain", path, "--layout", "tp=1,pp=4,seqs=64", "--format", "json")
    answer = json.loads(worse.stdout)
    assert answer["standing"]["against"] is not None or "over" in answer["standing"]["sentence"]

    refused = run("explain", path, "--layout", "tp=3")
    assert refused.exit_code == 1
    assert "must divide the 32 query heads" in refused.stdout


def test_tables_say_it_in_words(run, explained):
    """The bound, the tightest limit, a forced choice and a flip."""
    _, path = explained
    file = path.parent / "table.yaml"
    file.write_text(JOB.replace("devices: 4", "devices: 2"))
    done = run("explain", file)

    assert done.exit_code == 0
    for words in ("is bound by HBM bandwidth", "tightest", "why not", "this plan holds every limit up to"):
        assert words in done.stdout


def test_what_has_no_plan_is_explained_as_plan_does(run, explained):
    """Exit code 1 with the reasons and the changes that help."""
    _, path = explained
    file = path.parent / "none.yaml"
    file.write_text(JOB.replace("14 ms", "1 ms"))
    done = run("explain", file)

    assert done.exit_code == 1
    assert "changes that make a plan possible" in done.stdout
    assert run("explain", file, "--format", "html").exit_code != 0
