"""The text of the user's own rules: what Python's grammar may see of it, and what is refused and where."""

import ast
from pathlib import Path

import pytest

from autoplan.schema.user_rules.expression import Known, decided
from autoplan.schema.user_rules.grammar import (
    LISTS,
    NAMES,
    WORDS,
    RelationError,
    RuleSyntaxError,
    parse_relation,
    shape_of,
)

#: Lists of a rule, in the order of the table of recompute modes.
LISTED = (
    "layers, selective, layernorm, moe_act, layernorm_moe_act, mla_up_proj, mla_up_proj_mlp, mlp, moe,"
    " layernorm_moe, full"
)
README = Path(__file__).resolve().parents[4] / "specs" / "jobs" / "README.md"


def refusal(text):
    """Return what is said of a rule that is refused."""
    with pytest.raises(RelationError) as error:
        parse_relation(text)
    return str(error.value)


def deep(calls, text):
    """Return what is said of a rule that is read below so many calls."""
    return deep(calls - 1, text) if calls else refusal(text)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("tp divides heads", "heads % tp == 0"),
        ("2 * tp divides heads + 8 and pp <= 2", "(heads + 8) % (2 * tp) == 0 and pp <= 2"),
        ("not tp divides heads", "not (heads % tp == 0)"),
        ("pp not in {1, 007}", "not pp in {1, 7}"),
        ("order == tp-cp-dp-pp", "order in {tp-cp-dp-pp}"),
        ("tp -cp-dp-pp <= 0", "tp - cp - dp - pp <= 0"),
        ("schedule != zero-bubble", "not schedule == zero-bubble"),
        ("1f1b == schedule", "schedule == 1f1b"),
        ("\u00a0tp\n  <=\t8\r\n", "tp <= 8"),
        ("--tp <= - -8", "tp <= 8"),
        ("not not tp <= 8", "tp <= 8"),
        ("layers[ - 1 ] < min( layers )", "layers[-1] < min(layers)"),
    ],
)
def test_what_python_writes_otherwise_means_what_it_meant(text, same):
    """Words with signs or digits, divides, leading zeros, lines and runs of signs."""
    names = {"tp": 4, "pp": 7, "cp": 1, "dp": 2, "heads": 32, "schedule": "1f1b", "order": "tp-cp-dp-pp"}
    entries = {("layers", 0): 3, ("layers", 1): 2}
    for tp in (1, 4, 12):
        known = Known(names | {"tp": tp}, stages=2, entries=entries)
        assert decided(parse_relation(text), known) == decided(parse_relation(same), known)


