"""Shell scripts read and not executed: the commands that they would run, with the line of every word.

Variables, arrays, arithmetic, here-documents, functions, and conditions that the file decides are followed.
What depends on the output of a command, on a loop, on a file that is read with ``source`` or on another
condition is marked as unknown with the reason, so that a reader can refuse it where it matters.
"""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from autoplan.errors import Problem, SpecError
from autoplan.launch.scripts import word_parser as syntax
from autoplan.launch.scripts.expansion import arithmetic_assignment, assign
from autoplan.launch.scripts.pieces import (
    Piece,
    ShellScope,
    Text,
    Unknown,
    Value,
    Word,
    as_text,
    commands_in,
    in_line,
    joined,
    text_of,
)
from autoplan.launch.scripts.script import (
    SHELLS,
    Command,
    Script,
    called_place,
    pbs_directives,
    script_place,
    slurm_directives,
    slurm_variables,
)
from autoplan.launch.scripts.shell_builtins import (
    BUILTINS,
    DEEPEST,
    DoubtfulError,
    EndedError,
    LeftError,
    ReaderState,
    asks_unset,
)
from autoplan.launch.scripts.shell_parser import parse_script

_MOST_STEPS: Final = 50_000
#: Most scripts that run each other.
_MOST_CALLED: Final = 4
#: Most rounds of a loop that is followed round by round.
_MOST_ROUNDS: Final = 100
_DECLARING: Final = frozenset({"export", "declare", "local", "readonly", "typeset"})
#: Commands that hand a here-document on to a shell, or write it to a file.
#: A variable that is set for one command.
_SET_ALONE: Final = re.compile(r"[A-Za-z_]\w*=")
_LAUNCHING: Final = frozenset({"torchrun", "mpirun", "mpiexec", "deepspeed"})
_TAKING_SCRIPTS: Final = frozenset({*SHELLS, "sbatch", "srun", "ssh", "cat", "tee"})


def read_script(
    text: str,
    file: str,
    variables: Mapping[str, str] | None = None,
    sibling: Callable[[str], str | None] = lambda _: None,
) -> Script:
    """Return what the script ``text`` does, started with ``variables``; nothing is executed.

    ``sibling`` returns the text of a script that this one reads with ``source``, where it lies there. Raises
    SpecError with the line of what cannot be read.
    """
    directives = slurm_directives(text)
    outside = {"PWD": ".", **slurm_variables(directives), **(variables or {})}
    reader = _ScriptReader(file, ShellScope(outside), sibling)
    try:
        reader.script(text, 1)
    except EndedError:
        pass
    except RecursionError as error:
        raise SpecError([Problem("nested too deeply", "script", file)]) from error
    reader.note_overwritten(variables or {})
    directives = {**pbs_directives(text), **directives, **reader.directives}
    return Script(
        file,
        tuple(reader.commands),
        reader.scope.values,
        directives,
        tuple(reader.notes),
        tuple(reader.hints),
        reader.written,
    )


