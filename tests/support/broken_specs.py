"""Spec files of every kind, and seeded ways to break one: in its values, its text or its encoding."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from autoplan.catalog import load_entry
from autoplan.schema.yaml.writer import file_text
from tests.support.edited_yaml import PIECES, edited

ROOT = Path(__file__).resolve().parents[2]

LAYOUT = "dp=2,mbs=1"

JOB = {
    "schema": 1,
    "kind": "training",
    "model": "model.yaml",
    "hardware": "hardware.yaml",
    "devices": 2,
    "stack": "stack.yaml",
    "kernels": "kernels.yaml",
    "workload": {"sequence_length": 256, "global_batch_size": 4},
    "precision": "bf16",
    "optimizer": "adamw",
    "search": {
        "microbatch_size": [1, 2],
        "pipeline_parallel": "any",
        "zero_stage": "any",
        "recompute": "none",
    },
    "limits": {
        "memory_headroom": "5 %",
        "peak_memory": "20 GiB",
        "step_time": "50 s",
        "tokens_per_second": 1.5,
        "cost": 1e6,
        "energy": "1e6 kWh",
        "devices": 2,
    },
    "rules": ["tp * pp <= 8", {"rule": "layers[0] <= layers[-1]", "because": "the head is heavy"}],
    "objectives": ["step_time"],
    "price": {"per_device_hour": 0.5, "date": "2026-11-01"},
}
GRID = {
    "schema": 1,
    "kind": "sweep",
    "base": "job.yaml",
    "grid": {"devices": [1, 2], "limits.memory_headroom": ["0 %", "5 %"], "model": ["model.yaml", "gpt2"]},
    "exclude": [{"devices": 1, "model": "gpt2"}],
}
RUNS = {
    "schema": 1,
    "kind": "runs",
    "runs": [
        {"job": "job.yaml", "layout": f"{LAYOUT},{knob}", "step_time": "3 s"}
        for knob in ("zero=0", "zero=1", "recompute=full")
    ],
}
#: A model as Hugging Face writes it.
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}

_EVALUATE = ("evaluate", "job.yaml", "--layout", LAYOUT)

#: What may be broken, and the commands that read it.
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "job.yaml": (_EVALUATE, ("plan", "job.yaml", "--deadline", "1"), (*_EVALUATE, "--format", "json")),
    "model.yaml": (_EVALUATE, ("plan", "job.yaml", "--deadline", "1", "--format", "json")),
    "hardware.yaml": (_EVALUATE, ("plan", "job.yaml", "--deadline", "1")),
    "stack.yaml": (_EVALUATE,),
    "kernels.yaml": (_EVALUATE,),
    "config.json": (("evaluate", "config-job.yaml", "--layout", LAYOUT),),
    "grid.yaml": (("sweep", "grid.yaml"),),
    "runs.yaml": (("calibrate", "--runs", "runs.yaml"),),
}

#: Numbers and words that replace a value: of another kind, empty, negative, huge, tiny, odd.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 7, -1, 10**6, 10**9, 10**18, 10**28, 10**40, 2**63, -(2**63), 0.5, -0.0),
    *(1e-6, 1e-30, 5e-324, 1e-300, 1e300, 1.7e308, float("inf"), float("-inf"), float("nan")),
    *(
        "",
        " ",
        "any",
        "none",
        "gpt2",
        "2x-rtx3090",
        "megatron-core",
        "model.yaml",
        "job.yaml",
        "grid.yaml",
        ".",
    ),
    *("../job.yaml", "/dev/null", "/dev/zero.yaml", "/etc/passwd", "../../../../etc/hosts.yaml", "~/x.yaml"),
    *("\x00", "\x1b[31m", "\u202emodel", "\u2066x\u2069", "\u200f", "\u2028", "a\nb", "\ud800", "9" * 5_000),
    *("x" * 100_000, "%s%n{}", "$(reboot)", "'; DROP TABLE answers; --", "[/red]", "{0.__class__}"),
    *("0 %", "100 %", "101 %", "-1 %", "1e-400 %", "0 B", "1 B", "0 GiB", "1e300 GB", "1e-300 s", "1e-400 s"),
    *("0 s", "80 GiB", "5 us", "0 W", "-3 GB/s", "1 B/s", "1e999 s", "inf s", "nan s", "0x10 s", "1 000 s"),
    *([], {}, [[]], [None], [1, 2], [1, 1], ["1f1b"], {"value": 1}, {"a": {"b": {}}}, list(range(500))),
)

#: Texts that a file may become altogether.
CRAFTED: tuple[str, ...] = (
    "",
    "\n" * 5_000,
    "# nothing\n",
    "null\n",
    "- a\n- b\n",
    "just text\n",
    "[" * 30_000,
    "{a: " * 30_000,
    "- " * 10_000,
    "".join(f"{' ' * depth}a:\n" for depth in range(2_000)),
    "a: &a [x, x]\n" + "".join(f"{c}: &{c} [*{p}, *{p}, *{p}, *{p}]\n" for p, c in pairwise("abcdefghi")),
    "&a [*a]\n",
    "&a {<<: *a}\n",
    "kind: training\n---\nkind: training\n",
    "%YAML 3.0\n---\nkind: training\n",
    "!!python/object/apply:os.system ['false']\n",
    "kind: !!python/name:os.system training\n",
    "kind: !!binary aGVsbG8=\n",
    "? [a, b]\n: c\n",
    "kind: training\nkind: training\n",
    "kind: training\nmodel: {<<: {a: 1}}\n",
    "kind: 'training\n",
    "kind:\ttraining\n\tmodel: gpt2\n",
    "a: 1\n" * 30_000,
    "".join(f"k{number}: 1\n" for number in range(60_000)),
    "x" * 2_000_000,
    '{"kind": "training", "model": NaN, "devices": Infinity}',
    '{"model_type": ' + "[" * 100_000,
    '{"model_type": "llama", "hidden_size": 1' + "0" * 10_000 + "}",
)


@dataclass(frozen=True, slots=True)
class BrokenSpec:
    """One broken file among whole ones: its ``name`` and content, and the command that reads it."""

    seed: int
    name: str
    data: bytes
    command: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write the broken file, and the whole ones beside it, into ``folder``."""
        for name, text in whole_files().items():
            (folder / name).write_text(text, encoding="utf-8")
        (folder / self.name).write_bytes(self.data)


