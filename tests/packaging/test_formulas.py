"""Every formula of ``autoplan.costs`` explains itself: notation, an example, a source, what it leaves out."""

import importlib
import inspect
import pkgutil
import re
from functools import cached_property
from types import FunctionType

import pytest

import autoplan.costs

#: Not formulas: packages; ``codes``; ``candidates``, which is the array type and the columns of candidates;
#: ``kernel_tables``, which interpolates what was measured: its numbers have their source in the tables'
#: files.
EXEMPT = frozenset(
    {
        "autoplan.costs",
        "autoplan.costs.core.candidates",
        "autoplan.costs.device.kernel_tables",
    }
)

#: Methods that only read, select or add up what their class holds; the sentence they have is enough.
READINGS = frozenset(
    {
        "AcceptedTokens.probabilities",
        "CapacityPrediction.fits",
        "CapacityPrediction.fullest",
        "CapacityPrediction.longest_requests",
        "CapacityPrediction.total_tokens",
        "Collective.bytes",
        "Collective.of_stage",
        "Communication.bytes",
        "DeviceMemoryUse.free",
        "DeviceMemoryUse.taken",
        "DataVolume.outside",
        "DecodeEngine.cause",
        "DecodeEngine.full_step",
        "DecodeEngine.groups",
        "DecodeEngine.most",
        "DecodeEngine.rate",
        "DecodeEngine.running",
        "DecodeEngine.steps",
        "EnginePair.receivers",
        "EngineScope.device",
        "EngineScope.facts",
        "EngineScope.model",
        "EnginePair.senders",
        "EnginePair.shortage",
        "PooledPrediction.devices",
        "PooledPrediction.fits",
        "PooledPrediction.limit",
        "PooledPrediction.most_requests_per_second",
        "PooledPrediction.starts",
        "PrefillEngine.groups",
        "PricedEngine.queue",
        "ClosedForm.output_tokens_per_second",
        "ClosedForm.time_per_output_token",
        "ClosedForm.time_to_first_token",
        "Arrivals.ended",
        "Arrivals.next_time",
        "SimulatedEngine.advance",
        "SimulatedEngine.finished_run",
        "Traffic.scaled",
        "Traffic.share",
        "Footprint.take",
        "Footprint.uniform",
        "Stages.uniform",
        "LayerParameters.attention",
        "LayerParameters.expert_parallel",
        "LayerParameters.mlp",
        "LayerParameters.replicated",
        "LayerParameters.tensor_parallel",
        "LayerParameters.total",
        "MemoryPrediction.fullest",
        "Event.fixed",
        "Event.layer",
        "EventMemory.allocated",
        "Scope.shards",
        "Scope.zero",
        "StageContext.candidates",
        "StageContext.first",
        "StageContext.job",
        "StageContext.last",
        "StageContext.of",
        "StageContext.tokens",
        "Stages.take",
        "EndOfStep.total",
        "BlockPool.own_blocks",
        "DecodingSet.add",
        "DecodingSet.ended",
        "DecodingSet.needed",
        "DecodingSet.remove",
        "DecodingSet.steps_to_next_end",
        "Iteration.decode_run",
        "Iteration.seconds",
        "KernelWork.flops_per_second",
        "KernelWork.intensity",
        "LayerProducts.ridge",
        "RankPlacement.nodes",
        "RequestLoad.mean_input",
        "RequestLoad.mean_output",
        "ServedPrediction.fits",
        "ServedPrediction.output_tokens_per_second",
        "ServedPrediction.output_tokens_per_second_per_device",
        "ServedPrediction.peak_memory_bytes_per_device",
        "ServedPrediction.request_latency",
        "ServedPrediction.requests_per_second",
        "ServedPrediction.saturated",
        "ServedPrediction.starts",
        "ServedPrediction.time_per_output_token",
        "ServedPrediction.time_to_first_token",
        "WeightBytes.total",
    }
)

PACKAGE = autoplan.costs
FOUND = pkgutil.walk_packages(PACKAGE.__path__, prefix=f"{PACKAGE.__name__}.")
MODULES = [importlib.import_module(name) for name in sorted({m.name for m in FOUND if not m.ispkg} - EXEMPT)]
UNIT = re.compile(r"\[(1|s|byte|FLOP|byte/s|FLOP/s|W)\]$")
SOURCE = re.compile(r"\bSource: \S|\barXiv[: ]\d{4}\.\d{5}\b")


def is_own(module, value):
    """Return whether ``value`` is defined in ``module``."""
    return getattr(value, "__module__", None) == module.__name__


def callables_of(module):
    """Return the public functions of a module, and the public methods and properties of its classes."""
    for name, value in vars(module).items():
        if name.startswith("_") or not is_own(module, value):
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for key, member in vars(value).items():
                plain = member.__func__ if isinstance(member, staticmethod | classmethod) else member
                if not key.startswith("_") and isinstance(plain, FunctionType | property | cached_property):
                    yield f"{name}.{key}", plain


ALL = [(module, *found) for module in MODULES for found in callables_of(module)]
FORMULAS = [
    pytest.param(module, inspect.getdoc(value) or "", id=f"{module.__name__.rpartition('.')[2]}.{name}")
    for module, name, value in ALL
    if name not in READINGS
]


def notation_of(module):
    """Return the indented lines of a module's notation; none where it has no such block."""
    lines = (inspect.getdoc(module) or "").splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("Notation")]
    if not heads:
        return []
    after = lines[heads[0] :]
    end = next((i for i, line in enumerate(after) if i > 1 and line and not line.startswith(" ")), len(after))
    return [line for line in after[:end] if line.startswith("    ")]


def without_unit(lines):
    """Return the lines whose entry ends without a unit; an entry goes on in lines that are indented more."""
    entries = []
    for line in lines:
        if line.startswith("     ") and entries:
            entries[-1] += line
        else:
            entries.append(line)
    return [entry.strip() for entry in entries if not UNIT.search(entry.rstrip())]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_module_has_a_notation_with_units(module):
    """The letters of a file are explained at its top, each line with its unit."""
    lines = notation_of(module)

    assert lines, f"{module.__name__}: no 'Notation (this file only)::' in the module's docstring"
    assert without_unit(lines) == [], f"{module.__name__}: lines of the notation without a unit at their end"


@pytest.mark.parametrize(("module", "text"), FORMULAS)
def test_every_formula_has_an_example(module, text):
    """A reader can check a number by hand; pytest runs the examples of all modules."""
    assert re.search(r"^>>> ", text, re.MULTILINE), "no example ('>>> ') in the docstring"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_module_that_leaves_physics_out_names_its_sources(module):
    """A number can be traced to a paper, or to the source of a framework."""
    text = inspect.getsource(module)

    assert "Leaves out:" not in text or SOURCE.search(text), "leaves something out, but has no 'Source: ...'"


@pytest.mark.parametrize(("module", "text"), FORMULAS)
def test_sections_of_a_docstring_say_something(module, text):
    """'Leaves out' and 'Source' stand where there is physics to leave out or a source to name."""
    assert not re.search(
        r"^Leaves out: nothing\b|Source: (a sum|a definition|definitions)\b", text, re.MULTILINE
    )


def test_nothing_is_excused_that_does_not_exist():
    """The lists of exceptions of this file name what there is."""
    names = {name for _, name, _ in ALL}
    known = {PACKAGE.__name__} | {
        m.name for m in pkgutil.walk_packages(PACKAGE.__path__, f"{PACKAGE.__name__}.")
    }

    assert sorted(READINGS - names) == []
    assert sorted(EXEMPT - known) == []
