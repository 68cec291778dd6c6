"""Whatever is broken in a spec, the program answers or says what is wrong: never a traceback."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from autoplan.planning.sweeping import executors, grid_planning
from tests.properties.test_loader_fuzz import PIECES, edited

ROOT = Path(__file__).resolve().parents[2]

#: Broken specs in all, and how many one test takes, so that they spread over the cores.
SPECS = 300
BATCH = 10

JOB = {
    "schema": 1,
    "kind": "training",
    "model": "model.yaml",
    "hardware": "hardware.yaml",
    "devices": 2,
    "workload": {"sequence_length": 256, "global_batch_size": 4},
    "precision": "bf16",
    "optimizer": "adamw",
    "search": {
        "microbatch_size": [1, 2],
        "pipeline_parallel": "any",
        "zero_stage": "any",
        "recompute": "none",
    },
    "limits": {"memory_headroom": "5 %", "step_time": "50 s"},
    "objectives": ["step_time"],
}
GRID = {
    "schema": 1,
    "kind": "sweep",
    "base": "job.yaml",
    "grid": {"devices": [1, 2], "limits.memory_headroom": ["0 %", "5 %"], "model": ["model.yaml", "gpt2"]},
    "exclude": [{"devices": 1, "model": "gpt2"}],
}

#: What is broken, and the command that reads it; a grid reads all of them.
COMMANDS = {
    "job.yaml": ("plan", "job.yaml"),
    "grid.yaml": ("sweep", "grid.yaml"),
    "model.yaml": ("plan", "job.yaml", "--format", "json"),
    "hardware.yaml": ("evaluate", "job.yaml", "--layout", "dp=2"),
}

#: What replaces a value: of another kind, empty, negative, huge, tiny, with a wrong unit or none.
VALUES = (
    *(None, True, False, 0, 1, 2, 3, 7, -1, 10**6, 10**9, 10**18, 10**40, 0.5, -0.0, 1e-300, 1e300),
    *(
        "",
        "any",
        "none",
        "gpt2",
        "2x-rtx3090",
        "model.yaml",
        "../job.yaml",
        "/dev/null",
        "job.yaml",
        ".",
        "\x00",
    ),
    *(
        "0 %",
        "100 %",
        "101 %",
        "0 B",
        "1 B",
        "1e300 GB",
        "1e-300 s",
        "80 GiB",
        "5 us",
        "0 W",
        "-3 GB/s",
        "1 B/s",
    ),
    *([], {}, [[]], [None], [1, 2], [1, 1], ["1f1b"], {"value": 1}, {"a": {"b": {}}}),
)


def shipped(folder, name):
    """Return the plain values of a shipped file."""
    return yaml.safe_load((ROOT / folder / f"{name}.yaml").read_text(encoding="utf-8"))


def sound():
    """Return every file of a job and a grid that can be planned, as plain values."""
    return {
        "job.yaml": JOB,
        "grid.yaml": GRID,
        "model.yaml": shipped("specs/models", "gpt2"),
        "hardware.yaml": shipped("hardware/nodes", "2x-rtx3090"),
    }


def places(tree):
    """Return every mapping and list of a tree that holds something, with one of its keys each."""
    found, waiting = [], [tree]
    while waiting:
        here = waiting.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        found += [(here, key) for key in keys]
        waiting += [here[key] for key in keys if isinstance(here[key], dict | list)]
    return found


def rebuilt(tree, rng):
    """Return a tree with one to three of its places changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not (found := places(tree)):
            break
        here, key = rng.choice(found)
        rng.choice((scaled, scaled, scaled, replaced, replaced, removed, renamed, swapped, wrapped))(
            here, key, found, rng
        )
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def scaled(here, key, found, rng):
    """Change a number, and leave its kind and its unit as they are."""
    value = here[key]
    number, space, unit = str(value).partition(" ")
    by = rng.choice((0, 0.001, 0.5, 2, 3, 7, 1000, 10**9))
    if isinstance(value, int) and not isinstance(value, bool):
        here[key] = int(value * by) + rng.choice((-1, 0, 0, 1))
    elif number.replace(".", "", 1).isdigit():
        here[key] = f"{float(number) * by:g}{space}{unit}"
    else:
        replaced(here, key, found, rng)


