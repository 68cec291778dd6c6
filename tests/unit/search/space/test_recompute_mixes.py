"""Rules about one stage, evaluated for all of its mixes at once."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autoplan.schema.job import RuleSpec
from autoplan.schema.user_rules.expression import Known, decided, left_of
from autoplan.search.space.recompute_mixes import parts_of, stage_rules

#: Modes that the rules name: of all modes the mixes would be millions.
_MODES = ("selective", "mlp", "full")
_LAYERS = 4


@pytest.mark.parametrize(
    "rule",
    [
        "selective[each] == 0 or selective[each] == layers[each]",
        "full[each] % 3 == 0 or full[each] == layers[each]",
        "layers[0] % full[0] == 0 or selective[0] // mlp[0] > 1",
        "layers[0] / 3 <= full[0] and layers[0] - full[0] * 2 != 1",
        "full[0] * 5000 * 5000 * 5000 * 5000 * 5000 * 5000 > selective[0] * 5000 * 5000 * 5000 * 5000",
        "not (full[0] >= 1 and (selective[0] >= 1 or layers[0] != 3))",
        "full[0] / selective[0] == 1 or full[0] == 0",
        "layers[5] == 7",
    ],
)
def test_rules_of_a_stage_hold_as_for_each_mix_alone(rule: str) -> None:
    """What is evaluated in arrays, or in fractions row by row, agrees with the tree of the rule."""
    whole = left_of(RuleSpec(rule=rule).relation, Known({}, stages=2))
    (rules, _) = stage_rules(tuple(parts_of([whole])), 2)
    rows = list(product(range(1, _LAYERS + 1), *[range(_LAYERS)] * len(_MODES)))
    layers, *counts = np.array(rows).T
    allowed = rules.allows(layers, dict(zip(_MODES, counts, strict=True)))
    names = ("layers", *_MODES)
    for row, kept in zip(rows, allowed.tolist(), strict=True):
        entries = {(name, 0): n for name, n in zip(names, row, strict=True)}
        # The other stage may have anything that satisfies its rules.
        assert kept == all(decided(node, Known({}, 2, entries)) for node in rules.of_stage)


def test_modes_that_are_left_out_have_no_layers() -> None:
    """Without counts, the rules are those of a stage without recompute."""
    relation = left_of(RuleSpec(rule="full[0] == 0 and layers[0] > 2").relation, Known({}, stages=1))
    (rules,) = stage_rules(tuple(parts_of([relation])), 1)
    assert rules.allows(np.array([2, 3]), {}).tolist() == [False, True]
    assert rules.allows(3, {"selective": np.array([1.0, 2.0])}).tolist() == [True, True]
