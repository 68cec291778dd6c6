"""What a launch file says, as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import yaml

from autoplan.launch.configuration import Configuration, FileComparison, FileEdit, Improvement
from autoplan.report.document_fields import Document, brief, plain
from autoplan.report.render.blocks import (
    GAP,
    Block,
    Column,
    Heading,
    LayoutLine,
    Sentence,
    TypedLines,
    data_table,
    heading,
    items,
)
from autoplan.report.render.terminal import Terminal, render
from autoplan.results.plan import Plan, layout_fields
from autoplan.schema.layout import Layout
from autoplan.units import format_seconds

if TYPE_CHECKING:
    from autoplan.answers.configure.engine_launches import BetterPlan

# The layout of a file, the proven best, and the edits that gain most, as a document and as text.


def comparison_document(comparison: FileComparison) -> Document:
    """Return ``found`` as a document, without the layout's own prediction."""
    return {
        "file": comparison.file,
        "framework": comparison.framework,
        "best": brief(comparison.best) if comparison.best else None,
        "best_proven": comparison.proven,
        "step_saved_by_best": _saved(comparison.own, comparison.best) if comparison.best else None,
        "slower_than_best": _slower(comparison.own, comparison.best) if comparison.best else None,
        "improvements": [_improvement(comparison, each) for each in comparison.improvements],
        "notes": list(comparison.notes),
    }


def _improvement(comparison: FileComparison, each: Improvement) -> dict[str, Any]:
    return {
        "changes": list(each.changes),
        "edits": plain(each.edits),
        "step_saved": _saved(comparison.own, each.plan),
        **brief(each.plan),
    }


def comparison_text(comparison: FileComparison, terminal: Terminal) -> str:
    """Return ``found`` as text: the best, and the edits."""
    return render(_comparison_blocks(comparison), terminal)


def _comparison_blocks(comparison: FileComparison) -> Iterator[Block]:
    yield Heading(_head(comparison))
    if comparison.best is not None:
        yield LayoutLine(comparison.best.layout_string, indent=2)
    for each in comparison.improvements:
        yield GAP
        yield Sentence(_gain_sentence(comparison, each))
        words = map(_edit_words, each.edits) if each.edits else _by_hand(comparison.own, each.plan)
        yield TypedLines(tuple(f"  {text}" for text in words))
    if comparison.notes:
        yield GAP
        yield items(comparison.notes)


def _head(comparison: FileComparison) -> str:
    if comparison.best is None:
        return "no layout fits the job: `autoplan plan` says why"
    best = format_seconds(comparison.best.predicted.step_seconds)
    proof = "the proven best" if comparison.proven else "the best found"
    slower = _slower(comparison.own, comparison.best)
    if not comparison.own.predicted.fits:
        return f"the layout of {comparison.file} does not fit; {proof} takes {best} per step"
    if slower < 0.0005:
        return f"the layout of {comparison.file} is as fast as {proof}"
    saved = _saved(comparison.own, comparison.best) * 100
    run = format_seconds(comparison.own.predicted.step_seconds)
    return (
        f"the layout of {comparison.file} takes {run} per step: {proof} saves {saved:.1f} %, {best} per step"
    )


def _slower(run: Plan, best: Plan) -> float:
    """Return by which share of the best step the layout is slower."""
    return run.predicted.step_seconds / best.predicted.step_seconds - 1


def _saved(run: Plan, other: Plan) -> float:
    """Return which share of the layout's step is saved."""
    return 1 - other.predicted.step_seconds / run.predicted.step_seconds


def _gain_sentence(comparison: FileComparison, each: Improvement) -> str:
    count = len(each.changes)
    step = format_seconds(each.plan.predicted.step_seconds)
    saved = _saved(comparison.own, each.plan) * 100
    verb = "saves" if saved >= 0 else "costs"
    fits = ", and fits" if each.plan.predicted.fits and not comparison.own.predicted.fits else ""
    alone = "alone" if count == 1 else "together"
    return f"{' and '.join(each.changes)} {alone}: {verb} {abs(saved):.1f} %, {step} per step{fits}"


def _by_hand(run: Plan, other: Plan) -> Iterator[str]:
    """Yield the fields of a layout that change, where no edits of its file are written.

    Fields that follow from others are left out unless they alone change.
    """
    before, after = layout_fields(run.layout), layout_fields(other.layout)
    for key, value in after.items():
        if key not in {*_HIDDEN, "dp_shard", "stages"} and before.get(key) != value:
            yield f"{key}: {_field_text(before.get(key))} to {_field_text(value)}"


def _field_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _edit_words(edit: FileEdit) -> str:
    where = f"line {edit.line}: " if edit.line else ""
    places = ", ".join(filter(None, (edit.file, edit.path.rpartition(".")[0])))
    below = f" (in {places})" if places else ""
    if not edit.before:
        return f"add {edit.after}{below}"
    return f"{where}{edit.before} -> {edit.after or '(remove)'}{below}"


# What is better than the engines of a file, as text and as a document.


def better_text(better: BetterPlan | None, *, proven: bool) -> str:
    """Return how far the engines of a file are from the front, of which all was searched if it is proven."""
    if better is None and not proven:
        return "No better plan was found before the search ended: a longer --deadline may find one.\n"
    if better is None:
        return "No plan has as many tokens/s a device in as short a time per token.\n"
    lines = [f"Better: {better.plan.layout_string}", _gains(better), *better.changes]
    return "\n- ".join(lines) + "\n"


