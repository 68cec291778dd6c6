"""The user's own rules: what is read, what is refused and where, and what the solver makes of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.catalog import load_job, resolve_job
from autoplan.costs.core.candidates import Candidates
from autoplan.errors import SpecError
from autoplan.rules.user_constraints import breaks, user_rules_of, what_is_left
from autoplan.schema.job import JobSpec
from autoplan.schema.layout import parse_layout
from autoplan.schema.recompute import MODES
from autoplan.schema.user_rules.expression import FALSE, TRUE, Known, decided
from autoplan.schema.user_rules.grammar import LISTS, NAMES, WORDS, RelationError, parse_relation
from autoplan.schema.yaml.loader import load_model
from autoplan.search.alternatives.stage_alternatives import Alternatives, step_ticks
from autoplan.search.cp.constraint_model import solve
from autoplan.search.space.priced_candidates import Schedule
from tests.support.listed_alternatives import alternative

JOB = """
kind: training
model: llama3-8b
hardware: dgx-a100-80gb
stack: megatron-core
workload: {sequence_length: 8192, global_batch_size: 128}
rules:
"""


def job_with(*rules):
    """Return an 8-GPU job with these rules."""
    return resolve_job(load_model(JOB + "".join(f"  - {rule}\n" for rule in rules), JobSpec, name="job"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tpp <= 8", "column 1: unknown name 'tpp' - did you mean 'tp'?"),
        ("tp <= hed", "column 7: unknown name 'hed' - did you mean 'heads'?"),
        ("tp = 8", "column 4: '=' is not a comparison: write =="),
        ("tp <= 0.5", "column 7: numbers are integers: write 1/2 for a half"),
        ("tp * pp", "column 1: a relation is needed, such as tp * pp <= 8"),
        ("layers <= 4", "column 1: layers has one number for each stage: write layers[0], sum(layers)"),
        (
            "schedule == 1f1",
            "column 13: schedule is one of 1f1b, gpipe, interleaved, zero-bubble - did you mean '1f1b'?",
        ),
        ("tp <= 8 8", "column 9: nothing is expected after the relation before '8'"),
        ("layers[0] % layers[1] == 0", "column 13: what divides is the same for all stages"),
        ("__import__('os')", 'column 12: "\'" is not allowed'),
        ("tp <= 9999999999999", "column 7: a number has at most 12 digits"),
        ("tp <= 8 or" + " " * 300 + "pp", "column 301: a rule has at most 300 characters"),
        ("(" * 50 + "tp", "column 21: at most 20 levels are allowed"),
        ("", "column 1: a number or a name is needed at the end"),
    ],
)
def test_a_rule_that_cannot_be_read_says_where_and_what_is_right(text, said):
    """The column within the rule, the known names, and what to write."""
    with pytest.raises(RelationError) as error:
        parse_relation(text)

    assert said in str(error.value)


def test_wrong_rules_are_told_with_everything_else_in_the_file():
    """Each with the file, its line and its path, in the order of the lines."""
    with pytest.raises(SpecError) as error:
        load_model(JOB + "  - tpp <= 8\n  - {rule: tp <, becuse: no}\nspeed: 3\n", JobSpec, name="x.yaml")

    assert [str(problem).partition(": column")[0] for problem in error.value.problems] == [
        "x.yaml:8: $.rules[0]",
        "x.yaml:9: $.rules[1].rule",
        "x.yaml:9: $.rules[1].becuse: unknown key 'becuse': did you mean 'because'?",
        "x.yaml:10: $.speed: unknown key 'speed': known keys are " + ", ".join(_keys()),
    ]


def _keys():
    return [field.alias or name for name, field in JobSpec.model_fields.items()]


@given(st.text(alphabet="tplayers[]<>=!*/%-+(){} ,0123456789andornotisunifmd.'\"", max_size=60))
def test_any_text_is_read_or_refused(text):
    """No text makes more of a mess than a sentence."""
    try:
        said = repr(parse_relation(text))
    except RelationError as error:
        said = str(error)
    assert said.startswith(("column ", "Comparison", "Logic", "Not", "Uniform"))


@given(st.text(alphabet="tp(<=1)+*-%/ ", min_size=1, max_size=40))
def test_arithmetic_means_what_it_means_in_python(text):
    """Precedence, associativity and rounding are Python's, where Python reads the text too."""
    try:
        node = parse_relation(text)
        expected = bool(eval(text, {"tp": 7}))  # noqa: S307 - made of numbers and operators
    except (RelationError, SyntaxError, ZeroDivisionError, TypeError):
        return
    if "/" not in text.replace("//", ""):
        assert decided(node, Known({"tp": 7}, stages=1)) == expected


