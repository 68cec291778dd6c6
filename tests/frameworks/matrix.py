"""The table of programs and plans that the tests of frameworks end with."""

__all__ = ["cell", "table"]

_CELLS = {}


def cell(program, version, plan, verdict):
    """Set what a program of a version said of a plan."""
    _CELLS[program, version, plan] = verdict


def table():
    """Return the lines of the table, by program and plan."""
    if not _CELLS:
        return []
    wide = [max(len(key[part]) for key in _CELLS) for part in range(3)]
    return [
        "  ".join((*(text.ljust(width) for text, width in zip(key, wide, strict=True)), verdict))
        for key, verdict in _CELLS.items()
    ]