@dataclass(slots=True)
class _ScriptReader(ReaderState):
    """Follows the statements of a script, and has what is known of it so far."""

    def note_overwritten(self, variables: Mapping[str, str]) -> None:
        """Note the variables from outside that the script sets itself."""
        for name, value in variables.items():
            own = self.scope.values.get(name)
            if own is not None and (isinstance(own, dict) or text_of(own) != value):
                self.notes.append(f"{name}={value} from outside is overwritten by the script")

    def script(self, text: str, line: int) -> bool | None:
        """Follow a whole script, that begins at ``line``."""
        return self.statement(parse_script(text, self.file, line))

    def group(self, group: syntax.StatementList) -> bool | None:
        """Follow statements in order, and return the outcome of the last one."""
        outcome: bool | None = True
        for at, (statement, joint) in enumerate(zip(group.statements, group.joints, strict=True)):
            wanted = {"&&": True, "||": False}.get(joint)
            if wanted is not None and outcome is not None and outcome is not wanted:
                continue
            if wanted is not None and outcome is None:
                self.perhaps([statement], statement.line)
                continue
            outcome = self.statement(statement)
            if at in group.negated and outcome is not None:
                outcome = not outcome
        return outcome

    def perhaps(self, statements: Sequence[syntax.Statement | None], line: int) -> None:
        """Follow one of several statements where it is not known which; None does nothing."""
        options = [*statements] if len(statements) > 1 else [*statements, None]
        reason = f"the condition in line {line}"
        before, doubt, states = dict(self.scope.values), self.doubt, []
        for statement in options:
            self.scope.values, self.doubt = dict(before), doubt or reason
            try:
                if statement is not None:
                    self.statement(statement)
            except EndedError:
                continue
            except LeftError as left:
                raise DoubtfulError from left
            states.append(self.scope.values)
        self.doubt = doubt
        if not states:
            raise EndedError
        self.scope.values = joined(states, f"a value that depends on {reason}", line, self.scope.outside)

    def statement(self, statement: syntax.Statement) -> bool | None:
        """Follow one statement, and return its outcome where that is known."""
        self.steps += 1
        if self.steps > _MOST_STEPS:
            raise SpecError([Problem("the script is too long", "script", self.file, statement.line)])
        self.depth += 1
        if self.depth > DEEPEST:
            raise SpecError([Problem("nested too deeply", "script", self.file, statement.line)])
        try:
            return self._statement(statement)
        finally:
            self.depth -= 1

    def _statement(self, statement: syntax.Statement) -> bool | None:
        if isinstance(statement, syntax.SimpleCommand):
            return _simple(self, statement)
        if isinstance(statement, syntax.StatementList):
            return self.subshell(statement) if statement.subshell else self.group(statement)
        if isinstance(statement, syntax.FunctionDefinition):
            self.scope.functions[statement.name] = statement.body
            return True
        return self._compound(statement)

    def _compound(
        self, statement: syntax.IfClause | syntax.Case | syntax.Loop | syntax.ArithmeticCommand
    ) -> bool | None:
        if isinstance(statement, syntax.IfClause):
            return self.if_clause(statement)
        if isinstance(statement, syntax.Case):
            return self.case(statement)
        return self.loop(statement) if isinstance(statement, syntax.Loop) else self.arithmetic(statement)

    def subshell(self, group: syntax.StatementList) -> bool | None:
        """Follow statements whose assignments do not last."""
        values = dict(self.scope.values)
        try:
            return self.group(group)
        except EndedError:
            return None
        finally:
            self.scope.values = values

    def if_clause(self, clause: syntax.IfClause) -> bool | None:
        """Follow the branch whose condition holds, or every one that may."""
        possible: list[syntax.Statement | None] = []
        for condition, body in clause.branches:
            outcome = self.group(condition)
            if outcome is False:
                continue
            if outcome and not possible and not self.guards(condition, body, clause.line):
                return self.group(body)
            if outcome and not possible:
                continue
            possible.append(body)
            if outcome:
                break
        else:
            if not possible:
                return self.group(clause.otherwise) if clause.otherwise else True
            possible.append(clause.otherwise)
        self.perhaps(possible, clause.line)
        return None

    def guards(self, condition: syntax.StatementList, body: syntax.StatementList, line: int) -> bool:
        """Return whether a branch ends the script because a variable is not set: who starts it sets that."""
        if self.called or not asks_unset(condition, self.scope):
            return False
        first, values, notes = len(self.commands), dict(self.scope.values), list(self.notes)
        try:
            self.group(body)
        except EndedError:
            self.notes[:] = [*notes, f"line {line} ends the script where a variable is not set: taken as set"]
            return True
        finally:
            del self.commands[first:]
            self.scope.values = values
        self.notes[:] = notes
        return False

    def case(self, case: syntax.Case) -> bool | None:
        """Follow the branch whose pattern fits, or all of them where the word is not known."""
        word = self.expander.plain(case.word)
        self.hint(self.expander.fields([case.word]), case.line)
        if word is None:
            self.perhaps([*(body for _, body in case.branches), None], case.line)
            return None
        for patterns, body in case.branches:
            if any(fnmatch.fnmatchcase(word, self.expander.plain(p) or "") for p in patterns):
                return self.group(body)
        return True

    def loop(self, loop: syntax.Loop) -> bool | None:
        """Follow the body of a loop once: what it assigns is not known, but in a loop over one word."""
        words = None if loop.words is None else self.expander.fields(loop.words)
        if words == [] or self.never(loop):
            return True
        if words is not None and len(words) == 1 and words[0].unknown is None:
            self.scope.values[loop.name] = (Piece(words[0].text, words[0].line),)
            return self.group(loop.body)
        if words is None and loop.condition is not None and _round_by_round(self, loop):
            return True
        if words and _over_arguments(loop) and all(word.unknown is None for word in words):
            return _each_argument(self, loop, words)
        reason = f"a value of the loop in line {loop.line}"
        before = dict(self.scope.values)
        if loop.name:
            self.scope.values[loop.name] = (Piece("", loop.line, unknown=Unknown(reason, loop.line)),)
        doubt, self.doubt = self.doubt, self.doubt or f"the loop in line {loop.line}"
        try:
            self.group(loop.body)
        except EndedError:
            self.scope.values = before
        self.doubt = doubt
        self.scope.values = joined([before, self.scope.values], reason, loop.line)
        return None

    def round(self, loop: syntax.Loop) -> bool:
        """Follow one round of a loop, and return whether it is the last."""
        try:
            self.group(loop.body)
        except LeftError as left:
            return left.last
        return False

    def never(self, loop: syntax.Loop) -> bool:
        """Return whether a condition fails at the start, as one over arguments does where none are given."""
        if loop.condition is None:
            return False
        first, values, hints = len(self.commands), dict(self.scope.values), list(self.hints)
        self.scope.bare, before = True, self.scope.bare
        try:
            outcome = self.group(loop.condition)
        except EndedError:
            outcome = None
        self.scope.bare, self.scope.values = before, values
        del self.commands[first:]
        self.hints[:] = hints
        fails = outcome is loop.until
        if fails and self.scope.assumed:
            self.notes.append(f"the loop in line {loop.line} is over arguments of the script: none are given")
        self.scope.assumed = False
        return fails

    def arithmetic(self, command: syntax.ArithmeticCommand) -> bool | None:
        """Follow ``((...))``, which assigns or tests."""
        assignment = arithmetic_assignment(text_of(self.expander.text(command.text)))
        if assignment is None:
            value = self.expander.number(command.text, command.line)
            return None if value is None else value != 0
        return self.group(parse_script(f"{assignment[0]}=$(({assignment[1]}))", self.file, command.line))