def _gains(better: BetterPlan) -> str:
    """Return by how much a plan is better, or what it serves where the engines of a file serve nothing."""
    rate, each = better.throughput_per_device_gain, better.time_per_output_token_gain
    if rate is None:
        served = better.plan.output_tokens_per_second_per_device
        return f"{served:,.0f} tokens/s a device, where the engines of the file serve none"
    gain = f"{rate:+.0%} tokens/s a device".replace("%", " %")
    if each is None:
        return gain
    return f"{gain}, time per token {abs(each) * 100:.0f} % {'shorter' if each >= 0 else 'longer'}"


def better_document(better: BetterPlan) -> Document:
    """Return a plan that is better than the engines of a file as a document."""
    plan = better.plan
    return {
        "layout_string": plan.layout_string,
        "output_tokens_per_second_per_device": plan.output_tokens_per_second_per_device,
        "time_per_output_token_seconds": plan.time_per_output_token,
        "throughput_per_device_gain": better.throughput_per_device_gain,
        "time_per_output_token_gain": better.time_per_output_token_gain,
        "changes": list(better.changes),
    }


#: Fields of a layout that a table leaves out: they are in others, or usual.
_HIDDEN: Final = frozenset({"selective", "full", "schedule"})


def configuration_blocks(document: Mapping[str, Any], _: Terminal) -> list[Block]:
    """Return the document of a configuration as blocks: fields with their lines, and what is open."""
    lines = heading([f"{document['file']}: a configuration of {document['framework']}"])
    return [*lines, *_blocks(document)]


def _blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    rows = list(_rows(document))
    where = [_where(document, key) for key, _ in rows]
    columns = [
        Column("field", tuple(key for key, _ in rows), "text"),
        Column("value", tuple(value for _, value in rows), "text"),
        Column("from", tuple(where), "text"),
    ]
    yield data_table(columns)
    yield GAP
    if document["layout_string"]:
        yield LayoutLine(document["layout_string"], "layout: ")
    sentences = [f"not in the file: {', '.join(document['unspecified'])}"] if document["unspecified"] else []
    yield items([*sentences, *document["warnings"]], "")


def _rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    job = document["job"]
    model = job.get("model")
    yield "model", model if isinstance(model, str) else _described(model)
    for key in ("devices", "precision", "optimizer"):
        if key in job:
            yield key, _listed_keys(job[key])
    yield from ((key, str(value)) for key, value in job.get("workload", {}).items())
    for key in ("adapters", "software", "routing"):
        if key in job:
            yield key, ", ".join(f"{name}: {value}" for name, value in job[key].items())
    for key, value in document["layout"].items():
        if key not in _HIDDEN and value is not None:
            yield key, _value_text(value)


def _listed_keys(value: object) -> str:
    """Return a value; of a section its keys and values."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {inner}" for name, inner in value.items())
    return str(value)


def _described(model: Mapping[str, Any] | None) -> str:
    if not model:
        return "unknown"
    parts = [f"{model['layers']} layers", f"hidden size {model['hidden_size']}", f"{model['heads']} heads"]
    if "moe" in model:
        parts.append(f"{model['moe']['experts']} experts")
    return ", ".join(parts)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "/".join(map(str, value)) if isinstance(value, list) else str(value)


def _where(document: Mapping[str, Any], key: str) -> str:
    if key in document["lines"]:
        return f"line {document['lines'][key]}"
    return "default" if key in document["defaults"] else ""


#: Version of the document; goes up when it changes in a way that breaks a reader.
_SCHEMA: Final = 1
_WIDTH: Final = 100


def configuration_document(configuration: Configuration) -> dict[str, Any]:
    """Return ``configuration`` as a document."""
    written = {key: value.line for key, value in configuration.values.items() if value.value is not None}
    return {
        "schema": _SCHEMA,
        "framework": configuration.framework,
        "file": configuration.file,
        "layout": dict(configuration.layout_fields),
        "layout_string": configuration.layout_string,
        "job": _plain(configuration.job),
        "lines": {key: line for key, line in written.items() if line},
        "defaults": list(configuration.defaults),
        "unspecified": list(configuration.unspecified),
        "warnings": list(configuration.warnings),
    }


def job_text(configuration: Configuration, stack: str | None, hardware: str | None = None) -> str:
    """Return ``configuration`` as a job file, with comments on what the file does not say.

    The layout is in a comment. Launch files do not name the hardware: it is what the user says, or to be
    added, and so is the stack, of which ``stack`` is the usual one.
    """
    job = {"kind": "training", **_plain(configuration.job)}
    if hardware is not None:
        model = {"model": job.pop("model")} if "model" in job else {}
        job = {"kind": job.pop("kind"), **model, "hardware": hardware, **job}
    lines = [f"# read from {configuration.file}, a configuration of {configuration.framework}"]
    if configuration.layout_string:
        lines.append(f"# its layout: {configuration.layout_string}")
    lines += [f"# not in the file: {field}" for field in configuration.unspecified]
    lines += [f"# {warning}" for warning in configuration.warnings]
    if hardware is None:
        lines.append("# add the hardware, such as `hardware: dgx-h100` (`autoplan catalog list node`)")
    if stack is not None:
        lines.append(
            f"# what prices it may be added, such as `stack: {stack}` (`autoplan catalog list stack`)"
        )
    text: str = yaml.safe_dump(job, sort_keys=False, width=_WIDTH)
    return "".join(f"{_one_line(line)}\n" for line in lines) + text


def _one_line(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", " ", text)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value in, any JSON value out
    if isinstance(value, Layout):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, tuple | list) else value
