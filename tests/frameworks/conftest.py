"""What pytest collects here, and the table that it ends with.

The parsers are programs that a framework's own Python runs.
"""

from tests.frameworks.matrix import table

collect_ignore_glob = ["*_parser.py"]


def pytest_terminal_summary(terminalreporter):
    """Print what each program said of each plan."""
    lines = table()
    if lines:
        terminalreporter.section("programs and plans")
        terminalreporter.write_line("\n".join(lines))