def _simple(reader: _ScriptReader, command: syntax.SimpleCommand) -> bool | None:
    """Follow a command: assignments alone, a builtin, a function, or a program that is noted."""
    expander = reader.expander
    words = expander.fields(command.words)
    if not words or words[0].text in _DECLARING:
        for assignment in command.assignments:
            assign(expander, assignment)
        if words and words[0].text == "export":
            reader.exported |= {one.name for one in command.assignments}
            reader.exported |= {word.text for word in words[1:] if word.text.isidentifier()}
        return True
    name = words[0].text
    if name == "read" and command.document is not None and _whole(reader, words, command.document):
        return None
    if name == "eval":
        joint = [
            p for word in command.words[1:] for p in (*_split(expander.text(word)), Piece(" ", command.line))
        ]
        _inner(reader, tuple(joint))
        return None
    builtin = BUILTINS.get(name)
    if builtin is not None:
        return builtin(reader, words, command.line)
    if name in reader.scope.functions:
        return _call(reader, name, words, command.line)
    environment = _environment(reader, command)
    reader.commands.append(Command(tuple(words), command.line, reader.doubt, environment))
    _inner_scripts(reader, words, command)
    _write(reader, words, command)
    _written_script(reader, words)
    _called_script(reader, words, environment)
    return None


def _each_argument(reader: _ScriptReader, loop: syntax.Loop, words: Sequence[Word]) -> bool | None:
    """Follow a loop over the arguments of the script or of a function, all of which are known."""
    rounds, reader.rounds = reader.rounds, True
    try:
        for word in words[:_MOST_ROUNDS]:
            reader.scope.values[loop.name] = (Piece(word.text, word.line),)
            if reader.round(loop):
                break
    finally:
        reader.rounds = rounds
    return True


def _over_arguments(loop: syntax.Loop) -> bool:
    """Return whether a loop is over ``$@`` or ``$*``, which parses arguments and starts nothing twice."""
    parts = [part for word in loop.words or () for part in word if not _is_empty(part)]
    return len(parts) == 1 and isinstance(parts[0], syntax.Parameter) and parts[0].name in {"@", "*"}


def _is_empty(part: syntax.WordPart) -> bool:
    return isinstance(part, syntax.Literal) and not part.text


