"""The header comment of what is emitted: what was predicted, for which version, and how it was made."""

from __future__ import annotations

from typing import Final

from autoplan.launch.target import Target
from autoplan.results import Plan
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds
from autoplan.version import __version__

__all__ = ["as_comment", "header_lines"]

_LONGEST: Final = 400


def header_lines(target: Target, job: Job, plan: Plan, command: str) -> tuple[str, ...]:
    """Return the lines of the header, without a comment sign; ``command`` is what made the file."""
    predicted = plan.predicted
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    memory = format_bytes(predicted.peak_memory_bytes_per_device)
    fits = "" if predicted.fits else ", which does not fit"
    step = f"{format_seconds(predicted.step_seconds)} (90 % interval {low} to {high})"
    devices = "1 device" if job.cluster.devices == 1 else f"{job.cluster.devices} devices"
    lines = (
        f"{job.model.name} on {devices} of {job.cluster.node.name}: {plan.layout_string}",
        f"predicted step time {step}, memory {memory} per device{fits}",
        f"for {target.framework} {target.version} ({target.check})",
        f"made by autoplan {__version__}: {command}",
    )
    return tuple(_one_line(line) for line in lines)


def as_comment(lines: tuple[str, ...], sign: str = "#") -> str:
    r"""Return ``lines`` as comment lines.

    >>> as_comment(("one", "two"))
    '# one\n# two\n'
    """
    return "".join(f"{sign} {_one_line(line)}\n" for line in lines)


def _one_line(text: str) -> str:
    """Return ``text`` as one printable line, so that nothing of it can end the comment."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
