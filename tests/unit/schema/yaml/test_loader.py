"""Reading a file: strict YAML, and every problem at once in words that help."""

import enum
import time
from typing import Annotated, Literal

import jsonschema
import pytest
import yaml
from pydantic import Field, RootModel, field_validator, model_validator

from autoplan.errors import Problem, SpecError
from autoplan.schema.base import Bandwidth, Bytes, Frozen, Seconds, Share, SourcedBytes
from autoplan.schema.yaml import loader, parser
from autoplan.schema.yaml.document import format_path

Open = Literal["any"]
Schedule = Literal["1f1b", "gpipe"]


SOURCE = SourcedBytes.model_fields["source"]


class Colour(enum.Enum):
    """An enumeration, as a schema may use one."""

    RED = "red"
    BLUE = "blue"


class Ring(Frozen):
    """One member of a tagged union."""

    shape: Literal["ring"] = Field(description="what the fabric is")
    bandwidth: Bandwidth = Field(description="of one link")


class Mesh(Frozen):
    """The other member, with a field that is called like its own tag."""

    shape: Literal["mesh"] = Field(description="what the fabric is")
    mesh: tuple[int, int] = Field(description="rows and columns")


class Search(Frozen):
    """Choices, each a word, a number or a list."""

    tensor_parallel: Open | int | tuple[int, ...] = Field("any", description="degrees")
    schedule: Open | Schedule | tuple[Schedule, ...] = "any"
    zero_stage: Annotated[int, Field(ge=0, le=3)] | tuple[int, ...] | None = None
    batches: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1,)


class Limits(Frozen):
    """Quantities."""

    memory: Bytes | Literal["all"] = "all"
    headroom: Share = 0.0
    step_time: Seconds | None = None


class Names(RootModel[tuple[str, ...]]):
    """A list that is a model."""


class Square(Frozen):
    """A member of a union without a tag."""

    side: int


class Box(Frozen):
    """Another member of a union without a tag."""

    width: int
    height: int


class Job(Frozen):
    """A schema with a bit of everything."""

    schema_version: Literal[1] = Field(alias="schema", default=1, description="version")
    model: str = Field(min_length=1, description="a name in specs/models")
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    colour: Colour = Field(default=Colour.RED, strict=False)
    global_batch_size: int = Field(ge=1, default=1, description="sequences of one step")
    learning_rate: float = 1e-4
    offload: bool = False
    search: Search | None = None
    limits: Limits = Field(default_factory=Limits)
    fabric: Annotated[Ring | Mesh, Field(discriminator="shape")] | None = None
    figures: dict[str, SourcedBytes] = Field(default_factory=dict)
    fabrics: tuple[Annotated[Ring | Mesh, Field(discriminator="shape")], ...] = ()
    names: Names | None = None
    area: Square | Box | None = None

    @field_validator("model")
    @classmethod
    def _no_spaces(cls, value: str) -> str:
        if " " in value:
            raise ValueError(f"{value!r} holds a space")
        return value


def problems_of(text: str, schema: object = Job) -> tuple[Problem, ...]:
    """Return the problems of a text that is known to have some."""
    with pytest.raises(SpecError) as caught:
        loader.load_model(text, schema, name="x.yaml")
    return caught.value.problems


def only_problem(text: str, schema: object = Job) -> Problem:
    """Return the one problem of a text."""
    problems = problems_of(text, schema)
    assert len(problems) == 1, problems
    return problems[0]


def told(text: str, schema: object = Job) -> list[str]:
    """Return the problems of a text as lines."""
    return [str(problem) for problem in problems_of(text, schema)]


@pytest.fixture(params=["default", "python"])
def any_parser(request, monkeypatch):
    """Run a test with the parser in C, where there is one, and with the one in Python."""
    if request.param == "python":
        monkeypatch.setattr(parser, "_LOADER", yaml.SafeLoader)


