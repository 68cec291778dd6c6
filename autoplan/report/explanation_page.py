"""Why a layout does or does not fit, and what would make room, as a page that stands on its own (HTML)."""

from __future__ import annotations

from html import escape
from typing import Final

from autoplan.report.charts.memory_svg import memory_svg
from autoplan.report.render.svg import printable
from autoplan.report.render.terminal import Terminal
from autoplan.report.wording.bottleneck_words import bound_sentence
from autoplan.report.wording.remedy_words import (
    REMEDY_HEADS,
    remedy_note,
    remedy_rows,
    remedy_title,
    verdict_sentences,
)
from autoplan.report.wording.sentences import job_lines, surety_sentences
from autoplan.report.wording.standing_words import standing_sentence
from autoplan.results import Explanation
from autoplan.schema.job import Job

__all__ = ["explanation_page"]

_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ margin: 2rem auto; max-width: 76rem; padding: 0 1rem; font: 15px/1.5 system-ui, sans-serif;
  color: #1f2328; background: #ffffff }}
h1 {{ font-size: 1.3rem }}
h2 {{ font-size: 1.1rem }}
code {{ font-size: 0.9em; overflow-wrap: anywhere }}
svg {{ max-width: 100%; height: auto }}
.picture, .table {{ overflow-x: auto }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ padding: 0.3rem 0.7rem; border-bottom: 1px solid #d1d9e0; text-align: left;
  vertical-align: top }}
.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }}
.quiet {{ color: #59636e }}
.yes {{ color: #1a7f37 }}
.no {{ color: #cf222e }}
@media (prefers-color-scheme: dark) {{
  body {{ color: #e6edf3; background: #0d1117 }}
  th, td {{ border-color: #3d444d }}
  .quiet {{ color: #9198a1 }}
  .yes {{ color: #3fb950 }}
  .no {{ color: #ff7b72 }}
}}
</style>
</head>
<body>
{body}
</body>
</html>
"""

#: Columns of text; the others are numbers.
_TEXT_COLUMNS: Final = frozenset({"remedy", "fits", "change"})


def explanation_page(job: Job, explanation: Explanation) -> str:
    """Return the memory timeline of a layout and its remedies as a self-contained HTML page."""
    plan = explanation.plan
    what, conditions = job_lines(job, plan.facts, Terminal())
    verdict, *more = verdict_sentences(job, plan.predicted)
    notes = [remedy_note(job), *surety_sentences(job, [plan.predicted])]
    body = [
        _element("h1", what),
        _element("p", conditions, "quiet"),
        f"<p><code>{_safe(plan.layout_string)}</code></p>",
        _element("p", verdict, "yes" if plan.predicted.fits else "no"),
        *(_element("p", sentence) for sentence in more),
        _element("p", standing_sentence(explanation.standing)),
        _element("p", bound_sentence(explanation)),
        f'<div class="picture">\n{memory_svg(job, plan)}</div>',
        _element("h2", remedy_title(explanation)),
        *([_table(explanation)] if explanation.remedies else []),
        *(_element("p", note, "quiet") for note in notes),
    ]
    return _PAGE.format(title=_safe(f"{job.name}: {plan.layout_string}"), body="\n".join(body))


def _safe(text: str) -> str:
    return escape(printable(text))


def _element(name: str, text: str, kind: str = "") -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<{name}{attribute}>{_safe(text)}</{name}>"


def _table(explanation: Explanation) -> str:
    heads = [head.replace("\n", " ") for head in (*REMEDY_HEADS, "change")]
    head = "".join(_element("th", text, "" if text in _TEXT_COLUMNS else "number") for text in heads)
    rows = [
        f"<tr>{''.join(map(_cell, heads, cells))}<td><code>{_safe(remedy.change)}</code></td></tr>"
        for cells, remedy in zip(remedy_rows(explanation), explanation.remedies, strict=True)
    ]
    body = "\n".join(rows)
    return (
        f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _cell(head: str, text: str) -> str:
    if head == "fits":
        return _element("td", text, "yes" if text == "yes" else "no")
    return _element("td", text, "" if head in _TEXT_COLUMNS else "number")
