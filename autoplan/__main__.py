"""``python -m autoplan`` is the command ``autoplan``."""

from __future__ import annotations

from autoplan.commands.lean import start_process


def main() -> None:
    """Run the command line and leave with its exit code."""
    start_process()  # not on import: a process that imports every module is not one command's
    from autoplan.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