# --- values


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5e+3", -1500.0),
        ("8192", 8192),
        ("+3", 3),
        ("-0", 0),
        ("010", 10),
        ("0o17", 15),
        ("0xFf", 255),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("Null", None),
        ("", None),
        ("no", "no"),
        ("yes", "yes"),
        ("On", "On"),
        ("off", "off"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("=", "="),
        (".", "."),
        ("tRUE", "tRUE"),
        ("6 %", "6 %"),
        ("'8'", "8"),
        ('"true"', "true"),
        ("!!str 8", "8"),
        ("!!float 8", 8.0),
        ("!!int 8", 8),
        ("{a: 1}", {"a": 1}),
        ("[1, [2]]", (1, (2,))),
        ("!!seq [1]", (1,)),
        ("!!map {}", {}),
    ],
)
@pytest.mark.usefixtures("any_parser")
def test_scalars_follow_yaml_1_2(scalar, expected):
    """A scalar means what the core schema of YAML 1.2 says, and lists are tuples."""
    value = loader.parse_yaml(f"key: {scalar}\n", name="x").value["key"]

    assert value == expected
    assert type(value) is type(expected)


def test_lines_are_known_for_every_path():
    """Keys and values know their lines, also inside lists and behind an alias."""
    text = "# first\na:\n  b: &x [1,\n    2]\n  c: >\n    text\nd: *x\n"
    document = loader.parse_yaml(text, name="x")

    assert document.value == {"a": {"b": (1, 2), "c": "text\n"}, "d": (1, 2)}
    assert document.line(["a"], key=True) == 2
    assert document.line(["a", "b"]) == 3
    assert document.line(["a", "b", 1]) == 4
    assert document.line(["d"], key=True) == 7
    assert document.line(["d", 1]) == 4
    assert document.line(["a", "unknown", "deeper"], key=True) == 2
    assert document.line([]) == 2
    assert document.at(["a", "b", 1]) == 2
    assert document.at(["a", "b", 9]) is None


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
@pytest.mark.usefixtures("any_parser")
def test_line_endings_and_a_leading_byte_order_mark_do_not_matter(ending):
    """A file from another system reads the same, with the same lines."""
    document = loader.parse_yaml("\ufeff" + ending.join(["a: 1", "b: 2", ""]), name="x")

    assert document.value == {"a": 1, "b": 2}
    assert document.line(["b"]) == 2


