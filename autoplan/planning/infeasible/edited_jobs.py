"""Jobs after edits of their files: the same jobs that reading the edited files gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

from autoplan.catalog.entries import assumed_stack, device, hardware, kernels_at, stack
from autoplan.catalog.job_files import edited_file, usual_objectives
from autoplan.catalog.programs import ANY_LAYOUT, with_programs_again
from autoplan.catalog.relatives import kernels_for
from autoplan.catalog.roots import entry_names
from autoplan.errors import UnsupportedError
from autoplan.results.front import Edit, Front
from autoplan.results.merged_front import choice_key
from autoplan.schema.adapters import AdapterSpec
from autoplan.schema.costmodel.software import SoftwareSpec, with_software
from autoplan.schema.job import Cluster, Job, JobSpec
from autoplan.schema.post_training import RLSpec
from autoplan.schema.resolved_job import hashes
from autoplan.schema.yaml.document import Document, Plain
from autoplan.schema.yaml.loader import validate
from autoplan.schema.yaml.parser import parse_yaml
from autoplan.units import Dimension, quantity_text

#: New values of keys of a job file, as YAML.
Changes: TypeAlias = tuple[tuple[str, str], ...]

_DIMENSIONS: Final[dict[str, Dimension]] = {
    "peak_memory": "bytes",
    "memory_headroom": "share",
    "step_time": "seconds",
    "energy": "joules",
}
#: Sections of a job whose keys are set one by one.
_SECTIONS: Final = ("search", "limits", "software")
#: Value of a key that is left out of the file, for its reader.
_DEFAULT: Final = "the default"


def choices_of(job: Job) -> tuple[Job, ...]:
    """Return the jobs with one number of devices and one batch that ``job`` is planned for."""
    return job.choices or (job,)


def on_all(job: Job, change: Callable[[Job], Job]) -> Job:
    """Return ``job`` with ``change`` made to it and to all of its choices."""
    return replace(change(job), choices=tuple(map(change, job.choices)))


def keys_in_file(job: Job) -> frozenset[str]:
    """Return which of stack, kernels and devices the file of ``job`` sets, so that hardware does not."""
    if job.source is not None:
        return job.source.keys & {"stack", "kernels", "devices"}
    other_kernels = job.kernels != kernels_for(job.cluster.device.name)
    return frozenset({"devices", "kernels"} if other_kernels else {"devices"})


def edits_of(job: Job, changes: Changes) -> tuple[Edit, ...]:
    """Return ``changes`` of the file of ``job`` with the present values; those of no effect are left out."""
    edits = (Edit(key, _present(job, key), after) for key, after in changes)
    return tuple(edit for edit in edits if edit.before != edit.after)


def _present(job: Job, key: str) -> str:
    """Return the value of ``key`` in the file of ``job`` as YAML."""
    section, _, inner = key.partition(".")
    if section == "search":
        return _listed(getattr(job.search, inner))
    if section == "software":
        chosen = getattr(job.software, inner)
        return _DEFAULT if chosen is None else json.dumps(chosen).strip('"')
    if section == "limits":
        value = getattr(job.limits, inner)
        return quantity_text(value, _DIMENSIONS[inner]) if inner in _DIMENSIONS and value else _listed(value)
    if key in {"stack", "kernels"} and key not in keys_in_file(job):
        return _DEFAULT
    default = " (default)" if key == "devices" and key not in keys_in_file(job) else ""
    return _PRESENT[key](job) + default


def _listed(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, float):
        return f"{value:.10g}"
    return "none" if value is None else str(value)


def _several(values: Sequence[int]) -> str:
    distinct = tuple(dict.fromkeys(values))
    return str(distinct[0]) if len(distinct) == 1 else _listed(distinct)


def _flow(part: AdapterSpec | RLSpec) -> str:
    """Return what a job says of its adapters or its method as YAML on one line."""
    keys = part.model_dump(exclude_defaults=True)
    return f"{{{', '.join(f'{key}: {_listed(value)}' for key, value in keys.items())}}}"


def rules_text(job: Job) -> str:
    """Return the rules of ``job`` as one line of YAML."""
    rules = [rule.model_dump(exclude_none=True) if rule.because else rule.rule for rule in job.rules]
    return json.dumps(rules, ensure_ascii=False)


_PRESENT: Final[dict[str, Callable[[Job], str]]] = {
    "hardware": lambda job: job.cluster.node.name if job.source is None else job.source.hardware,
    "devices": lambda job: _several([c.cluster.devices for c in choices_of(job)]),
    "stack": lambda job: job.stack.name,
    "kernels": lambda job: job.kernels.name,
    "workload.sequence_length": lambda job: str(job.workload.sequence_length),
    "workload.global_batch_size": lambda job: _several(
        [c.workload.global_batch_size for c in choices_of(job)]
    ),
    "optimizer": lambda job: job.optimizer,
    "adapters": lambda job: "none" if job.adapters is None else _flow(job.adapters),
    "rl": lambda job: "none" if job.rl is None else _flow(job.rl),
    "adapters.base": lambda job: (job.adapters and job.adapters.base) or "none",
    "program": lambda job: _listed(job.programs),
    "rules": rules_text,
}


def edited(job: Job, edits: Sequence[Edit]) -> Job:
    """Return the job of the file of ``job`` with ``edits`` made.

    Raises AutoplanError where the edited file names something that is unknown or does not go together.
    """
    changed = job
    for edit in edits:
        changed = _edited(changed, edit.key, parse_yaml(f"value: {edit.after}", name="edit").at(["value"]))
    run = with_programs_again(changed)
    # What no program ran before may stay so, but not by naming another one.
    may_stay = job.program is None and job.programs == changed.programs
    if not may_stay and changed.programs not in {None, ANY_LAYOUT} and run.program is None:
        raise UnsupportedError("no program runs the job with these edits")
    return run


def _edited(job: Job, key: str, value: Any) -> Job:  # noqa: ANN401 - a value of any key
    section, _, inner = key.partition(".")
    if section in _SECTIONS:
        part = getattr(job, section)
        checked = validate(Document("edit", {inner: value}, 1), type(part))
        changed = part.model_copy(update={inner: getattr(checked, inner)})
        if section == "software":
            return on_all(job, lambda one: _with_software(one, changed))
        return _with(job, **{section: changed})
    return _EDITED[key](job, value)


def _with_software(job: Job, software: SoftwareSpec) -> Job:
    """Return ``job`` with all choices of ``software``, made to the stack as its file has it.

    A stack of a file is in no catalogue: there they are made on top of those that were made before.
    """
    if job.stack_assumed:
        base = assumed_stack(job.cluster.node)
    else:
        base = stack(job.stack.name) if job.stack.name in entry_names("stack") else job.stack
    return replace(job, software=software, stack=with_software(base, software))


def _with_hardware(job: Job, name: str) -> Job:
    """Return ``job`` on other hardware, with the defaults of that hardware where the file sets none."""
    node, available = hardware(name, Path())
    kind, file_keys = device(node.device), keys_in_file(job)
    _require_power(job, kind.power is not None, kind.name)
    fixed = job.source is None or "stack" in file_keys
    stack = job.stack if fixed else with_software(assumed_stack(node), job.software)
    kernels = job.kernels if "kernels" in file_keys else kernels_for(kind.name)

    def moved(one: Job) -> Job:
        devices = one.cluster.devices if "devices" in file_keys else available
        return replace(one, cluster=Cluster(kind, node, devices), stack=stack, kernels=kernels)

    return on_all(job, moved)


def _require_power(job: Job, has_power: bool, name: str) -> None:  # noqa: FBT001
    if not has_power and ("energy" in job.objectives or job.limits.energy is not None):
        raise UnsupportedError(f"energy needs the power of {name}, which is missing in its file")


def _with_workload(job: Job, key: str, value: int) -> Job:
    return replace(job, workload=job.workload.model_copy(update={key: value}))


def _with_choices(job: Job, change: Callable[[Job], Job]) -> Job:
    """Return ``job`` with ``change`` made to its choices, those that are equal then once."""
    objectives, by_default = job.objectives, usual_objectives(*_counts(choices_of(job)))
    if "objectives" not in job.source.keys if job.source else objectives == by_default:
        objectives = usual_objectives(*_counts([change(one) for one in choices_of(job)]))
    changed = {choice_key(one): one for one in (change(one) for one in reversed(choices_of(job)))}
    choices = [replace(one, objectives=objectives, choices=()) for one in reversed(changed.values())]
    several = tuple(choices) if len(choices) > 1 else ()
    return replace(choices[0], choices=several, source=job.source, programs=job.programs)


def _counts(choices: Sequence[Job]) -> tuple[int, int]:
    devices, batches, _ = zip(*map(choice_key, choices), strict=True)
    return len(set(devices)), len(set(batches))


def _with(job: Job, **fields: Any) -> Job:  # noqa: ANN401 - values of any fields
    """Return ``job`` with ``fields`` set in it and in all of its choices."""
    return on_all(job, lambda one: replace(one, **fields))


def _with_stack(job: Job, name: str) -> Job:
    # A stack of the program's own is in no catalogue; an assumed one has a wider interval than a named one.
    unchanged = name == job.stack.name and not job.stack_assumed
    chosen = job.stack if unchanged else with_software(stack(name), job.software)
    # A stack that is named without a program is of any layout.
    return _with(job, stack=chosen, stack_assumed=False, program=None, programs=None)


def _with_optimizer(job: Job, name: str) -> Job:
    field = JobSpec.model_fields["optimizer"]
    assert name in get_args(field.annotation)  # noqa: S101 - an edit of our own
    return _with(job, optimizer=name)


def _with_base(job: Job, name: str) -> Job:
    field = AdapterSpec.model_fields["base"]
    assert name in str(field.annotation)  # noqa: S101 - an edit of our own
    return on_all(
        job,
        lambda one: replace(one, adapters=one.adapters and one.adapters.model_copy(update={"base": name})),
    )


def _with_rules(job: Job, rules: Plain) -> Job:
    """Return ``job`` with ``rules``, which are some of the job's."""
    remaining = list(rules) if isinstance(rules, tuple) else []
    numbers = []
    for number, rule in enumerate(job.rules):
        texts = (rule.rule, {"rule": rule.rule}, {"rule": rule.rule, "because": rule.because})
        if remaining and remaining[0] in texts:
            numbers.append(number)
            remaining.pop(0)
    lines = tuple(job.rule_lines[i] for i in numbers) if job.rule_lines else ()
    return _with(job, rules=tuple(job.rules[i] for i in numbers), rule_lines=lines)