@cache
def whole_files() -> dict[str, str]:
    """Return the text of every file that may be broken, whole, and of those that they need."""
    trees = {"job.yaml": JOB, "grid.yaml": GRID, "runs.yaml": RUNS}
    trees["config-job.yaml"] = JOB | {"model": "config.json"}
    return {
        **{name: _yaml(tree) for name, tree in trees.items()},
        "model.yaml": (ROOT / "specs/models/gpt2.yaml").read_text(encoding="utf-8"),
        "hardware.yaml": (ROOT / "hardware/nodes/2x-rtx3090.yaml").read_text(encoding="utf-8"),
        "kernels.yaml": (ROOT / "costmodels/kernels/default.yaml").read_text(encoding="utf-8"),
        "stack.yaml": file_text(load_entry("stack", "megatron-core")),
        "config.json": json.dumps(CONFIG, indent=2),
    }


def _yaml(tree: Any) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def broken_specs(seeds: range) -> Iterator[BrokenSpec]:
    """Yield one broken spec for each of ``seeds``, the same on every machine."""
    return map(broken_spec, seeds)


def broken_spec(seed: int) -> BrokenSpec:
    """Return the broken spec of ``seed``: files in turn, broken in their values, text or encoding."""
    rng = random.Random(seed)  # noqa: S311 - the same on every machine
    name = list(COMMANDS)[seed % len(COMMANDS)]
    text = whole_files()[name]
    kind = rng.random()
    if kind < 0.55:
        text = _dumped(rebuilt(yaml.safe_load(text), rng), name)
    elif kind < 0.8:
        text = rewritten(text, rng)
    elif kind < 0.9:
        text = mixed_in(text, rng)
    else:
        text = rng.choice(CRAFTED)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        data = rng.choice(_ENCODINGS)(text, rng)
    return BrokenSpec(seed, name, data, rng.choice(COMMANDS[name]))


