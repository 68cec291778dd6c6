"""Labels of points are written where there is room, and nowhere else."""

from xml.etree import ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st

from autoplan.report.pages.pictures.scatter_picture import PointLabel, add_labels

FRAME = (0.0, 0.0, 400.0, 300.0)
places = st.tuples(st.floats(0, 400), st.floats(0, 300))


def boxes_of(svg):
    """Return the text of each label with the box that it takes: 6.4 px a character, 13 px high."""
    boxes = []
    for text in svg:
        x, y, width = float(text.get("x")), float(text.get("y")), 6.4 * len(text.text)
        left = {"start": x, "end": x - width, "middle": x - width / 2}[text.get("class").split()[-1]]
        boxes.append((text.text, (left, y - 10, left + width, y + 3)))
    return boxes


@settings(max_examples=50)
@given(st.lists(places, min_size=1, max_size=12))
def test_no_label_covers_a_point_or_another_label_or_leaves_the_frame(points):
    """Whatever the points are, what is written can be read."""
    svg = ET.Element("svg")
    add_labels(svg, [PointLabel(at, f"plan {n}") for n, at in enumerate(points)], points, FRAME)
    boxes = boxes_of(svg)

    for index, (_, (left, top, right, bottom)) in enumerate(boxes):
        assert left >= -0.1
        assert top >= -0.1
        assert right <= 400.1
        assert bottom <= 300.1
        assert not any(left + 0.1 < x < right - 0.1 and top + 0.1 < y < bottom - 0.1 for x, y in points)
        for _, other in boxes[:index]:
            apart = left >= other[2] - 0.1 or other[0] >= right - 0.1
            assert apart or top >= other[3] - 0.1 or other[1] >= bottom - 0.1


def test_a_point_alone_has_its_label_beside_it():
    """With room all around, the label begins right of its point, on its height."""
    svg = ET.Element("svg")
    add_labels(svg, [PointLabel((100.0, 100.0), "fastest")], [(100.0, 100.0)], FRAME)

    assert boxes_of(svg) == [("fastest", (110.0, 93.5, 110.0 + 6.4 * 7, 106.5))]
