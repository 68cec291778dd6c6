"""The job of a question: the job file that the page shows, read as any job file is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autoplan.catalog.job_files import job_of_text
from autoplan.playground.job_questions import TrainingQuestion
from autoplan.playground.questions import linked_query
from autoplan.results.front import Edit
from autoplan.schema.job import Job, JobSpec
from autoplan.schema.yaml.writer import file_text

__all__ = ["changed_query", "file_name", "job_of", "job_text"]

#: Keys of a job file that are controls of the page.
_CONTROLS: Final = {
    "hardware": "hardware",
    "devices": "devices",
    "precision": "precision",
    "optimizer": "optimizer",
    "stack": "stack",
    "adapters": "adapter_rank",
    "search.offload": "offload",
    "workload.sequence_length": "sequence_length",
    "workload.global_batch_size": "global_batch_size",
    "limits.memory_headroom": "headroom_percent",
}
_RANK: Final = re.compile(r"\{rank: ([0-9]{1,6})\}")
#: A share as a job file has it; of the whole percents of the slider, the lower one leaves plans more room.
_PERCENT: Final = re.compile(r"([0-9]{1,2})(?:\.[0-9]+)? %")


def file_name(question: TrainingQuestion) -> str:
    """Return the name under which the page offers the job file."""
    return f"{question.model}-on-{question.hardware}.yaml"


def job_text(question: TrainingQuestion) -> str:
    """Return the job file of ``question``; what is at its default is left out."""
    headroom, rank = question.headroom_percent / 100, question.adapter_rank
    fields = {
        "schema": 1,
        "kind": "training",
        "model": question.model,
        "hardware": question.hardware,
        "devices": question.devices,
        **({"stack": question.stack} if question.stack else {}),
        "workload": {
            "sequence_length": question.sequence_length,
            "global_batch_size": question.global_batch_size,
        },
        "precision": question.precision,
        "optimizer": question.optimizer,
        **({"adapters": {"rank": rank}} if rank else {}),
        **({"search": {"offload": tuple(question.offload.split(","))}} if question.offload != "none" else {}),
        **({"limits": {"memory_headroom": headroom}} if headroom else {}),
        "objectives": tuple(question.objectives.split("+")),
    }
    return file_text(JobSpec.model_validate(fields))


def job_of(question: TrainingQuestion) -> Job:
    """Return the job of ``question``; raises SpecError, such as for devices that fill no nodes."""
    name = file_name(question)
    return job_of_text(job_text(question), name, name=name.removesuffix(".yaml"), base=Path(), reference=name)


def changed_query(question: TrainingQuestion, edits: Sequence[Edit]) -> str | None:
    """Return the link of ``question`` with ``edits`` of its job file; None where a control is missing."""
    changes = {}
    for edit in edits:
        control = _CONTROLS.get(edit.key)
        value = None if control is None else _control_value(control, edit.after)
        if control is None or value is None:
            return None
        changes[control] = value
    return linked_query({**question.model_dump(), **changes})


def _control_value(control: str, text: str) -> str | int | None:
    """Return what a control shows for the ``text`` of a job file; None where it cannot."""
    numbers = {"headroom_percent": _PERCENT, "adapter_rank": _RANK}
    if control in numbers:
        match = numbers[control].fullmatch(text)
        return None if match is None else int(match[1])
    if control == "offload":
        return text.strip("[]").replace(" ", "")
    return int(text) if text.isascii() and text.isdigit() else text
