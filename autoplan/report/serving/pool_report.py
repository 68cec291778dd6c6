"""What a report says of pools for prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from autoplan.results.serving.serving_front import ServingFront, ServingPlan
from autoplan.schema.serving.serving_limits import ServingObjective
from autoplan.units import format_bytes, format_seconds

__all__ = ["pool_lines", "pool_rows", "reached"]

#: Objectives that are times.
_TIMES: Final = frozenset({"time_to_first_token", "time_per_output_token", "request_latency"})


def pool_lines(front: ServingFront) -> Iterator[str]:
    """Yield whether pools are worth it, with the best plan of either kind and its figures."""
    compared = front.comparison
    if compared is None:
        return
    words = compared.objective.replace("_", " ")
    pools, both = compared.pools, compared.both
    if pools is None:
        yield "pools for prefill and decode: no pair of them holds the limits"
        return
    best = reached(pools, compared.objective)
    if both is None or compared.gain is None:
        yield f"pools for prefill and decode are the only way to hold the limits ({words}: {best})"
        yield from _layouts(pools)
        return
    verdict = "worth it" if compared.worth_it else "not worth it"
    yield (
        f"pools for prefill and decode are {verdict} by {words}: {best} at best, against"
        f" {reached(both, compared.objective)} of engines that do both ({compared.gain * 100:+.1f} %)"
    )
    yield from _layouts(pools)
    yield f"best engines that do both: {both.layout_string}"


def _layouts(plan: ServingPlan) -> Iterator[str]:
    """Yield the layout of each pool."""
    if plan.pools is not None:
        yield f"best pools, prefill: {plan.pools.prefill}"
        yield f"best pools, decode: {plan.pools.decode}"


def reached(plan: ServingPlan, objective: ServingObjective) -> str:
    """Return the value of an objective; price and power are those of each device."""
    if objective in _TIMES:
        value = getattr(plan, objective)
        return "-" if value is None else format_seconds(value)
    if objective == "devices":
        return f"{plan.devices} devices"
    if objective == "throughput":
        return f"{plan.output_tokens_per_second:,.0f} tokens/s"
    return f"{plan.output_tokens_per_second_per_device:,.0f} tokens/s of each device"


def pool_rows(plan: ServingPlan) -> list[tuple[str, str]]:
    """Return what goes between pools and which of them decides, as names with texts; none without pools."""
    pooled = plan.pooled
    if pooled is None:
        return []
    transfer, loaded = pooled.transfer, pooled.load.kind != "maximum"
    first, admission = pooled.prefill.time_to_first_token, pooled.decode.time_to_first_token
    sent = (
        f"{format_bytes(transfer.bytes)} a prompt, {format_bytes(transfer.bytes_per_link)} over the busiest"
    )
    took = (
        f"{format_seconds(transfer.seconds)}, {format_seconds(transfer.exposed_seconds)} of it after prefill"
    )
    most = (
        f"{pooled.most_prefilled:,.3g} requests/s prefill, {pooled.most_decoded:,.3g} decode,"
        f" {pooled.most_transferred:,.3g} transfer: {pooled.limit} decides"
    )
    rows = (
        [("prefill", f"{format_seconds(first)} with queue and front end")] if loaded and first < inf else []
    )
    rows.append(("transfer", f"{sent} link: {took}"))
    if loaded:
        rows.append(("admission", f"{format_seconds(admission)} in the decode engine"))
    return [*rows, ("at most", most)]
