"""Random options of engines, and their fronts by brute force and by search."""

from itertools import product

from hypothesis import strategies as st

from autoplan.search.serving.engine_allocation import AllocationSearch, objective_values
from autoplan.search.serving.engine_options import WHOLE

__all__ = ["OBJECTIVES", "Engine", "engines", "front_by_force", "front_by_search"]

OBJECTIVES = (
    ("throughput_per_device", "time_per_output_token"),
    ("throughput", "devices"),
    ("throughput_per_device", "time_to_first_token", "time_per_output_token"),
    ("devices", "request_latency"),
    ("throughput",),
)


class Engine:
    """An option with devices, a share, tokens a second and times, as the search looks at it."""

    def __init__(self, devices, share, tokens, tpot, ttft, classes=(), *, alone=False):
        self.alone = alone
        self.devices, self.share, self.layout = devices, share, f"{devices}-{share}-{tokens}"
        self.predicted, self.classes = self, classes
        self.output_tokens_per_second = tokens
        self.time_per_output_token, self.time_to_first_token = tpot, ttft
        self.request_latency = ttft + 100 * tpot
        self.load = self
        self.kind = "closed loop"


def front_by_force(problem):
    """Return the objectives of all choices that no other dominates."""
    values = set()
    for counts in product(*(range(problem.devices // option.devices + 1) for option in problem.options)):
        devices = sum(n * option.devices for n, option in zip(counts, problem.options, strict=True))
        loads = [
            sum(
                n * option.share
                for n, option in zip(counts, problem.options, strict=True)
                if name in (option.classes or problem.classes or ("",))
            )
            for name in problem.classes or ("",)
        ]
        if not 1 <= devices <= problem.devices or (problem.shared and set(loads) != {WHOLE}):
            continue
        rates = [option.predicted.output_tokens_per_second for option in problem.options]
        rate = sum(n * each for n, each in zip(counts, rates, strict=True))
        if rate < problem.least_rate or rate < problem.least_rate_per_device * devices:
            continue
        values.add(objective_values(problem, counts))
    return {v for v in values if not any(_beats(other, v) for other in values)}


def _beats(one, other):
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def front_by_search(problem):
    """Return the objectives of the choices that the search finds, without thinning."""
    search = AllocationSearch(problem, 0.0)
    while search.next() is not None:
        pass
    assert not search.stopped
    values = {known.values for known in search.allocations}
    return {v for v in values if not any(_beats(other, v) for other in values)}


engines = st.builds(
    Engine,
    st.sampled_from((1, 2, 3, 4, 8)),
    st.sampled_from((WHOLE, WHOLE // 2, WHOLE // 3, WHOLE * 2 // 3, WHOLE // 4)),
    st.integers(1, 90).map(float),
    st.sampled_from((0.01, 0.02, 0.03, 0.05)),
    st.sampled_from((0.1, 0.2, 0.9)),
)
