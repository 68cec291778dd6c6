"""What picks by prediction are worth, and the order of layouts, on outcomes whose answers are known."""

from dataclasses import replace

import pytest

from benchmarks.serving.outcomes import ServedOutcome
from benchmarks.serving.served_choices import offline_order, slo_picks
from benchmarks.serving.served_runs import METRICS

FIRST, EACH, RATE, _ = METRICS
#: Measured time per token [s] by clients, for one device and for two.
POINTS = {("one", 1, n): 0.010 + 0.001 * n for n in (1, 2, 4, 8)} | {
    ("two", 2, n): 0.006 + 0.0005 * n for n in (1, 2, 4, 8)
}


def closed(one=1.0, two=1.0):
    """Return the points of one workload, predicted at a factor of the measured time for each layout."""
    factors = {"one": one, "two": two}
    return [
        ServedOutcome(
            f"{layout}-{clients}",
            mode="closed loop",
            engine="vllm@0.12",
            group="model|device|engine",
            devices=devices,
            layout=layout,
            clients=clients,
            inputs=512,
            outputs=128,
            measured={EACH: each},
            values={FIRST: None, EACH: factors[layout] * each, RATE: None},
        )
        for (layout, devices, clients), each in POINTS.items()
    ]


def test_right_predictions_pick_the_best_point_that_holds_each_limit():
    """Four limits of one workload: none is missed, and nothing better is left out."""
    (found,) = slo_picks(closed())

    assert found == {"of": "all", "questions": 4, "broke": 0.0, "regret": 0.0}


def test_predictions_that_say_half_the_time_break_limits():
    """The pick has too many clients: it misses the limit by more than runs differ."""
    (found,) = slo_picks(closed(0.5, 0.5))

    assert found["broke"] >= 0.5


def test_a_limit_holds_both_in_the_simulation_and_in_closed_form():
    """Simulations that say half the time break limits, unless the closed form says the whole."""
    points = [replace(x, closed_form_each=x.measured[EACH]) for x in closed(0.5, 0.5)]
    (found,) = slo_picks(points)

    assert found["broke"] == 0.0


def test_a_limit_that_nothing_is_said_to_hold_counts_as_broken():
    """A planner that finds nothing where something holds has not answered."""
    (found,) = slo_picks(closed(3.0, 3.0))

    assert found["broke"] == 1.0
    assert found["regret"] is None


def test_a_layout_taken_for_slower_than_it_is_costs_what_the_pick_loses():
    """Two devices look worse than they are, so the one device is picked where it holds the limit."""
    (found,) = slo_picks(closed(two=2.0))

    assert found["broke"] > 0 or found["regret"] > 0


def test_one_layout_and_few_points_ask_no_question():
    """There is nothing to choose."""
    assert slo_picks([x for x in closed() if x.layout == "one"]) == []


@pytest.mark.parametrize(
    ("predicted", "tau", "regret"), [((100.0, 150.0), 1.0, 0.0), ((150.0, 100.0), -1.0, 1.0)]
)
def test_the_order_of_offline_layouts(predicted, tau, regret):
    """Tokens/s/device: 100 of one device, 200 on four devices are 50 of each."""
    runs = [
        ServedOutcome(
            f"tp{devices}",
            mode="offline",
            engine="tensorrt-llm@1.0",
            group="model|device|engine",
            devices=devices,
            layout=f"tp{devices}",
            inputs=128,
            outputs=128,
            measured={RATE: rate},
            values={RATE: devices * (250.0 - value)},
        )
        for devices, rate, value in zip((1, 4), (100.0, 200.0), predicted, strict=True)
    ]

    (found,) = offline_order(runs)
    assert (found["tau"], found["regret"]) == (tau, regret)