def test_python_sees_neither_names_nor_numbers():
    """They are masked, so no keyword, look-alike or long number of a rule reaches Python's parser."""
    shape = shape_of("lambda + 99999999999999999999 <= __import__ % 0x10")

    assert ast.unparse(shape) == "______ + ____________________ <= __________ % ____"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tp := 8", "column 4: ':' is not allowed"),
        ("lambda: tp", "column 7: ':' is not allowed"),
        ("f'{tp}' == 8", 'column 2: "\'" is not allowed'),
        ("tp.real <= 1", "column 3: '.' is not allowed"),
        ("tp <= 8  # or less", "column 10: '#' is not allowed"),
        ("tp <= 8; pp", "column 8: ';' is not allowed"),
        ("tp | heads", "column 4: '|' is not allowed"),
        ("tp\x00 <= 8", "column 3: '\\x00' is not allowed"),
        ("t\u0440 <= 8", "column 2: '\u0440' (U+0440) is not allowed"),
        ("\uff54\uff50 <= 8", "column 1: '\uff54' (U+FF54) is not allowed"),
        ("tp <= \uff18", "column 7: '\uff18' (U+FF18) is not allowed"),
        ("tp <= \u00b2", "column 7: '\u00b2' (U+00B2) is not allowed"),
        ("\ud800", "column 1: '\\ud800' (U+D800) is not allowed"),
        ("tp if pp else dp", "column 4: nothing is expected after the relation before 'if'"),
        ("[x for x in layers]", "column 4: nothing is expected after the relation before 'for'"),
        ("await tp <= 1", "column 7: nothing is expected after the relation before 'tp'"),
        ("(tp ppp 8)", "column 5: nothing is expected after the relation before 'ppp'"),
        ("(2 * (tp // full[1] ppp) <= 8)", "column 21: nothing is expected after the relation before 'ppp'"),
        ("((tp) ppp qqq)", "column 7: nothing is expected after the relation before 'ppp'"),
        ("tp {8}", "column 4: nothing is expected after the relation before '{'"),
        ("tp == True", "column 7: unknown name 'True': known are tp, "),
        ("tp <= 1e9", "column 7: unknown name '1e9': known are tp, "),
        ("tp <= 1_000", "column 7: unknown name '1_000': known are tp, "),
        ("tp <= 0x10", "column 7: unknown name '0x10': known are tp, "),
        ("tp <= 1.", "column 7: numbers are integers"),
        ("9**9**9 <= tp", "column 4: the operators are +, -, *, /, //, %"),
        ("tp << 2 <= 8", "column 7: the operators are +, -, *, /, //, %"),
        ("+tp <= 8", "column 1: '+tp' is not a relation, number or name"),
        ("tp <= " + "9" * 280, "column 7: a number has at most 12 digits"),
        ("layers[" + "9" * 20 + "] <= 1", "column 8: a stage is needed: 0 for the first"),
        ("tp, pp", "column 1: 'tp, pp' is not a relation, number or name"),
        ("()", "column 1: '()' is not a relation, number or name"),
        ("tp <= {}", "column 7: '{}' is not a relation, number or name"),
        ("tp <= {8}", "column 7: '{8}' is not a relation, number or name"),
        ("[8] <= tp", "column 1: '[8]' is not a relation, number or name"),
        ("tp in {*pp}", "column 8: '*pp' is not a relation, number or name"),
        ("layers[0, 1] < 1", "column 8: a stage is needed: 0 for the first"),
        ("layers[0][0] < 1", "column 1: 'layers[0][0]' is not a relation, number or name"),
        ("sum(layers)(1) < 1", "column 1: 'sum(layers)(1)' is not a relation, number or name"),
        ("sum(layers, full) < 1", "column 1: 'sum(layers, full)' is not a relation, number or name"),
        ("sum(*layers) < 1", f"column 5: sum takes one of {LISTED}"),
        ("sum(sum(layers)) < 1", f"column 5: sum takes one of {LISTED}"),
        ("sum <= 8", "column 1: sum is of a list: write sum(layers)"),
        ("exec(tp) == 1", "column 1: unknown function 'exec': known are sum, min, max"),
        ("tp in [1, 2]", "column 7: in takes {...}, is takes uniform"),
        ("1 < tp in {1, 2}", "column 11: in takes {...}, is takes uniform, and neither stands in a chain"),
        ("layers is not uniform", "column 15: in takes {...}, is takes uniform"),
        ("tp is 8", "column 7: in takes {...}, is takes uniform"),
        ("tp divides heads divides 8", "column 1: a number is needed, not a relation"),
        ("2 <= tp divides heads", "column 6: a number is needed, not a relation"),
        ("--schedule <= 8", "column 3: schedule is compared with == or !="),
        ("tp == not pp", "column 7: a number or a name is needed before 'not'"),
        ("tp <= (8", "column 7: '(' is not closed"),
        ("tp <= 8)", "column 8: nothing is expected after the relation before ')'"),
        ("  tpp <= 8", "column 3: unknown name 'tpp' - did you mean 'tp'?"),
    ],
)
def test_what_is_more_than_a_rule_is_refused_where_it_stands(text, said):
    """Whatever Python has beyond the language of rules, and characters that only look like it."""
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(" * 140 + "tp" + ")" * 140, "column 21: at most 20 levels are allowed"),
        ("[" * 299, "column 201: '[' is not closed"),
        ("{" * 299, "column 201: '{' is not closed"),
        ("layers[" * 40, "column 280: '[' is not closed"),
        ("tp <= 8 and " * 25, "column 300: a number or a name is needed at the end"),
        ("tp" * 150 + " ", "column 301: a rule has at most 300 characters"),
        ("tp <= 8" * 10**6, "column 301: a rule has at most 300 characters"),
    ],
)
def test_depth_and_length_are_refused(text, said):
    """No rule is too deep or too long for a sentence."""
    assert said in refusal(text)


def test_a_parser_without_room_is_a_refusal():
    """Where the calls above leave Python's parser no room, that is said and not raised as RecursionError."""
    said = deep(800, "+".join(["1"] * 140) + " <= tpp")

    assert said == "column 1: the relation has too many levels"


@pytest.mark.parametrize(
    "text",
    ["-" * 290 + "tp <= 1", "not " * 72 + "tp <= 1", "+".join(["0"] * 140) + " <= tp", "tp" + "<=1" * 99],
)
def test_long_rules_are_read_and_decided(text):
    """As long as a rule may be, in signs, terms or comparisons."""
    assert decided(parse_relation(text), Known({"tp": 1}, stages=1))


def test_text_without_structure_has_a_place():
    """The place is counted from 0 within the text."""
    with pytest.raises(RuleSyntaxError) as error:
        shape_of("tp <= 8 8")

    assert error.value.problem == (8, "nothing is expected after the relation before '8'")


def test_the_readme_of_jobs_lists_every_name():
    """Numbers, words and lists that a rule may name stand in the table of the README."""
    text = README.read_text(encoding="utf-8").partition("## `rules`")[2]

    assert [name for name in (*NAMES, *WORDS, *LISTS) if f"`{name}`" not in text] == []