def _round_by_round(reader: _ScriptReader, loop: syntax.Loop) -> bool:
    """Follow a loop whose condition is known in every round, such as one over known arguments.

    Returns False, and forgets what was followed, where a condition is not known or never ends it.
    """
    kept = (dict(reader.scope.values), reader.scope.positional, reader.scope.shifted, len(reader.commands))
    hints, notes, rounds = list(reader.hints), list(reader.notes), reader.rounds
    reader.rounds, outcome = True, None
    try:
        for _ in range(_MOST_ROUNDS if loop.condition is not None else 0):
            outcome = reader.group(loop.condition) if loop.condition is not None else None
            if outcome is None or outcome is loop.until:
                break
            if reader.round(loop):
                outcome = loop.until
                break
    except (EndedError, DoubtfulError):
        outcome = None
    reader.rounds = rounds
    if outcome is loop.until:
        return True
    reader.scope.values, reader.scope.positional, reader.scope.shifted, first = kept
    del reader.commands[first:]
    reader.hints[:], reader.notes[:] = hints, notes
    return False


def _split(text: Text) -> Text:
    """Return a text as words apart by spaces, where it has no quotes."""
    return tuple(p if p.quoted else replace(p, text=p.text.replace("\n", " ")) for p in text)


def _whole(reader: _ScriptReader, words: Sequence[Word], document: syntax.HereDocument) -> bool:
    """Follow ``read -d '' NAME``, which gives a variable a whole here-document."""
    texts = [word.text for word in words]
    if "-d" not in texts or not texts[-1].isidentifier():
        return False
    reader.scope.values[texts[-1]] = tuple(reader.expander.text(document.text))
    return True


def _called_script(reader: _ScriptReader, words: Sequence[Word], environment: Mapping[str, Value]) -> None:
    """Follow a script that lies beside this one and is run, with its arguments and what is exported to it."""
    at = called_place(words)
    name = words[at].text if at is not None else ""
    text = reader.sibling(name.removeprefix("./")) if name and words[at or 0].unknown is None else None
    if at is None or text is None or name in reader.called or len(reader.called) >= _MOST_CALLED:
        return
    line, first = words[0].line, len(reader.commands)
    outside = {key: value for key, value in reader.scope.outside.items() if not key.isdigit()}
    if any(word.text.rpartition("/")[2] == "sbatch" for word in words[:at]):
        reader.directives |= slurm_directives(text, line)
        outside = {**slurm_variables(reader.directives), **outside}
    values = {key: value for key, value in reader.scope.values.items() if key in reader.exported}
    arguments = tuple(as_text(word) for word in words[at + 1 :])
    scope = ShellScope(outside, {**values, **environment}, positional=arguments)
    inner = _ScriptReader(
        name, scope, reader.sibling, doubt=reader.doubt, called=(*reader.called, name), depth=reader.depth
    )
    inner.exported = set(reader.exported)
    with contextlib.suppress(EndedError):
        inner.script(text, 1)
    reader.notes += [f"line {line} runs {name}, which is followed", *inner.notes]
    for command in inner.commands:
        placed = tuple(replace(word, line=line) for word in command.words)
        reader.commands.append(replace(command, words=placed, line=line))
    for key, value in inner.scope.values.items():
        reader.scope.values.setdefault(key, in_line(value, line))
    reader.written |= inner.written
    _launch(reader, first, words[:at])


def _write(reader: _ScriptReader, words: Sequence[Word], command: syntax.SimpleCommand) -> None:
    """Note the text that a command writes to a file: ``echo TEXT > FILE``, or a here-document."""
    program = words[0].text
    named = reader.expander.plain(command.output) if command.output else None
    if program == "tee" and len(words) > 1 and words[-1].unknown is None:
        named = words[-1].text
    shows = program in {"echo", "printf"}
    if not named or not (shows or (program in {"cat", "tee"} and command.document is not None)):
        return
    if command.document is not None:
        text: Text = tuple(reader.expander.text(command.document.text))
    else:
        texts = [reader.expander.text(word) for word in command.words[1:]]
        shown = [text for text in texts if text_of(text) not in {"-e", "-n"}]
        text = tuple(piece for one in shown for piece in (*one, Piece(" ", command.line)))
    name = named.rpartition("/")[2]
    if reader.doubt:
        unknown = Unknown(f"{name}, which is written under {reader.doubt}", command.line)
        text = (*text, Piece("", command.line, unknown=unknown))
    reader.written[name] = (*(reader.written.get(name, ()) if command.appends else ()), *text)
    if text_of(text).startswith("#!"):
        # Such a here-document is followed where it is written.
        reader.written.pop(name)