# --- what is refused


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "the file is empty"),
        ("# only a comment\n", 1, "the file is empty"),
        ("---\n", 1, "the file is empty"),
        ("a: 1\n---\nb: 2\n", 2, "a second document starts"),
        ("a: 1\n<<: {b: 2}\n", 2, "merge keys"),
        ("a: 1\n2: x\n", 2, "2 is a key, but keys must be text: quote it"),
        ("true: x\n", 1, "true is a key, but keys must be text"),
        ("? [a]\n: x\n", 1, "a list is a key, but keys must be text"),
        ("? {a: 1}\n: x\n", 1, "a mapping is a key, but keys must be text"),
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' is a duplicate of line 1: remove one"),
        ("a: !foo 1\n", 1, "the tag '!foo' is not allowed"),
        ("a: !!python/object:os.system x\n", 1, "the tag '!!python/object:os.system' is not"),
        ("a: !!timestamp 2024-01-01\n", 1, "the tag '!!timestamp' is not allowed"),
        ("a: !!set {x}\n", 1, "the tag '!!set' is not allowed"),
        ("a: !!int x\n", 1, "'x' is not what its tag says"),
        ("a: .inf\n", 1, r"\.inf is not a finite number"),
        ("a:\n- -.INF\n", 2, r"-\.INF is not a finite number"),
        ("a: .nan\n", 1, r"\.nan is not a finite number"),
        ("a: 1e999\n", 1, "'1e999' is too large"),
        ("a: 1234567890123456789012345678901\n", 1, "an integer has at most 30 digits"),
        ("a: *b\n", 1, "the alias 'b' has no complete anchor"),
        ("a: &b [*b]\n", 1, "the alias 'b' has no complete anchor"),
        ("b: &b 1\na: &b [*b]\n", 2, "the alias 'b' has no complete anchor"),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML: .*indent with spaces, not with tabs"),
        ("a: b: c\n", 1, "not valid YAML: mapping values are not allowed"),
        ("a: [1, 2\n", None, "not valid YAML: .*a bracket is not closed"),
        ("a: 'x\n", None, "not valid YAML: .*a quote is not closed"),
        ("a: @x\n", 1, "not valid YAML: .*must be quoted"),
        ("a: 1\nb\nc: 2\n", None, "not valid YAML: "),
        ("a: %\x00\n", 1, r"U\+0000 is not allowed in a file"),
        ("a: 1\r\nb: \x1b[0m\n", 2, r"U\+001B is not allowed in a file"),
        ("a: \ud800\n", 1, r"U\+D800 is not allowed in a file"),
        ("a: 1\nb: x\ufeff\n", 2, r"U\+FEFF is not allowed in a file"),
        ("a: x\u2028b: 1\n", 1, r"U\+2028 is not allowed in a file"),
        ('a: "\\0"\n', 1, r"U\+0000 is not allowed in a text"),
        ('a: "\\uD800"\n', 1, r"U\+D800 is not allowed in a text|not valid YAML"),
        ('a: "\\UFFFFFFFF"\n', None, "not valid YAML"),
    ],
)
@pytest.mark.usefixtures("any_parser")
def test_what_is_not_strict_yaml_is_refused_with_its_line(text, line, said):
    """Whatever a careless or hostile file holds is one problem, with a sentence and a line."""
    with pytest.raises(SpecError, match=said) as caught:
        loader.parse_yaml(text, name="x.yaml")

    problems = caught.value.problems
    assert len(problems) == 1
    assert problems[0].file == "x.yaml"
    assert line is None or problems[0].line == line


def laughs(levels: int) -> str:
    """Return a text whose aliases grow tenfold with each level."""
    grown = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]\n" for i in range(1, levels))
    return f"l0: &l0 [x, x, x, x, x, x, x, x, x, x]\n{grown}"


def ladder(rungs: int) -> str:
    """Return a text whose aliases nest ever deeper."""
    grown = "".join(f"r{i}: &r{i} {'[' * 9}*r{i - 1}{']' * 9}\n" for i in range(1, rungs))
    return f"r0: &r0 [x]\n{grown}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# " + "x" * 2**20, "larger than 1 MiB"),
        ("a: " + "\N{EURO SIGN}" * 400_000, "larger than 1 MiB"),
        ("[" * 51, "nested deeper than 50 levels"),
        ("[" * 100_000, "nested deeper than 50 levels"),
        ("{a: " * 1000, "nested deeper than 50 levels"),
        ("- " * 1000 + "x", "nested deeper than 50 levels"),
        ("".join(" " * i + f"k{i}:\n" for i in range(100)), "nested deeper than 50 levels"),
        (ladder(8), "nested deeper than 50 levels"),
        (laughs(7), "more than 100,000 values"),
        ("a: &a x\nb: [" + "*a, " * 101 + "]", "more than 100 aliases"),
        ("[" + "0," * 100_000 + "]", "more than 100,000 values"),
    ],
    ids=lambda value: value if len(value) < 60 else "",
)
def test_limits_stop_a_file_that_would_not_end(text, said):
    """A file that is too large, too deep or grows without end is refused before it is built."""
    with pytest.raises(SpecError, match=said) as caught:
        loader.parse_yaml(text, name="x.yaml")

    assert len(caught.value.problems) == 1


def test_depth_and_aliases_up_to_the_limit_are_read():
    """Fifty levels and a hundred aliases are allowed."""
    deep = loader.parse_yaml("[" * 50 + "]" * 50, name="x").value
    many = loader.parse_yaml("a: &a x\nb: [" + "*a, " * 100 + "]", name="x").value

    assert isinstance(deep, tuple)
    assert len(many["b"]) == 100


