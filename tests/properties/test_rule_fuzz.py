"""Whatever text a rule is, the answer is a relation or a sentence for each mistake, with its column."""

import ast
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoplan.schema.user_rules.expression import Node
from autoplan.schema.user_rules.grammar import (
    LISTS,
    NAMES,
    WORDS,
    RelationError,
    RuleSyntaxError,
    parse_relation,
    shape_of,
)

RULES = [
    *("tp * pp <= 8", "2 <= tp <= 4", "pp in {1, 2, 4}", "pp not in {1, 2}", "tp divides heads"),
    *("order == tp-cp-dp-pp", "schedule in {1f1b, zero-bubble}", "recompute is uniform"),
    *(
        "layers[0] <= layers[-1] or pp == 1",
        "sum(full) // 3 + 1 <= max(layers) % 4",
        "not (sp == on and dp > 1)",
    ),
]
PIECES = [
    *NAMES,
    *(word for words in WORDS.values() for word in words),
    *(*WORDS, *LISTS, "recompute", "sum", "min", "max"),
    *("and", "or", "not", "in", "is", "divides", "uniform", "lambda", "if", "else", "for", "await", "None"),
    *(
        "<=",
        "<",
        "==",
        "!=",
        ">=",
        ">",
        "+",
        "-",
        "*",
        "/",
        "//",
        "%",
        "**",
        "<<",
        ":=",
        "->",
        "...",
        "@",
        "|",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ".",
        ":",
        ";",
        "=",
        "#",
        "'",
        '"',
        "\\",
        "f'{tp}'",
        "`",
        "$",
        "~",
        "!",
    ),
    *(" ", "\n", "\t", "\x00", "\x0c", "\u00a0", "\u2028", "\ufeff", "\ud800", "\u0440", "\uff54", "\u00b2"),
    *("0", "1", "007", "1e5", "1_0", "0x1", "1.5", ".5", "1j", "9" * 13, "1or", "tp", "tpp"),
]
blanks = st.text(" \t\n\r\x0b\x0c\u00a0\u2003\u2028", min_size=1, max_size=3)


def places(text):
    """Return the columns that the refusal of ``text`` names; none where it is read."""
    try:
        assert isinstance(parse_relation(text), Node)
    except RelationError as error:
        found = re.findall(r"(?:^|; )column ([0-9]+): ", str(error))
        assert found
        return [int(column) for column in found]
    return []


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join) | st.text(max_size=40))
@example("")
@example("(" * 300)
@example("-" * 300)
@example("[" * 300)
@example("not " * 75)
@example("9**9**9**9 <= tp")
def test_any_text_is_a_relation_or_a_refusal_within_it(text):
    """No other exception and no warning comes out, and every column is one of the text, or just after it."""
    assert all(1 <= column <= len(text) + 1 for column in places(text))


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(RULES),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 2), st.sampled_from(PIECES))),
)
def test_any_edit_of_a_rule_is_a_relation_or_a_refusal_within_it(text, edits):
    """A rule that was damaged anywhere is still read, or refused at a place that it has."""
    for start, length, piece in edits[:4]:
        at = start % (len(text) + 1)
        text = text[:at] + piece + text[at + length :]

    assert all(1 <= column <= len(text) + 1 for column in places(text))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(RULES), st.data())
def test_white_space_means_nothing(rule, data):
    """Blanks, lines and wide spaces between the words of a rule leave its relation as it is."""
    spaced = "".join(data.draw(blanks) if sign == " " else sign for sign in rule)

    assert parse_relation(data.draw(blanks) + spaced + data.draw(blanks)) == parse_relation(rule)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=10).map(" ".join))
def test_python_sees_signs_alone(text):
    """Where the text has a structure, its names and numbers are masked, each at its own columns."""
    try:
        shape = shape_of(text)
    except RuleSyntaxError:
        return
    leaves = [node for node in ast.walk(shape) if isinstance(node, ast.Name | ast.Constant)]
    assert {sign for leaf in leaves for sign in getattr(leaf, "id", "?")} <= {"_"}
    assert all(text[leaf.col_offset : leaf.end_col_offset].split() != [] for leaf in leaves)
    assert all(" " not in text[leaf.col_offset : leaf.end_col_offset] for leaf in leaves)
