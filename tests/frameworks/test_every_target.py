"""Each target and each of ten plans of different shapes: what is emitted is accepted by the real framework.

What a target refuses is in tests/unit/launch/test_every_shape.py. Megatron-LM's arguments are checked as
fields of Megatron-Core here, and by its own parser in test_megatron_lm.py, which needs a checkout.
"""

import functools
from pathlib import Path

import pytest

from autoplan.launch.registry import find_target
from tests.frameworks.core_fields import core_case
from tests.frameworks.framework_python import asked, has_module, wheel
from tests.support.launch_shapes import REFUSED, SHAPES, planned

pytestmark = pytest.mark.frameworks

#: The program that asks a target's framework, the module that it needs, and the wheel that it reads.
PARSERS = {
    "megatron-lm": ("megatron_core_parser.py", "megatron", None),
    "megatron-bridge": ("megatron_bridge_parser.py", "megatron", "megatron_bridge"),
    "deepspeed": ("deepspeed_parser.py", "deepspeed", None),
    "accelerate": ("accelerate_parser.py", "accelerate", None),
    "torchtitan": ("torchtitan_parser.py", "torchtitan", None),
    "trainer": ("trainer_parser.py", "deepspeed", None),
    "axolotl": ("axolotl_parser.py", "transformers", "axolotl"),
    "llama-factory": ("llama_factory_parser.py", "peft", "llamafactory"),
}
ACCEPTED = [(target, shape) for target in PARSERS for shape in SHAPES if shape not in REFUSED[target]]


def case_of(target, run):
    """Return the case of a run that the program of its target takes."""
    emission = find_target(target).emit(run)
    if target == "megatron-lm":
        return core_case(run, emission.arguments)
    case = {"world_size": run.layout.devices, "text": emission.files[0].text}
    if target == "torchtitan":
        return {"world_size": run.layout.devices, "arguments": list(emission.arguments)}
    if target == "megatron-bridge":
        model = run.job.model
        experts = {"num_moe_experts": model.moe.experts} if model.moe else {}
        sizes = {"num_attention_heads": model.heads, "hidden_size": model.hidden_size}
        case["sizes"] = {**sizes, **experts, "add_bias_linear": model.bias.mlp}
    return case


@functools.cache
def answers(target):
    """Return what the framework of a target says of all shapes that are emitted for it."""
    shapes = [shape for shape in SHAPES if shape not in REFUSED[target]]
    program, _, name = PARSERS[target]
    cases = [case_of(target, planned(target, shape)) for shape in shapes]
    found = asked(Path(__file__).with_name(program), cases, *([wheel(name)] if name else []))
    return dict(zip(shapes, found, strict=True))


@pytest.mark.parametrize(("target", "shape"), ACCEPTED, ids=lambda part: part)
def test_the_framework_accepts_a_shape(target, shape):
    """What is emitted for a shape is what the framework's own classes take."""
    _, module, name = PARSERS[target]
    if not has_module(module) or (name and not wheel(name)):
        pytest.skip(f"{target} is not installed")

    assert "accepted" in answers(target)[shape], answers(target)[shape]
