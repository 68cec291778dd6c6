"""The questions: every shipped job, every target, and files that others wrote."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from autoplan.launch.engines.engine_targets import ENGINE_TARGETS
from autoplan.launch.registry import target_names

__all__ = ["Case", "cases", "write_inputs"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_LAUNCHES: Final = _ROOT / "tests" / "support" / "public_launches.yaml"
_SERVES: Final = _ROOT / "tests" / "support" / "public_serves.yaml"

_SMALL: Final = "llama3.2-1b-2x-rtx3090"
_LARGE: Final = "llama3-8b-8x-h100"
#: The same job with the stack of most targets, so that its answers are those of one stack.
_STACKED: Final = "megatron-core"
_CHAT: Final = "llama3.1-8b-1x-h100"
_FRONT: Final = "front.json"
#: Stacks that targets run, where that is not the job's own.
_STACKS: Final = {
    "accelerate": "fsdp2",
    "axolotl": "fsdp2",
    "deepspeed": "deepspeed",
    "llama-factory": "hf-fsdp2",
    "litgpt": "litgpt",
    "megatron-bridge": "megatron-bridge",
    "torchtitan": "fsdp2",
    "torchtune": "torchtune",
    "trainer": "hf-fsdp2",
    "unsloth": "unsloth",
}
_MESH: Final = ("dp=8,mbs=1", "tp=2,pp=2,mbs=1,recompute=full", "pp=2,stages=15/17,mbs=1", "cp=2,dp=4,mbs=1")
_SHARDED: Final = (
    "dp=8,mbs=1",
    "dp=8,dp_shard=4,zero=3,mbs=1",
    "tp=2,sp=off,mbs=1,recompute=full",
    "cp=2,dp=4,mbs=1",
)
_DATA: Final = ("dp=8,mbs=1", "dp=8,mbs=2,recompute=full")
#: Layouts by the stack of a target, and one that none of them can express, or allows.
_LAYOUTS: Final = {
    "fsdp2": _SHARDED,
    "hf-fsdp2": _DATA,
    "deepspeed": _DATA,
    "litgpt": _DATA,
    "torchtune": _DATA,
    "unsloth": _DATA,
}
_REFUSED: Final = "pp=2,dp=4,mbs=1,zero=3"
#: Engines of serving jobs by the target that is only theirs.
_ENGINES: Final = {"sglang": "sglang", "tensorrt-llm": "tensorrt-llm"}
#: What runs in a container, whose image has to be named.
_CONTAINERS: Final = frozenset({"dynamo", "kubernetes", "llm-d"})
_IMAGE: Final = ("--image", "registry.example/image:1")

_GEMM: Final = (
    "--m 8192 --n 8192 --k 8192 --device a100-sxm4-80gb",
    "--n 8192 --k 8192 --device a100-sxm4-80gb --find compute-bound",
    "--n 8192 --k 8192 --device h100-sxm5-80gb --dtype fp8",
    "--m 65536 --k 32768 --n 65536 --device rtx-4090",
    "--m 16384 --n 16384 --k 16384 --hardware dgx-a100-80gb --devices 4",
    "--m 8192 --n 8192 --k 8192 --hardware dgx-a100-80gb --devices 8 --result replicated --scheme inner",
    "--m 8192 --n 8192 --k 8192 --hardware dgx-a100-80gb --devices 8 --start in-place --scheme columns",
    "--m 512 --n 512 --k 4194304 --hardware dgx-a100-80gb --devices 8 --result replicated",
    "--m 512 --n 512 --k 4096 --batch 4 --hardware dgx-a100-80gb --devices 8",
    "--m 16384 --n 16384 --k 16384 --hardware selene --devices 16",
    "--m 4096 --n 4096 --k 4096 --hardware 2x-rtx4090 --devices 2",
    '--m 65536 --n 65536 --k 65536 --hardware dgx-a100-80gb --devices 8 --memory "4 GiB"',
    '--m 65536 --n 65536 --k 65536 --hardware dgx-a100-80gb --devices 8 --memory "1 GiB" --scheme summa',
    "--m 4096 --n 4096 --k 4096 --hardware selene --devices 64 --optimizer adamw --overlap",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A command line; ``output`` is the file or folder that it writes beside what it prints."""

    name: str
    arguments: tuple[str, ...]
    output: str = ""


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read: jobs of each stack, and what others wrote."""
    training = yaml.safe_load((_ROOT / "specs" / "jobs" / f"{_LARGE}.yaml").read_text(encoding="utf-8"))
    serving = yaml.safe_load((_ROOT / "specs" / "serving" / f"{_CHAT}.yaml").read_text(encoding="utf-8"))
    for stack in (_STACKED, *_STACKS.values(), *_ENGINES.values()):
        job = {**(serving if stack in _ENGINES.values() else training), "stack": stack}
        (folder / f"{stack}.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    for i in range(len(_MESH)):  # several files, which go into a folder that exists
        (folder / f"emit-kubernetes-{i}").mkdir()
    for name, text in _foreign_files():
        (folder / name).write_text(text, encoding="utf-8")


def cases() -> Iterator[Case]:
    """Yield all cases; some read what those before them have written."""
    yield from _plans()
    yield from _questions()
    yield from (Case(f"gemm-{i}", ("gemm", *_words(line))) for i, line in enumerate(_GEMM))
    yield from (
        Case(f"gemm-{i}-json", ("gemm", *_words(line), "--format", "json")) for i, line in enumerate(_GEMM)
    )
    yield from _pages()
    yield from _emitted()
    yield from _read()


def _words(line: str) -> list[str]:
    return shlex.split(line)


def _plans() -> Iterator[Case]:
    for job in _shipped("jobs") + _shipped("serving"):
        yield Case(f"plan-{job}", ("plan", job, "--no-cache", "--format", "json"))
    for job in (_SMALL, _CHAT):
        yield Case(f"table-{job}", ("plan", job, "--no-cache"))
    yield Case(
        "front", ("plan", f"{_STACKED}.yaml", "--no-cache", "--format", "json", "--output", _FRONT), _FRONT
    )


def _shipped(folder: str) -> list[str]:
    return sorted(path.stem for path in (_ROOT / "specs" / folder).glob("*.yaml"))


def _questions() -> Iterator[Case]:
    layouts = {
        _SMALL: ("pp=2,mbs=4,recompute=full", "dp=2,zero=3,mbs=1", "tp=3", "tp=2,mbs=64"),
        "deepseek-v3-256x-h100": ("pp=16,ep=16,dp=16,mbs=1,recompute=full",),
        "mixtral-8x7b-8x-h200": ("ep=8,dp=8,zero=1,mbs=1",),
        _CHAT: ("tp=1,weights=fp8,kv=fp8",),
        "llama3-70b-8x-h100": ("tp=4", "tp=8,seqs=64"),
    }
    for job, choices in layouts.items():
        for i, layout in enumerate(choices):
            for form in ("table", "json"):
                yield Case(f"evaluate-{job}-{i}-{form}", ("evaluate", job, "-l", layout, "--format", form))
    for job, layout in (
        (_SMALL, "tp=2,mbs=2"),
        ("llama2-7b-2x-a100", "tp=2,mbs=4"),
        (f"{_STACKED}.yaml", "tp=3"),
        (_CHAT, "tp=1"),
    ):
        yield Case(f"explain-{job}-layout", ("explain", job, "-l", layout))
    for job in (_SMALL, _CHAT):
        yield Case(f"explain-{job}", ("explain", job))
    two = ("-l", "tp=2,recompute=full", "-l", "pp=2,recompute=full")
    yield Case("compare-two", ("compare", _SMALL, *two))
    yield Case("compare-two-json", ("compare", _SMALL, *two, "--format", "json"))
    yield Case("compare-axes", ("compare", _SMALL, "--axes"))
    yield Case("guide", ("guide", "llama3.2-1b", "2x-rtx3090", "--critical-batch", "4e6"))
    yield Case("capacity", ("capacity", _CHAT))
    yield Case(
        "trace", ("evaluate", _SMALL, "-l", "pp=2,mbs=1", "--output", "step-trace.json"), "step-trace.json"
    )


def _pages() -> Iterator[Case]:
    asked: dict[str, tuple[str, ...]] = {
        "plan": ("plan", _SMALL, "--no-cache"),
        "plan-serving": ("plan", _CHAT, "--no-cache"),
        "evaluate": ("evaluate", _SMALL, "-l", "pp=2,mbs=4"),
        "evaluate-serving": ("evaluate", _CHAT, "-l", "tp=1"),
        "explain": ("explain", _SMALL),
        "compare": ("compare", _SMALL, "-l", "tp=2,recompute=full", "-l", "pp=2,recompute=full"),
        "guide": ("guide", "llama3.2-1b", "2x-rtx3090"),
        "capacity": ("capacity", _CHAT),
        "gemm": ("gemm", *_words(_GEMM[4])),
    }
    for name, arguments in asked.items():
        yield Case(f"page-{name}", (*arguments, "--output", f"{name}.html"), f"{name}.html")


def _emitted() -> Iterator[Case]:
    for target in target_names(emitted=True):
        job = f"{_STACKS.get(target, _STACKED)}.yaml"
        for i, layout in enumerate(_LAYOUTS.get(_STACKS.get(target, ""), _MESH)):
            name = f"emit-{target}-{i}"
            more = _IMAGE if target in _CONTAINERS else ()
            yield Case(name, ("emit", job, "--for", target, "-l", layout, "--output", name, *more), name)
            yield Case(f"{name}-read", ("read", name, "--devices", "8"))
        yield Case(f"emit-{target}-refused", ("emit", job, "--for", target, "-l", _REFUSED))
    for target in ENGINE_TARGETS:
        job, name = f"{_ENGINES[target]}.yaml" if target in _ENGINES else _CHAT, f"emit-engine-{target}"
        more = _IMAGE if target in _CONTAINERS else ()
        yield Case(name, ("emit", job, "--for", target, "-l", "tp=1", "--output", name, *more), name)
        yield Case(f"{name}-read", ("read", name))
    yield Case("emit-front", ("emit", _FRONT, "--for", "megatron-lm"))
    yield Case("verify-front", ("verify", _FRONT, "--deadline", "600"))


def _read() -> Iterator[Case]:
    launches: list[dict[str, Any]] = yaml.safe_load(_LAUNCHES.read_text(encoding="utf-8"))
    for i, case in enumerate(launches):
        devices = ("--devices", str(case["devices"])) if "devices" in case else ()
        yield from _both_forms(f"{i:02}-{_file_name(case)}", devices)
    for name, _ in _serve_scripts():
        yield from _both_forms(name, ())


def _both_forms(name: str, devices: tuple[str, ...]) -> Iterator[Case]:
    yield Case(f"read-{name}", ("read", name, *devices))
    yield Case(f"read-{name}-json", ("read", name, *devices, "--format", "json"))


def _foreign_files() -> Iterator[tuple[str, str]]:
    """Yield the names and texts of launch files and serve commands as the public has written them."""
    launches: list[dict[str, Any]] = yaml.safe_load(_LAUNCHES.read_text(encoding="utf-8"))
    yield from ((f"{i:02}-{_file_name(case)}", case["text"]) for i, case in enumerate(launches))
    yield from _serve_scripts()


def _file_name(case: dict[str, Any]) -> str:
    return str(case["path"]).rpartition("/")[2]


def _serve_scripts() -> Iterator[tuple[str, str]]:
    serves: list[dict[str, Any]] = yaml.safe_load(_SERVES.read_text(encoding="utf-8"))
    yield from (
        (f"serve-{i:02}.sh", f"{case['command']}\n") for i, case in enumerate(serves) if "command" in case
    )
