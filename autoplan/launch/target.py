"""A target: what a plan can be emitted for, and whose files can be read back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from autoplan.errors import UnsupportedError
from autoplan.launch.configuration import Configuration, FileEdit, LaunchFile
from autoplan.schema.job import Job
from autoplan.schema.layout import Layout

#: How far what is emitted has been checked against the framework, of the version that the target names.
Check = Literal["accepted by the framework's parser", "names checked"]


@dataclass(frozen=True, slots=True)
class EmittedFile:
    """One file: its name, without a folder, and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Emission:
    """What is emitted for a target: its files, the main one first.

    ``arguments`` are those of the training program, unquoted, for a launcher that runs it;
    ``by_arguments`` says that they are the whole configuration, without the files. ``environment`` holds the
    variables that it needs; ``notes`` are sentences for the user.
    """

    files: tuple[EmittedFile, ...]
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    by_arguments: bool = False


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """What a launcher starts: the target of a framework, what is emitted for it, and the training program.

    ``program`` are its words, without the arguments of the plan; empty for the usual one of the framework.
    ``image`` is the container to run it in, where the launcher has containers.
    """

    framework: str
    emission: Emission
    program: tuple[str, ...] = ()
    image: str = ""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A layout to emit: its job, of one number of devices and one batch, and the lines of the header comment.

    Lines of ``header`` are without a comment sign, and each is one printable line. ``started`` is for
    launchers.
    """

    job: Job
    layout: Layout
    header: tuple[str, ...] = ()
    started: StartedProgram | None = None


class InexpressibleError(UnsupportedError):
    """A part of a plan that a target cannot express.

    ``part`` is a sentence on it; ``nearest`` has layouts without that part, the most alike first, which may
    lack further parts. Empty where no layout helps, such as for an optimizer that a framework does not have.
    """

    def __init__(self, part: str, nearest: Sequence[Layout] = ()) -> None:
        self.part = part
        self.nearest: tuple[Layout, ...] = tuple(nearest)
        super().__init__(part)


@dataclass(frozen=True, slots=True)
class Target:
    """A framework or a launcher, in the directions that it supports.

    ``version`` is the one that names and meanings were checked against, ``check`` how. ``emit`` raises
    InexpressibleError for the first part of a plan that cannot be expressed. ``recognises`` says whether a
    file is one of this framework, and ``read`` raises SpecError with all problems of the file. ``edits``
    returns what to write in a file so that its layout, the first one, becomes the second one. A
    launcher ``starts`` the program of another target. Which stack its files run under, and which stacks it
    runs, the files of the stacks say (``files_of``, ``launched_by``).
    """

    name: str
    framework: str
    version: str
    check: Check
    emit: Callable[[PlannedRun], Emission] | None = None
    recognises: Callable[[LaunchFile], bool] | None = None
    read: Callable[[LaunchFile], Configuration] | None = None
    edits: Callable[[LaunchFile, Job, Layout, Layout], tuple[FileEdit, ...]] | None = None
    starts: bool = False