def _dumped(tree: Any, name: str) -> str:
    return json.dumps(tree, indent=1) if name.endswith(".json") else _yaml(tree)


# --- values


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Return every mapping and list of a tree that holds something, with one of its keys each."""
    found, waiting = [], [tree]
    while waiting:
        here = waiting.pop()
        keys = list(here) if isinstance(here, dict) else range(len(here))
        found += [(here, key) for key in keys]
        waiting += [here[key] for key in keys if isinstance(here[key], dict | list)]
    return found


def rebuilt(tree: Any, rng: random.Random) -> Any:
    """Return a tree with one to three of its places changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not (found := places(tree)):
            break
        here, key = rng.choice(found)
        rng.choice((scaled, scaled, scaled, replaced, replaced, removed, renamed, swapped, wrapped))(
            here, key, found, rng
        )
    return tree


def scaled(here, key, found, rng):
    """Change a number, and leave its kind and its unit as they are."""
    value = here[key]
    number, space, unit = str(value).partition(" ")
    by = rng.choice((0, 1e-320, 0.001, 0.5, 2, 3, 7, 1000, 10**9))
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
        here[str(key)[:at] + rng.choice("aeo_.x\u202e") + str(key)[at + 1 :]] = here.pop(key)
    else:
        here.insert(key, copy.deepcopy(here[key]))


def swapped(here, key, found, rng):
    """Exchange it with what stands somewhere else."""
    there, other = rng.choice(found)
    here[key], there[other] = copy.deepcopy(there[other]), copy.deepcopy(here[key])


def wrapped(here, key, _found, rng):
    """Put it into a list or a mapping."""
    here[key] = rng.choice(([here[key]], {"value": here[key]}, [here[key]] * 2))


# --- text


def rewritten(text: str, rng: random.Random) -> str:
    """Return a text with stretches replaced, lines doubled or exchanged, digits changed, or its end cut."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        text = rng.choice((_piece, _doubled, _exchanged, _digit, _cut))(text, rng)
    return text


def _piece(text: str, rng: random.Random) -> str:
    return edited(text, [(rng.randrange(len(text) + 1), rng.randrange(12), rng.choice(PIECES))])


def _doubled(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
    return "".join(lines)


def _exchanged(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True) or [""]
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return "".join(lines)


def _digit(text: str, rng: random.Random) -> str:
    digits = [at for at, c in enumerate(text) if c.isdigit()]
    return edited(text, [(rng.choice(digits or [0]), 1, rng.choice("0123456789.-e"))])


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.3 else text.replace(": ", ":", 1)


def mixed_in(text: str, rng: random.Random) -> str:
    """Return a text whose one line gives way to a crafted one, or has it before or after itself."""
    lines = text.splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    short = [crafted for crafted in CRAFTED if len(crafted) < 100_000]
    lines[at : at + rng.randrange(2)] = [rng.choice(short)]
    return "".join(lines)


# --- bytes


def _truncated(text: str, rng: random.Random) -> bytes:
    data = text.replace("a", "ä", 3).encode("utf-8", "surrogatepass")
    return data[: rng.randrange(len(data) + 1)]


def _speckled(text: str, rng: random.Random) -> bytes:
    data = bytearray(text.encode("utf-8", "surrogatepass") or b" ")
    for _ in range(5):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


_ENCODINGS: tuple[Callable[[str, random.Random], bytes], ...] = (
    lambda text, _: text.encode("utf-16", "surrogatepass"),
    lambda text, _: text.encode("utf-32", "surrogatepass"),
    lambda text, _: text.replace("a", "ä", 3).encode("latin-1", "replace"),
    lambda text, _: b"\xef\xbb\xbf" + text.encode("utf-8", "surrogatepass"),
    lambda text, _: text.replace("\n", "\r").encode("utf-8", "surrogatepass"),
    lambda text, _: text.replace("\n", "\r\n").encode("utf-8", "surrogatepass"),
    lambda text, _: b"\x1f\x8b\x08" + text.encode("utf-8", "surrogatepass"),
    lambda _, rng: rng.randbytes(4_096),
    _truncated,
    _speckled,
)