def test_content_problems_of_a_text_are_reported_together():
    """Repeated keys, tags and odd numbers in one file are all told, with their paths."""
    text = "a: 1\na: {b: .inf}\nc:\n  d: !x 1\n  d: 2\n  3: 4\n"

    with pytest.raises(SpecError) as caught:
        loader.parse_yaml(text, name="x.yaml")

    places = [(problem.line, problem.path) for problem in caught.value.problems]
    assert places == [(2, "$.a"), (2, "$.a.b"), (4, "$.c.d"), (5, "$.c.d"), (6, "$.c")]


# --- models


def test_a_valid_file_becomes_the_model_in_base_units():
    """Quantities become floats in base units, lists tuples."""
    text = """
        schema: 1
        model: llama3-8b
        search: {tensor_parallel: [1, 2], schedule: 1f1b}
        limits: {memory: 80 GiB, headroom: 6 %, step_time: 20 s}
        fabrics: [{shape: ring, bandwidth: 400 Gb/s}, {shape: mesh, mesh: [2, 4]}]
        figures: {weights: {value: 16 GB, kind: derived, source: by hand}}
        names: [a, b]
        area: {width: 1, height: 2}
    """
    job = loader.load_model(text, Job, name="x.yaml")

    assert job.search.tensor_parallel == (1, 2)
    assert job.limits == Limits(memory=80.0 * 2**30, headroom=0.06, step_time=20.0)
    assert job.fabrics[0].bandwidth == 50e9
    assert job.fabrics[1].mesh == (2, 4)
    assert job.figures["weights"].value == 16e9
    assert job.names.root == ("a", "b")
    assert job.area == Box(width=1, height=2)