_EDITED: Final[dict[str, Callable[[Job, Any], Job]]] = {
    "hardware": _with_hardware,
    "devices": lambda job, devices: _with_choices(
        job, lambda one: replace(one, cluster=replace(one.cluster, devices=devices))
    ),
    "stack": _with_stack,
    "kernels": lambda job, name: _with(job, kernels=kernels_at(name, Path())),
    "workload.sequence_length": lambda job, length: on_all(
        job, lambda one: _with_workload(one, "sequence_length", length)
    ),
    "workload.global_batch_size": lambda job, batch: _with_choices(
        job, lambda one: _with_workload(one, "global_batch_size", batch)
    ),
    "optimizer": _with_optimizer,
    "adapters": lambda job, value: _with(job, adapters=validate(Document("edit", value, 1), AdapterSpec)),
    "rl": lambda job, value: _with(job, rl=validate(Document("edit", value, 1), RLSpec)),
    "adapters.base": _with_base,
    "program": lambda job, name: on_all(replace(job, programs=name), lambda one: replace(one, programs=name)),
    "rules": _with_rules,
}


def applied(front: Front, number: int, folder: Path | None = None) -> str:
    """Return the job file of ``front`` with the suggestion ``number``, from 1, applied.

    Relative paths in it are rewritten for a file in ``folder``, by default the current one. Raises
    UnsupportedError where there is no such suggestion, where the job comes from no file, and where the edited
    file would not be the job that the edits were priced for.
    """
    _require_suggestion(front, number)
    edits = front.suggestions[number - 1].edits
    text, edited_job = edited_file(front.job, ((edit.key, edit.after) for edit in edits), folder or Path())
    if hashes(edited_job) != hashes(edited(front.job, edits)):
        raise UnsupportedError(
            f"new values of {', '.join(edit.key for edit in edits)} would change other keys too, since values"
            " in the file refer to each other: edit it by hand"
        )
    return text


def _require_suggestion(front: Front, number: int) -> None:
    """Raise UnsupportedError where ``front`` has no suggestion ``number``."""
    if front.feasible:
        raise UnsupportedError("there is nothing to apply: the job has a plan as it is")
    count = len(front.suggestions)
    if not 1 <= number <= count:
        have = {0: "no change that helps was found", 1: "there is one change, 1"}
        more = front.suggestions_stopped
        hint = f"; {more} before all were found: give more with --deadline" if more else ""
        available = have.get(count, f"changes are 1 to {count}")
        raise UnsupportedError(f"there is no change {number}: {available}{hint}")
