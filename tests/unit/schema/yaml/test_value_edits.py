"""Edits of YAML text: the value is set, nothing else is lost."""

import pytest

from autoplan.catalog.job_files import with_value
from autoplan.schema.yaml.parser import parse_yaml

TEXT = """# head
schema: 1
kind: training   # k
model: "./m.yaml"
devices: 8 # eight
workload:
  # seq
  sequence_length: 4096
  global_batch_size:   # list
    - 8
    - 16   # s
# rules below
rules:
  # first
  - tp <= 2
  - rule: pp <= 2   # why
    because: x
  # third
  - dp <= 4
limits:
search: {tensor_parallel: [1, 2],
  recompute: any,   # hm
}
# end"""

JSON = '{"kind": "training", "limits": {}, "devices": 8}'
ALIASES = "a: &x {k: 1}\nsearch: *x\nlist: &l\n  - 1\n  - 2\nlimits: *l # as listed\n"

EDITS = [
    (TEXT, "devices", "16"),
    (TEXT, "workload.global_batch_size", "4"),
    (TEXT, "workload.sequence_length", "12"),
    (TEXT, "workload.more", "3"),
    (TEXT, "rules", '["tp <= 2", "dp <= 4"]'),
    (TEXT, "rules", '[{"rule": "pp <= 2", "because": "x"}]'),
    (TEXT, "rules", "[tp <= 3]"),
    (TEXT, "rules", "[]"),
    (TEXT, "limits.step_time", "2 s"),
    (TEXT, "search.recompute", "[none, full]"),
    (TEXT, "search.zero_stage", "any"),
    (TEXT, "stack", "megatron-core"),
    (TEXT, "adapters", "{rank: 16}"),
    (JSON, "limits.step_time", "3 s"),
    (JSON, "search.recompute", "any"),
    (JSON, "devices", "3"),
    (ALIASES, "search", "{z: 1}"),
    (ALIASES, "limits", "3"),
    (ALIASES, "new", "3"),
]


@pytest.mark.parametrize("end", ["", "\n"], ids=["open", "closed"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(("text", "key", "value"), EDITS)
def test_the_value_is_set_and_every_other_key_stays(text, key, value, line_end, end):
    """Whatever the style of the file and wherever the key is, or is not yet."""
    text = text.replace("\n", line_end) + end
    path = key.split(".")
    before = parse_yaml(text, name="before").value
    edited = parse_yaml(with_value(text, path, value), name="after")

    assert edited.at(path) == parse_yaml(f"value: {value}", name="value").at(["value"])
    assert {k: v for k, v in edited.value.items() if k != path[0]} == {
        k: v for k, v in before.items() if k != path[0]
    }
    if len(path) == 2 and isinstance(before.get(path[0]), dict):
        others = {k: v for k, v in edited.at(path[:1]).items() if k != path[1]}
        assert others == {k: v for k, v in before[path[0]].items() if k != path[1]}


def test_comments_stay():
    """Those of other keys, of the key itself, and of the items that a list keeps."""
    for path, value in (
        (["devices"], "16"),
        (["limits", "step_time"], "2 s"),
        (["search", "recompute"], "none"),
    ):
        assert with_value(TEXT, path, value).count("#") == TEXT.count("#")
    shorter = with_value(TEXT, ["rules"], '["tp <= 2", "dp <= 4"]')
    assert "  # first\n  - tp <= 2\n  # third\n  - dp <= 4\n" in shorter
    assert "global_batch_size: 4   # list" in with_value(TEXT, ["workload", "global_batch_size"], "4")
