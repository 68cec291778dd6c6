"""Rules of the user's own as a job says them, and what each means, in plain Python."""

from __future__ import annotations

__all__ = ["OWN"]


def alike(x):
    """Return whether every stage recomputes the same numbers of layers, or all of them in one way."""
    of_modes = [counts for _, counts in x.recomputed]
    return all(len(set(counts)) == 1 for counts in of_modes) or of_modes == [x.layers]


def full(x):
    """Return the layers of each stage with full recompute."""
    return x.counts("full")


#: Rules as a job says them, and what each means, in Python. A stage that there is not keeps any rule.
OWN = [
    ("tp * pp <= 4", lambda x, _: x.tp * x.pp <= 4),
    ("mbs in {1, 2}", lambda x, _: x.microbatch in {1, 2}),
    ("microbatches >= 2 * pp", lambda x, job: batches(job, x) >= 2 * x.pp),
    ("schedule == 1f1b", lambda x, _: x.schedule == "1f1b"),
    ("not (sp == on and dp > 1)", lambda x, _: not (x.sequence_parallel and x.dp > 1)),
    ("pp >= 2", lambda x, _: x.pp >= 2),
    ("layers[0] <= layers[-1]", lambda x, _: x.layers[0] <= x.layers[-1]),
    ("layers[0] < layers[1]", lambda x, _: x.pp < 2 or x.layers[0] < x.layers[1]),
    ("layers[0] % 2 == 0", lambda x, _: x.layers[0] % 2 == 0),
    ("layers is uniform", lambda x, _: len(set(x.layers)) == 1),
    ("max(layers) - min(layers) <= 1", lambda x, _: max(x.layers) - min(x.layers) <= 1),
    ("recompute is uniform", lambda x, _: alike(x)),
    ("full is uniform", lambda x, _: len(set(full(x))) == 1),
    ("full[0] >= 1", lambda x, _: full(x)[0] >= 1),
    ("full[0] + selective[0] <= full[-1] + selective[-1]", lambda x, _: again(x, 0) <= again(x, -1)),
    ("sum(full) <= sum(layers) / 3", lambda x, _: 3 * sum(full(x)) <= sum(x.layers)),
    ("sum(full) in {0, 2, 3}", lambda x, _: sum(full(x)) in {0, 2, 3}),
    ("sum(selective) // 2 == 1", lambda x, _: sum(x.counts("selective")) in {2, 3}),
    ("sum(full) % 3 != 1", lambda x, _: sum(full(x)) % 3 != 1),
    ("sum(full) % 2 == 0", lambda x, _: sum(full(x)) % 2 == 0),
    ("layers[0] * layers[-1] <= 8", lambda x, _: x.layers[0] * x.layers[-1] <= 8),
    ("mbs * max(layers) <= 6", lambda x, _: x.microbatch * max(x.layers) <= 6),
    ("zero == 1 or full[0] == 0", lambda x, _: x.zero == 1 or full(x)[0] == 0),
    (
        "sum(selective) == 0 or sum(full) == 0",
        lambda x, _: not sum(x.counts("selective")) or not sum(full(x)),
    ),
    ("not layers[0] == layers[-1] or pp == 1", lambda x, _: x.layers[0] != x.layers[-1] or x.pp == 1),
    ("layers[0] divides 12", lambda x, _: 12 % x.layers[0] == 0),
    ("layers[-1] // full[-1] <= 2 + full[0]", lambda x, _: full(x)[-1] and divided(x) <= 2 + full(x)[0]),
]


def batches(job, x):
    """Return the microbatches of a step."""
    return job.workload.global_batch_size // x.dp // x.microbatch


def again(x, stage):
    """Return the layers of a stage that are recomputed."""
    return sum(counts[stage] for _, counts in x.recomputed)


def divided(x):
    """Return the layers of the last stage for each that is recomputed whole."""
    return x.layers[-1] // full(x)[-1]
