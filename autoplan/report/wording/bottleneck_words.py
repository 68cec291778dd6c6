"""The sentence on what bounds a step, and what it is made of."""

from __future__ import annotations

from autoplan.results import Explanation

__all__ = ["bound_sentence"]

#: What a step that waits for it is called.
_BOUND: dict[str, str] = {
    "compute": "compute-bound",
    "HBM bandwidth": "bandwidth-bound (HBM)",
    "host": "host-bound",
    "network": "network-bound",
    "pipeline": "bound by the pipeline bubble",
}
#: Classes below this share are left to the JSON document.
_LEAST = 0.01


def bound_sentence(explanation: Explanation) -> str:
    """Return what the step waits for, with the share of each class of work; empty where nobody asked.

    >>> from types import SimpleNamespace as Its
    >>> shares = [Its(name="small kernels and host", share=0.6), Its(name="HBM bandwidth", share=0.4)]
    >>> bound_sentence(Its(bound="host", bottlenecks=shares))
    'the step is host-bound: 60 % small kernels and host, 40 % HBM bandwidth'
    """
    if not explanation.bottlenecks:
        return ""
    shares = [f"{100 * x.share:.0f} % {x.name}" for x in explanation.bottlenecks if x.share >= _LEAST]
    return f"the step is {_BOUND[explanation.bound]}: {', '.join(shares)}"
