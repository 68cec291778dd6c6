"""Each target and each plan of the table of shapes: emitted and read back, or refused with the part."""

import pytest

from autoplan.launch.configuration import LaunchFile
from autoplan.launch.recognition import recognised
from autoplan.launch.registry import TARGETS, find_target, target_names
from autoplan.launch.target import InexpressibleError
from autoplan.schema.layout import parse_layout
from tests.support.launch_shapes import REFUSED, SHAPES, STACKS, planned

PAIRS = [(target, shape) for target in STACKS for shape in SHAPES]
ACCEPTED = [(target, shape) for target, shape in PAIRS if shape not in REFUSED[target]]
NOT = [(target, shape) for target, shape in PAIRS if shape in REFUSED[target]]
#: Parts that no other layout of the job has.
WITHOUT_NEAREST = {"fp8", "LoRA"}


def test_every_framework_is_in_the_table():
    """A framework that plans are emitted for has its column here."""
    frameworks = {name for name, module in TARGETS.items() if ".frameworks." in module}
    assert frameworks & set(target_names(emitted=True)) == set(STACKS)
    assert REFUSED.keys() == STACKS.keys()


@pytest.mark.parametrize(("target", "shape"), ACCEPTED, ids=lambda part: part)
def test_a_shape_is_emitted_and_read_back(target, shape):
    """The layout and the batch that are read from what is emitted are those of the plan."""
    run = planned(target, shape)
    emission = find_target(target).emit(run)
    main = emission.files[0]
    words = () if emission.by_arguments else emission.arguments
    file = LaunchFile(main.name, main.text, arguments=words, devices=run.layout.devices)
    found = find_target(target).read(file)

    layers = run.job.model.layers
    assert parse_layout(found.layout_string, layers=layers, devices=run.layout.devices) == run.layout
    assert found.job["workload"]["global_batch_size"] == run.job.workload.global_batch_size
    assert recognised(LaunchFile(main.name, main.text)).name == target


@pytest.mark.parametrize(("target", "shape"), NOT, ids=lambda part: part)
def test_a_shape_is_refused_with_the_part(target, shape):
    """The part that a target lacks is named, with a layout without it where one helps."""
    with pytest.raises(InexpressibleError) as caught:
        find_target(target).emit(planned(target, shape))

    assert REFUSED[target][shape] in caught.value.part
    assert bool(caught.value.nearest) == (shape not in WITHOUT_NEAREST)