@pytest.mark.parametrize(
    ("text", "line", "path", "message"),
    [
        # keys
        ("schema: 1", 1, "$.model", "'model' is missing: a name in specs/models"),
        (
            "model: m\nsearch:\n  tensor_paralel: 2",
            3,
            "$.search.tensor_paralel",
            "unknown key 'tensor_paralel': did you mean 'tensor_parallel'?",
        ),
        (
            "model: m\nsearch: {zero: 1}",
            2,
            "$.search.zero",
            "unknown key 'zero': did you mean 'zero_stage'?",
        ),
        (
            "model: m\nsearch: {tp: 1}",
            2,
            "$.search.tp",
            "unknown key 'tp': did you mean 'tensor_parallel'?",
        ),
        (
            "model: m\nlimits: {colour: 1}",
            2,
            "$.limits.colour",
            "unknown key 'colour': known keys are memory, headroom, step_time",
        ),
        ("model: m\nSchema: 1", 2, "$.Schema", "unknown key 'Schema': did you mean 'schema'?"),
        # kinds
        ("model: 3", 1, "$.model", "3 is not text"),
        ("model:", 1, "$.model", "an empty value is not text"),
        ("- model", 1, "$", "a list is not a mapping"),
        ("text", 1, "$", "'text' is not a mapping"),
        ("model: m\nlimits: 3", 2, "$.limits", "3 is not a mapping"),
        (
            "model: m\nglobal_batch_size: 1e3",
            2,
            "$.global_batch_size",
            "1000.0 is not a whole number",
        ),
        (
            "model: m\nglobal_batch_size: true",
            2,
            "$.global_batch_size",
            "true is not a whole number",
        ),
        (
            "model: m\nglobal_batch_size: '8'",
            2,
            "$.global_batch_size",
            "'8' is text, not a whole number: write digits alone, without quotes",
        ),
        (
            "model: m\nlearning_rate: 1_000",
            2,
            "$.learning_rate",
            "'1_000' is text, not a number: write digits alone, without quotes",
        ),
        ("model: m\noffload: yes", 2, "$.offload", "'yes' is not true or false: write true"),
        ("model: m\nnames: [a, 2]", 2, "$.names[1]", "2 is not text"),
        # choices
        (
            "model: m\nprecision: fp17",
            2,
            "$.precision",
            "'fp17' is not one of bf16, fp16, fp32 - did you mean 'fp16'?",
        ),
        (
            "model: m\nprecision: BF16",
            2,
            "$.precision",
            "'BF16' is not one of bf16, fp16, fp32 - did you mean 'bf16'?",
        ),
        ("model: m\nprecision: 16", 2, "$.precision", "16 is not one of bf16, fp16, fp32"),
        (
            "model: m\ncolour: rad",
            2,
            "$.colour",
            "'rad' is not one of red, blue - did you mean 'red'?",
        ),
        ("model: m\nschema: 2", 2, "$.schema", "2 is not 1"),
        # bounds
        ("model: ''", 1, "$.model", "'' must have at least 1 character"),
        ("model: m\nglobal_batch_size: 0", 2, "$.global_batch_size", "0 must be at least 1"),
        (
            "model: m\nsearch: {batches: []}",
            2,
            "$.search.batches",
            "an empty list must have at least 1 entry",
        ),
        ("model: m\nsearch: {batches: [0]}", 2, "$.search.batches[0]", "0 must be at least 1"),
        # sentences of our own validators
        ("model: a b", 1, "$.model", "'a b' holds a space"),
        # quantities
        (
            "model: m\nlimits: {step_time: 20}",
            2,
            "$.limits.step_time",
            "20 has no unit: write for example 20 s or 5 us",
        ),
        (
            "model: m\nlimits: {headroom: 120 %}",
            2,
            "$.limits.headroom",
            "'120 %' must be at most 100 %",
        ),
        (
            "model: m\nlimits: {memory: big}",
            2,
            "$.limits.memory",
            "'big' is not a number with a unit: write for example 80 GiB or 80 GB (or write 'all')",
        ),
        # unions
        (
            "model: m\nsearch: {tensor_parallel: auto}",
            2,
            "$.search.tensor_parallel",
            "'auto' is not 'any', a whole number or a list",
        ),
        (
            "model: m\nsearch:\n  tensor_parallel:\n  - 1\n  - x\n",
            5,
            "$.search.tensor_parallel[1]",
            "'x' is not a whole number",
        ),
        (
            "model: m\nsearch: {schedule: [1f1b, 1f2b]}",
            2,
            "$.search.schedule[1]",
            "'1f2b' is not one of 1f1b, gpipe - did you mean '1f1b'?",
        ),
        (
            "model: m\nsearch: {schedule: gipe}",
            2,
            "$.search.schedule",
            "'gipe' is not 'any', '1f1b', 'gpipe' or a list - did you mean 'gpipe'?",
        ),
        ("model: m\nsearch: {zero_stage: 4}", 2, "$.search.zero_stage", "4 must be at most 3"),
        (
            "model: m\nfabric: {shape: rinq}",
            2,
            "$.fabric.shape",
            "'rinq' is not one of ring, mesh - did you mean 'ring'?",
        ),
        ("model: m\nfabric: {}", 2, "$.fabric.shape", "'shape' is missing: one of ring, mesh"),
        ("model: m\nfabric: 3", 2, "$.fabric", "3 is not a mapping"),
        (
            "model: m\nfabrics:\n- {shape: ring, bandwidth: 4}",
            3,
            "$.fabrics[0].bandwidth",
            "4 has no unit: write for example 3.35 TB/s or 400 Gb/s",
        ),
        (
            "model: m\nfabric: {shape: mesh, mesh: [1, x]}",
            2,
            "$.fabric.mesh[1]",
            "'x' is not a whole number",
        ),
        (
            "model: m\nfabric: {shape: ring, bandwidth: 1 B/s, ring: 1}",
            2,
            "$.fabric.ring",
            "unknown key 'ring': known keys are shape, bandwidth",
        ),
        ("model: m\narea: {width: 1, height: x}", 2, "$.area.height", "'x' is not a whole number"),
        ("model: m\narea: 3", 2, "$.area", "3 is not a mapping"),
    ],
)
def test_a_problem_says_what_is_wrong_where_and_what_to_do(text, line, path, message):
    """Each wrong input gives the sentence that a person can act on, at the path that they wrote."""
    assert problems_of(text) == (Problem(message, path, "x.yaml", line),)


