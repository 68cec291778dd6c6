"""Arguments of a training program as an array of a shell script, for ``source`` in another one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping

from autoplan.launch.header import as_comment
from autoplan.schema.job import Job

__all__ = ["argument_array", "command_script", "torchrun_words"]


def argument_array(
    name: str,
    header: tuple[str, ...],
    groups: Mapping[str, Iterable[tuple[str, ...]]],
    environment: Mapping[str, str],
) -> str:
    """Return a script that defines the array ``name``, with a comment above each group of arguments.

    ``header`` is a comment at its top. Words are quoted for the shell.
    """
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environment.items())
    lines = []
    for title, group in groups.items():
        lines.append(f"    # {title}\n")
        lines += [f"    {shlex.join(words)}\n" for words in group]
    return f"#!/usr/bin/env bash\n{as_comment(header)}{exports}{name}=(\n{''.join(lines)})\n"


def command_script(header: tuple[str, ...], command: str, options: Iterable[tuple[str, ...]]) -> str:
    """Return a script that runs ``command``, in shell syntax, with a line for each of ``options``.

    Words of ``options`` are quoted; arguments of the script come last, where they override the others.
    """
    lines = [f"exec {command}", *(f"    {shlex.join(words)}" for words in options), '    "$@"']
    body = " \\\n".join(lines)
    return f"#!/usr/bin/env bash\n{as_comment(header)}set -euo pipefail\n{body}\n"


def torchrun_words(job: Job) -> str:
    """Return the words of ``torchrun`` for the devices of a job."""
    cluster = job.cluster
    nodes = f"--nnodes {cluster.nodes} " if cluster.nodes > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {min(cluster.devices, cluster.node.devices)}"
