"""What a launch file says: values with their lines, and the layout and job that follow.

A reader of a framework returns values by field; ``assembly.assembled`` checks them against each other and
makes the configuration. Fields are named as in a layout string (``LAYOUT_KEYS``; ``dp`` only where a file
gives it) or as in a job (``devices``, ``sequence_length``, ``global_batch_size``, ``precision``,
``optimizer``, ``model``, and ``software``, ``routing``, ``adapters``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoplan.errors import Problem, SpecError
from autoplan.results.plan import Plan
from autoplan.schema.layout import Layout


@dataclass(slots=True)
class ReadFile:
    """What is noted while a file is read: problems, notes, and fields that what is not read may decide."""

    file: str
    problems: list[Problem] = field(default_factory=list, kw_only=True)
    notes: list[str] = field(default_factory=list, kw_only=True)
    opened: set[str] = field(default_factory=set, kw_only=True)

    def stop_at_problems(self) -> None:
        """Raise SpecError with all problems, if there are some."""
        if self.problems:
            raise SpecError(list(dict.fromkeys(self.problems)))


@dataclass(frozen=True, slots=True)
class LaunchFile:
    """A file to read: what the user calls it, its text, and what is said about it.

    ``variables`` are set from outside, as environment variables are; ``arguments`` are appended to those of
    the training program; ``devices`` is the number of devices, where the user says it. ``values`` are what a
    program has in the place of a file, by name, and nested; the text is empty then. ``sibling`` returns the
    text of a file that this one names, or None where none lies there. ``script`` says that the text is the
    script of a manifest, whatever the name says. ``launcher`` are the words of ``accelerate launch`` that
    start a program with this file, each with the reason why its value is not known, or none.
    """

    name: str
    text: str
    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    devices: int | None = None
    values: Mapping[str, Any] | None = None
    sibling: Callable[[str], str | None] = field(default=lambda _: None, compare=False)
    script: bool = False
    launcher: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A value, and where it stands.

    ``words`` are what the file has there, such as ``--tensor-model-parallel-size 4``, and ``line`` is the
    line; None for what the command line says. Where ``default`` is True the file leaves the value open, and
    it is the framework's own.
    """

    value: Any
    line: int | None = None
    words: str = ""
    default: bool = False

    def of(self, value: Any) -> Written:  # noqa: ANN401 - any value of a file
        """Return another value that stands in the same place."""
        return Written(value, self.line, self.words)


#: Values by field, and such as are collected.
Values = Mapping[str, Written]
Fields = dict[str, Written]


def stated(**values: Written | None) -> Fields:
    """Return the values that are there, by field."""
    return {field: written for field, written in values.items() if written is not None}


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a launch file says.

    ``layout`` is None where the number of layers or of devices is unknown; ``layout_fields`` then has what is
    known, and None for the rest. ``job`` has the keys of a job file as far as they are known, with
    ``model`` a name of the catalogue or a description as in a model file. ``defaults`` are the fields that
    took the default of the framework, ``unspecified`` those that the file leaves open and that have none.
    ``way`` is the title of the program's way that shards, such as DeepSpeed, where the framework has several.
    """

    framework: str
    file: str
    layout: Layout | None
    layout_fields: Mapping[str, Any]
    layout_string: str
    job: Mapping[str, Any]
    values: Values
    defaults: tuple[str, ...] = ()
    unspecified: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    way: str | None = None


@dataclass(frozen=True, slots=True)
class FileEdit:
    """One edit of a file: the words that stand there, with their line, and what to write instead.

    ``before`` is empty for words to add, whose line is None, and ``after`` for words to remove. ``path`` is
    the key in a JSON or YAML file, such as ``zero_optimization.stage``. ``file`` is the name of another file
    that was read with this one, where the edit is one of that.
    """

    before: str
    after: str
    line: int | None = None
    path: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Improvement:
    """A layout that differs from the file's in ``changes`` choices, and the edits that make it."""

    plan: Plan
    changes: tuple[str, ...]
    edits: tuple[FileEdit, ...]


@dataclass(frozen=True, slots=True)
class FileComparison:
    """The layout of a file with its prediction, the fastest plan, and improvements, the fewest changes first.

    ``best`` is None where no layout fits. ``proven`` is False where the search ended early. ``notes`` say
    what of the file was not priced.
    """

    file: str
    framework: str
    own: Plan
    best: Plan | None
    proven: bool
    improvements: tuple[Improvement, ...] = ()
    notes: tuple[str, ...] = ()
