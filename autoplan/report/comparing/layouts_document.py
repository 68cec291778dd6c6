"""Layouts side by side as a document."""

from __future__ import annotations

from autoplan.report.comparing.collective_places import place_words
from autoplan.report.comparing.comparison_words import conclusion
from autoplan.report.document_fields import SCHEMA, Document, brief, difference_document, job_document, plain
from autoplan.report.wording.provenance import provenance
from autoplan.results.comparing.compared_layouts import CollectiveTraffic, ComparedLayout, LayoutComparison
from autoplan.results.comparing.crossovers import KnobRange

__all__ = ["layouts_document"]


def layouts_document(comparison: LayoutComparison) -> Document:
    """Return the comparison as a document; layouts have numbers from 1, in the order asked for."""
    noise = comparison.noise
    return {
        "schema": SCHEMA,
        "kind": "comparison",
        "job": job_document(comparison.job, comparison.plans[0].facts),
        "conclusion": conclusion(comparison),
        "winner": comparison.order[0] + 1,
        "order": [number + 1 for number in comparison.order],
        "order_noise": plain(noise),
        "layouts": [_layout(comparison, number) for number in range(len(comparison.layouts))],
        "replanned": comparison.replanned,
        "crossovers": [_knob(knob) for knob in comparison.knobs],
        "best": brief(comparison.best) if comparison.best else None,
        "best_proven": comparison.best_proven,
        "best_why": comparison.best_why,
        "missing": plain(comparison.missing),
        "notes": list(comparison.notes),
        "provenance": plain(provenance(comparison.job)),
    }


def _layout(comparison: LayoutComparison, number: int) -> Document:
    compared: ComparedLayout = comparison.layouts[number]
    return {
        "name": compared.name,
        **brief(compared.plan),
        "latency_seconds": compared.latency_seconds,
        "splits": plain(compared.splits),
        "collectives": [_traffic(x) for x in compared.traffic],
        "communication": [{**plain(x), "hidden_seconds": x.hidden_seconds} for x in compared.axes],
        "losses": [difference_document(x) for x in comparison.losses(number)],
    }


def _traffic(traffic: CollectiveTraffic) -> Document:
    return {
        **plain(traffic),
        "sent_bytes_per_layer": traffic.sent_bytes_per_layer,
        "place": place_words(traffic),
    }


def _knob(solved: KnobRange) -> Document:
    """Return a knob with its crossings; winners are numbers of layouts from 1."""
    document: Document = plain(solved)
    for key in ("winner_at_least", "winner_at_most"):
        document[key] = _numbered(document[key])
    for crossing in document["crossings"]:
        for side in ("below", "above"):
            crossing[side]["winner"] = _numbered(crossing[side]["winner"])
    return document


def _numbered(index: int | None) -> int | None:
    return None if index is None else index + 1