def replaced(here, key, _found, rng):
    """Put another value there."""
    here[key] = copy.deepcopy(rng.choice(VALUES))


def removed(here, key, _found, _rng):
    """Leave it out."""
    del here[key]


def renamed(here, key, _found, rng):
    """Misspell a key, or repeat an entry of a list."""
    if isinstance(here, dict):
        at = rng.randrange(len(str(key)) + 1)
        here[str(key)[:at] + rng.choice("aeo_.x") + str(key)[at + 1 :]] = here.pop(key)
    else:
        here.insert(key, copy.deepcopy(here[key]))


def swapped(here, key, found, rng):
    """Exchange it with what stands somewhere else."""
    there, other = rng.choice(found)
    here[key], there[other] = copy.deepcopy(there[other]), copy.deepcopy(here[key])


def wrapped(here, key, _found, rng):
    """Put it into a list or a mapping."""
    here[key] = rng.choice(([here[key]], {"value": here[key]}, [here[key]] * 2))


def rewritten(text, rng):
    """Return a text with stretches replaced, lines doubled or exchanged, digits changed, or its end cut."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.randrange(5)
        lines = text.splitlines(keepends=True) or [""]
        one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
        if kind == 0:
            text = edited(text, [(rng.randrange(len(text) + 1), rng.randrange(12), rng.choice(PIECES))])
        elif kind == 1:
            lines.insert(two, lines[one])
            text = "".join(lines)
        elif kind == 2:
            lines[one], lines[two] = lines[two], lines[one]
            text = "".join(lines)
        elif kind == 3:
            digits = [at for at, c in enumerate(text) if c.isdigit()]
            text = edited(text, [(rng.choice(digits or [0]), 1, rng.choice("0123456789.-e"))])
        else:
            text = text[: rng.randrange(len(text) + 1)] if rng.random() < 0.3 else text.replace(": ", ":", 1)
    return text


def broken(files, name, seed):
    """Return one file of ``files``, broken: in its values or in its text."""
    rng = random.Random(seed)  # noqa: S311 - the same on every machine
    if rng.random() < 0.6:
        return rebuilt(files[name], rng)
    return rewritten(yaml.safe_dump(files[name], sort_keys=False), rng)


@pytest.fixture
def _threads(monkeypatch):
    """Plan the cells of a sweep in this process, which is what may not fail here."""
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.setattr(grid_planning, "LocalCrew", lambda _workers: executors.ForeignExecutor(executor))
        yield


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=" ".join)
def test_the_specs_that_are_broken_below_are_sound(run, tmp_path, monkeypatch, command):
    """Unbroken, every command has an answer."""
    monkeypatch.chdir(tmp_path)
    for name, value in sound().items():
        Path(name).write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
    done = run(*command)

    assert done.exit_code == 0, done.stderr


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("batch", range(SPECS // BATCH))
def test_a_broken_spec_is_answered_or_refused(run, tmp_path, monkeypatch, batch):
    """Each exits with 0, 1 or 2, and shows no traceback; without an answer, standard error says why."""
    monkeypatch.chdir(tmp_path)
    files = sound()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        for name, value in files.items():
            Path(name).write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")
        name = list(COMMANDS)[seed % len(COMMANDS)]
        text = broken(files, name, seed)
        Path(name).write_text(text, encoding="utf-8", errors="surrogatepass")
        done = run(*COMMANDS[name])

        case = f"seed {seed}, {name}:\n{text}\n{done.output}"
        assert done.exception is None or isinstance(done.exception, SystemExit), case
        assert done.exit_code in {0, 1, 2}, case
        assert "Traceback" not in done.output, case
        assert (done.exit_code == 2) == done.stderr.startswith("error: "), case
        assert bool(done.stdout) == (done.exit_code != 2), case
