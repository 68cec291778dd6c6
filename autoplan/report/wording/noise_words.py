"""The sentence on plans that the cost model cannot tell apart."""

from __future__ import annotations

from autoplan.results import OrderNoise

__all__ = ["noise_sentence"]


def noise_sentence(noise: OrderNoise | None) -> str:
    """Return the sentence on plans within the noise of the model, empty if there is one alone.

    >>> noise_sentence(OrderNoise(0.03, (1, 2, 3, 5), simplest=2, smallest=5))
    'plans 1 to 3 and 5 are within 3 % in step time, less than the cost model can tell apart: plan 2 is the\
 simplest of them, plan 5 needs the least memory'
    """
    if noise is None:
        return ""
    which = f"plan {noise.simplest} is the simplest of them"
    if noise.smallest == noise.simplest:
        which += " and needs the least memory"
    else:
        which += f", plan {noise.smallest} needs the least memory"
    within = f"within {100 * noise.share:.2g} % in step time"
    return f"plans {_ranges(noise.plans)} are {within}, less than the cost model can tell apart: {which}"


def _ranges(numbers: tuple[int, ...]) -> str:
    """Return ascending ``numbers`` with consecutive ones as ranges.

    >>> _ranges((1, 2)), _ranges((1, 2, 3, 5)), _ranges((1, 3, 5))
    ('1 and 2', '1 to 3 and 5', '1, 3 and 5')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run]
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
