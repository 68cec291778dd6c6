"""Orders of ranks as a user names them: in a layout, in the search, in a rule, in a saved answer."""

import json

import pytest

JOB = """kind: training
model: llama3.2-1b
hardware: 2x-rtx4090
devices: 4
stack: analytic
workload: {sequence_length: 1024, global_batch_size: 8}
search: {recompute: [none, full], schedule: 1f1b%s}
"""


@pytest.fixture
def job(tmp_path):
    """Return a function that writes a job of two nodes, with more keys of its search and rules."""

    def write(search="", rules=""):
        file = tmp_path / "job.yaml"
        file.write_text(JOB % search + rules, encoding="utf-8")
        return file

    return write


def test_a_plan_over_orders_is_verified_whole(run, job, tmp_path):
    """Every layout in every order is looked at again: none beats a plan, and the counts add up."""
    saved = tmp_path / "plan.json"
    saved.write_text(run("plan", job(), "--format", "json").stdout, encoding="utf-8")
    document = json.loads(saved.read_text(encoding="utf-8"))
    done = run("verify", saved)

    assert done.exit_code == 0, done.stdout
    assert "every other is dominated, within 0.01, by one" in " ".join(done.stdout.split())
    assert len({plan["layout"]["order"] for plan in document["front"]}) > 1
    assert any("orders of the axes" in rejection["reason"] for rejection in document["rejected"])


def test_a_search_and_a_rule_name_orders(run, job):
    """Both bind the answer; where nodes tell the order, it is part of the layout's text."""
    narrowed = json.loads(run("plan", job(", order: pp-tp-cp-dp"), "--format", "json").stdout)
    ruled = json.loads(run("plan", job(rules="rules: [order == pp-tp-cp-dp]\n"), "--format", "json").stdout)
    texts = [[plan["layout_string"] for plan in answer["front"]] for answer in (narrowed, ruled)]

    assert texts[0] == texts[1]
    assert all(",order=pp-tp-cp-dp" in text for text in texts[0])


def test_a_layout_in_another_order_is_explained(run, job):
    """Tensors across a slow network lose to the plan that has them inside, by what they wait."""
    done = run("explain", job(), "--layout", "tp=2,pp=2,zero=0,order=pp-tp-cp-dp")
    told = " ".join(done.stdout.split())

    assert done.exit_code == 0
    assert "it loses most in tensor parallel" in told


def test_an_order_that_makes_no_difference_is_the_plan_itself(run, job):
    """With one axis there is one way to number ranks: such a layout is on the front in any order."""
    plans = json.loads(run("plan", job(), "--format", "json").stdout)["front"]
    (text, *_) = (p["layout_string"] for p in plans if p["layout"]["pp"] == 4)
    done = run("explain", job(), "--layout", f"{text},order=cp-dp-pp-tp")

    assert "on the front: plan 1 of" in " ".join(done.stdout.split())


@pytest.mark.parametrize("rule", ["order == tp-dp-pp", "order <= tp-cp-dp-pp", "order == 3"])
def test_a_wrong_order_in_a_rule_is_told_with_those_known(run, job, rule):
    """The message has the column and what an order may be, or how it is compared."""
    done = run("plan", job(rules=f"rules: ['{rule}']\n"))

    assert done.exit_code == 2
    assert "order is one of tp-cp-dp-pp" in done.stderr or "order is compared with ==" in done.stderr
