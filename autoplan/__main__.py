"""``python -m autoplan`` is the command ``autoplan``."""

from __future__ import annotations

from autoplan.commands.start_up import start_process

start_process()


def main() -> None:
    """Run the command line and leave with its exit code."""
    from autoplan.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
