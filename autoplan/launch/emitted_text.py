"""What is emitted, as text: the header comment, arguments and commands of a shell, YAML documents."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from autoplan.errors import UnsupportedError
from autoplan.launch.target import EmittedFile, Target
from autoplan.results.plan import Plan
from autoplan.schema.hardware import DeviceSpec
from autoplan.schema.job import Job
from autoplan.units import format_bytes, format_seconds
from autoplan.version import __version__


def yaml_file(name: str, document: Mapping[str, Any], lines: tuple[str, ...]) -> EmittedFile:
    """Return ``document`` as a file below a comment; no line is folded, and the library quotes text."""
    text = yaml.safe_dump(dict(document), sort_keys=False, width=10_000)
    return EmittedFile(name, f"{as_comment(lines)}{text}")


_LONGEST: Final = 400


def header_lines(target: Target, job: Job, plan: Plan, command: str) -> tuple[str, ...]:
    """Return the lines of the header, without a comment sign; ``command`` is what made the file."""
    predicted = plan.predicted
    low, high = format_seconds(predicted.step_seconds_low), format_seconds(predicted.step_seconds_high)
    memory = format_bytes(predicted.peak_memory_bytes_per_device)
    fits = "" if predicted.fits else ", which does not fit"
    step = f"{format_seconds(predicted.step_seconds)} (90 % interval {low} to {high})"
    lines = (
        f"{job.model.name} on {job.cluster.devices_words} of {job.cluster.node.name}: {plan.layout_string}",
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


_LONGEST_NAME: Final = 40
#: Resources of device plugins by vendor.
_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}


def label(name: str, usual: str) -> str:
    """Return a name as labels and DNS have it: letters, digits and dashes; ``usual`` where none are left."""
    dashed = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())
    return dashed.strip("-")[:_LONGEST_NAME].strip("-") or usual


def resource_of(device: DeviceSpec) -> str:
    """Return the resource that a device is in Kubernetes; raises UnsupportedError for an unknown vendor."""
    if device.vendor not in _RESOURCES:
        resources = ", ".join(_RESOURCES)
        raise UnsupportedError(f"the resource of {device.name} is not known: vendors are {resources}")
    return _RESOURCES[device.vendor]


class _Dumper(yaml.SafeDumper):
    """A dumper of texts with several lines as blocks; the library quotes what cannot be one."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def manifest_text(document: Mapping[str, Any], header: tuple[str, ...]) -> str:
    """Return ``document`` as YAML below a comment; lines are never folded."""
    text: str = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=1_000_000)
    return f"{as_comment(header)}{text}"


def argument_array(
    name: str,
    header: tuple[str, ...],
    groups: Mapping[str, Iterable[tuple[str, ...]]],
    environment: Mapping[str, str],
) -> str:
    """Return a script, below a comment, that defines an array with a comment above each group, quoted."""
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items())
    lines = []
    for title, group in groups.items():
        lines.append(f"    # {title}\n")
        lines += [f"    {shlex.join(words)}\n" for words in group]
    return f"#!/usr/bin/env bash\n{as_comment(header)}{exports}{name}=(\n{''.join(lines)})\n"


def command_script(
    header: tuple[str, ...], command: str, options: Iterable[tuple[str, ...]], before: Iterable[str] = ()
) -> str:
    """Return a script that runs ``command``, in shell syntax, with a line for each of ``options``.

    Words of ``options`` are quoted; arguments of the script come last, where they override the others. Lines
    of ``before`` run first.
    """
    lines = [f"exec {command}", *(f"    {shlex.join(words)}" for words in options), '    "$@"']
    body = "\n".join((*before, " \\\n".join(lines)))
    return f"#!/usr/bin/env bash\n{as_comment(header)}set -euo pipefail\n{body}\n"


def torchrun_words(job: Job) -> str:
    """Return the words of ``torchrun`` for the devices of a job."""
    cluster = job.cluster
    nodes = f"--nnodes {cluster.nodes} " if cluster.nodes > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {min(cluster.devices, cluster.node.devices)}"