def test_a_misspelt_key_is_told_as_unknown_and_as_missing():
    """A needed key that is misspelt, here in an entry of a mapping, gives both problems."""
    assert told("model: m\nfigures:\n  a: {value: 1 B, kind: guess, sorce: none}") == [
        f"x.yaml:3: $.figures.a.source: 'source' is missing: {SOURCE.description}",
        "x.yaml:3: $.figures.a.sorce: unknown key 'sorce': did you mean 'source'?",
    ]


def test_all_problems_of_a_file_are_told_in_the_order_of_its_lines():
    """One run shows everything, from the top of the file down."""
    text = "modl: m\nprecision: fp17\nlimits:\n  headroom: 6\nsearch: {zero_stage: 9}\n"

    assert [(problem.line, problem.path) for problem in problems_of(text)] == [
        (1, "$.model"),
        (1, "$.modl"),
        (2, "$.precision"),
        (4, "$.limits.headroom"),
        (5, "$.search.zero_stage"),
    ]


def test_a_missing_key_is_told_at_the_key_of_its_mapping():
    """The line of a missing key is where the mapping that lacks it is named."""
    problem = only_problem("model: m\n\narea:\n  # a comment\n  width: 1\n")

    assert (problem.line, problem.path) == (3, "$.area.height")


def test_a_union_of_models_is_read_without_a_class_around_it():
    """The top of a file may be a tagged union."""
    union = Annotated[Ring | Mesh, Field(discriminator="shape")]
    ring = loader.load_model("shape: ring\nbandwidth: 1 GB/s", union, name="x.yaml")

    assert ring == Ring(shape="ring", bandwidth=1e9)
    assert told("shape: rnig", union) == [
        "x.yaml:1: $.shape: 'rnig' is not one of ring, mesh - did you mean 'ring'?"
    ]


def test_a_model_that_refuses_as_a_whole_is_told_at_its_mapping():
    """What a validator of a whole model says stands at the path of its mapping."""

    class Pair(Frozen):
        low: int
        high: int

        @model_validator(mode="after")
        def _in_order(self):
            if self.low > self.high:
                raise ValueError("low is above high")
            return self

    class Holder(Frozen):
        pairs: tuple[Pair, ...]

    assert told("pairs:\n- {low: 1, high: 2}\n- {low: 3, high: 2}\n", Holder) == [
        "x.yaml:3: $.pairs[1]: low is above high"
    ]


def test_long_texts_are_cut_in_messages():
    """A message stays readable, whatever stands in the file."""
    problem = only_problem(f"model: m\nprecision: {'x' * 5000}\n")

    assert len(str(problem)) < 200


def test_many_problems_do_not_take_for_ever():
    """Ten times the problems take about ten times as long to tell, not a hundred times."""
    start = time.process_time()
    few = problems_of("model: m\nfabrics:\n" + "- {shape: rinq}\n" * 500)
    middle = time.process_time()
    many = problems_of("model: m\nfabrics:\n" + "- {shape: rinq}\n" * 5_000)
    end = time.process_time()

    assert (len(few), len(many)) == (500, 5_000)
    assert end - middle < 60 * (middle - start)


def test_paths_are_written_as_people_do():
    """Plain keys follow a dot, all else stands in brackets."""
    assert format_path(()) == "$"
    assert format_path(("a", 0, "b-c", "d.e", "")) == "$.a[0].b-c['d.e']['']"


# --- JSON Schema


def test_json_schema_is_valid_and_takes_what_the_loader_takes():
    """The JSON Schema is of draft 2020-12, has quantities as texts and refuses unknown keys."""
    schema = loader.json_schema(Job)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "Job"
    assert validator.is_valid({"model": "m", "limits": {"headroom": "6 %"}})
    assert not validator.is_valid({"model": "m", "limits": {"headroom": 0.06}})
    assert not validator.is_valid({"model": "m", "modl": "m"})
