"""Pieces of YAML, and edits of a text with them."""

from hypothesis import strategies as st

__all__ = ["PIECES", "edited", "edits"]

PIECES = [
    *(
        "\t",
        "\n",
        "\r",
        "  ",
        ": ",
        "- ",
        "? ",
        "[",
        "]",
        "{",
        "}",
        ",",
        "#",
        "'",
        '"',
        "\\",
        "|",
        ">",
    ),
    *(
        "&a ",
        "*a",
        "*limit",
        "!!str ",
        "!!int ",
        "!x ",
        "%YAML 1.2\n",
        "---\n",
        "...\n",
        "<<: ",
        "~",
    ),
    *(
        "\x00",
        "\ufeff",
        "\ud800",
        "\x85",
        "\u2028",
        '"\\uD800"',
        '"\\UFFFFFFFF"',
        '"\\x00"',
        "\U0001f600",
    ),
    *(
        ".inf",
        ".nan",
        "1e999",
        "9" * 40,
        "0x",
        "1_0",
        "-",
        "true",
        "null",
        "2: 3\n",
        "shape: ring\n",
    ),
]


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """Return ``text`` with a few stretches replaced."""
    for start, length, piece in edits:
        at = start % (len(text) + 1)
        text = text[:at] + piece + text[at + length :]
    return text


edits = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=3)),
    min_size=1,
    max_size=6,
)