def _written_script(reader: _ScriptReader, words: Sequence[Word]) -> None:
    """Follow a script that was written before, where a shell or a launcher runs it."""
    for at, word in enumerate(words):
        name = word.text.rpartition("/")[2]
        before = {other.text.rpartition("/")[2] for other in words[:at]}
        if name not in reader.written or not (at == 0 or before & _TAKING_SCRIPTS):
            continue
        first = len(reader.commands)
        _inner(reader, reader.written.pop(name))
        _launch(reader, first, words[:at])
        return


def _launch(reader: _ScriptReader, first: int, before: Sequence[Word]) -> None:
    """Put a launcher, which starts a script by a shell, before the programs that the script starts."""
    names = [word.text.rpartition("/")[2] for word in before]
    if not _LAUNCHING.intersection(names):
        return
    launched = before[: next((at for at, name in enumerate(names) if name in SHELLS), len(before))]
    for place, command in enumerate(reader.commands[first:], first):
        if any(inner.text.endswith(".py") for inner in command.words):
            reader.commands[place] = replace(command, words=(*launched, *command.words))


def _environment(reader: _ScriptReader, command: syntax.SimpleCommand) -> dict[str, Value]:
    """Return the variables that stand before a command, which are set for it alone."""
    if not command.assignments:
        return {}
    before = dict(reader.scope.values)
    for assignment in command.assignments:
        assign(reader.expander, assignment)
    set_alone = {one.name: reader.scope.values[one.name] for one in command.assignments}
    reader.scope.values = before
    return set_alone


def _call(reader: _ScriptReader, name: str, words: Sequence[Word], line: int) -> bool | None:
    """Follow the body of a function with its arguments."""
    reader.commands.append(Command(tuple(words), line, reader.doubt))
    before, reader.scope.positional = reader.scope.positional, tuple(as_text(word) for word in words[1:])
    try:
        return reader.statement(reader.scope.functions[name])
    finally:
        reader.scope.positional = before


def _inner_scripts(reader: _ScriptReader, words: Sequence[Word], command: syntax.SimpleCommand) -> None:
    """Follow the scripts that a command hands to a shell: behind ``-c``, or in its here-document."""
    wrapped = _wrapped(words)
    if wrapped is not None:
        _inner(reader, wrapped)
        return
    place = script_place(words)
    if place is not None:
        first = len(reader.commands)
        _inner(reader, _source_of(reader, command, words, place))
        _launch(reader, first, words[:place])
        return
    if command.document is None or words[0].text not in _TAKING_SCRIPTS:
        return
    document = reader.expander.text(command.document.text)
    text = text_of(document)
    if words[0].text not in {"cat", "tee"} or text.startswith("#!"):
        line = document[0].line if document else command.line
        reader.directives |= slurm_directives(text, line)
        reader.scope.outside = {**slurm_variables(reader.directives), **reader.scope.outside}
        _inner(reader, document)


def _wrapped(words: Sequence[Word]) -> Text | None:
    """Return the script that ``sbatch --wrap`` gets as a word."""
    if words[0].text.rpartition("/")[2] != "sbatch":
        return None
    for at, word in enumerate(words):
        name, equals, text = word.text.partition("=")
        if name == "--wrap" and (equals or at + 1 < len(words)):
            inner = replace(word, text=text) if equals else words[at + 1]
            return as_text(inner)
    return None


def _source_of(reader: _ScriptReader, command: syntax.SimpleCommand, words: Sequence[Word], at: int) -> Text:
    """Return the text of word ``at`` with the line of each of its parts."""
    count = 0
    for word in command.words:
        fields = reader.expander.fields([word])
        if count <= at < count + len(fields):
            return reader.expander.text(word) if len(fields) == 1 else as_text(words[at])
        count += len(fields)
    return as_text(words[at])


def _set_alone(word: Word) -> Text:
    """Return the value of ``NAME=VALUE`` before a command."""
    return as_text(replace(word, text=word.text.partition("=")[2]))


def _inner(reader: _ScriptReader, pieces: Text) -> None:
    """Follow the script that ``pieces`` are: as words where it is one command, so that lines are kept."""
    text = text_of(pieces)
    if not any(sign in text for sign in "$`(){}<>") or any(piece.unknown for piece in pieces):
        for words in commands_in(pieces):
            before = list(takewhile(lambda word: _SET_ALONE.match(word.text) is not None, words[:-1]))
            environment = {w.text.partition("=")[0]: _set_alone(w) for w in before}
            rest = tuple(words[len(before) :])
            reader.commands.append(Command(rest, rest[0].line, reader.doubt, environment))
        return
    try:
        reader.script(text, pieces[0].line)
    except EndedError:
        return