def test_every_name_has_a_value():
    """What a rule may name is known of every layout, and listed in the README of the jobs."""
    job = load_job("llama3-8b-8x-a100")
    layout = parse_layout("tp=2,pp=2", layers=32, devices=8)
    for name in NAMES:
        assert not breaks(job, parse_relation(f"{name} >= 0"), layout)
    for name, words in WORDS.items():
        assert not breaks(job, parse_relation(f"{name} in {{{', '.join(words)}}}"), layout)
    for name in LISTS:
        assert not breaks(job, parse_relation(f"min({name}) >= 0"), layout)


def test_a_stage_that_there_is_not_keeps_every_rule():
    """A rule on the fourth stage says nothing about a pipeline of two."""
    rule = parse_relation("layers[3] == 1")

    assert decided(rule, Known({}, stages=2, entries={}))


def test_what_divides_by_zero_does_not_hold():
    """A comparison of what is undefined is false, and its negation true."""
    known = Known({"zero": 0, "tp": 4}, stages=1)

    assert not decided(parse_relation("tp % zero == 0"), known)
    assert not decided(parse_relation("zero divides tp"), known)
    assert decided(parse_relation("not tp // zero == 1"), known)


def test_degrees_decide_what_they_can():
    """Rules of degrees are masks; with one stage, its layers are known too."""
    job = job_with("tp * pp <= 4", "layers[0] <= 8 or mbs == 1")
    two = Candidates.of([parse_layout(x, layers=32, devices=8) for x in ("tp=2,mbs=2", "tp=8,mbs=1")])

    first, second = (what_is_left(job, rule.relation, two) for rule in user_rules_of(job))

    assert first == [TRUE, FALSE]
    assert second == [FALSE, TRUE]


ROWS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 2), st.integers(1, 40)),
    min_size=1,
    max_size=4,
)
ATOMS = ["layers[0]", "layers[1]", "full[0]", "full[1]", "selective[1]", "sum(full)", "max(layers)", "2"]
NUMBERS = st.recursive(
    st.sampled_from([*ATOMS, "min(full)"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda x: f"({x[0]} {x[1]} {x[2]})"),
        st.tuples(inner, st.sampled_from(["/", "//", "%"]), st.integers(1, 4)).map(
            lambda x: f"({x[0]} {x[1]} {x[2]})"
        ),
        st.sampled_from(["(3 // full[0])", "(4 / (layers[1] - 2))"]),
    ),
    max_leaves=4,
)
RELATIONS = st.recursive(
    st.tuples(NUMBERS, st.sampled_from(["<=", "==", "!=", ">", "<", ">="]), NUMBERS).map(" ".join)
    | st.sampled_from(["recompute is uniform", "layers is uniform", "full[1] in {0, 2}"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda x: f"({x[0]}) {x[1]} ({x[2]})"),
        inner.map(lambda x: f"not ({x})"),
    ),
    max_leaves=3,
)


@settings(max_examples=300, deadline=None)
@given(RELATIONS, ROWS, ROWS)
def test_the_solver_keeps_what_the_relation_says(text, first, second):
    """Constraints of the model admit exactly the layouts for which the relation holds."""
    try:
        relation = parse_relation(text)
    except RelationError:  # longer than a rule may be
        return
    rows = [
        tuple(
            alternative(max(n, s + f), t, t, 2 * t, 0, 1, selective=s, full=f)
            for n, s, f, t in dict.fromkeys(row)
        )
        for row in (first, second)
    ]
    total = max(o.layers for o in rows[0]) + max(o.layers for o in rows[1])
    menu = Alternatives(tuple(rows), Schedule(2, 4, 1, gpipe=False), (relation.folded(Known({}, stages=2)),))
    allowed = [
        step_ticks(menu, options)
        for options in itertools.product(*rows)
        if sum(o.layers for o in options) == total and holds(relation, options)
    ]

    solution = solve([menu], total, 10**6, 2**16)

    assert (solution and solution.step_ticks) == min(allowed, default=None)


def test_a_sum_over_many_stages_is_decided():
    """A pipeline may have more stages than Python nests calls."""
    relation = parse_relation("sum(layers) <= 1500")

    assert decided(relation, Known({}, stages=1500, entries={("layers", i): 1 for i in range(1500)}))


def holds(relation, options):
    """Return whether one option a stage keeps ``relation``."""
    names = ("layers", *(mode.name for mode in MODES))
    entries = {(name, i): o.count(name) for name in names for i, o in enumerate(options)}
    return decided(relation, Known({}, stages=len(options), entries=entries))
