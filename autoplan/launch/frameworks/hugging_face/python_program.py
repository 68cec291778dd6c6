"""Programs in Python around the Hugging Face Trainer, by the constants of their calls. They are never run.

Read are TrainingArguments and the configurations of TRL, adapters of PEFT, quantization, and the model that
is loaded. What is no constant leaves open what it may decide, and so do two calls that say different things.
A program that is started without arguments has their defaults, as ``argparse``, functions that are started
and data classes that ``HfArgumentParser`` or ``tyro`` fill say them. A name with two values, and one of two
parsers that differ, is not known.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from autoplan.errors import Problem, SpecError
from autoplan.launch.bindings.interface import interface
from autoplan.launch.bindings.written_document import WrittenDocument
from autoplan.launch.configuration import Fields, LaunchFile, Written
from autoplan.launch.frameworks.hugging_face.training_fields import TRAINER, add_leaves

#: The mark of a value that is not known.
UNKNOWN: Final = object()
_DEEPEST: Final = 12
_SWITCHES: Final = {"store_true": False, "store_false": True}
#: What programs usually call the arguments that they got, besides the names that a parser's result has.
_PARSED: Final = frozenset({"args", "script_args", "cli_args"})
#: Functions that call another one with the words of a command, and else with its defaults.
_STARTING: Final = frozenset({"fire.Fire", "Fire", "typer.run", "tyro.cli"})
#: Functions that fill the fields of a data class with the words of a command.
_FILLING: Final = frozenset({"HfArgumentParser", "TrlParser", "cli"})


@dataclass(frozen=True, slots=True)
class ProgramValues:
    """Expressions by the name that stands for them, and the defaults of arguments, by name."""

    names: Mapping[str, Any]
    arguments: Mapping[str, Any]
    parsed: frozenset[str] = _PARSED

    def of(self, node: ast.expr, depth: int = 0) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of an expression; ``UNKNOWN`` where it is none of a constant."""
        if depth > _DEEPEST:
            return UNKNOWN
        if isinstance(node, ast.Name):
            return self._named(self.names.get(node.id, UNKNOWN), depth)
        if isinstance(node, ast.Attribute):
            return self._attribute(node, depth)
        if isinstance(node, ast.UnaryOp | ast.BoolOp | ast.IfExp):
            return self._chosen(node, depth)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, RecursionError):
            return UNKNOWN

    def _named(self, found: Any, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        return self.of(found, depth + 1) if isinstance(found, ast.expr) else found

    def _attribute(self, node: ast.Attribute, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        """Return a type of PyTorch by its name, or the default of an argument."""
        if ast.unparse(node).startswith("torch."):
            return node.attr
        return self._named(self.arguments[node.attr], depth) if self.is_argument(node) else UNKNOWN

    def is_argument(self, node: ast.expr) -> bool:
        """Return whether an expression is an argument that the program got, such as ``args.batch_size``."""
        parsed = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        return parsed and node.value.id in self.parsed and node.attr in self.arguments  # type: ignore[attr-defined]

    def _chosen(self, node: ast.expr, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        """Return the value of a negation, of a choice, or of conditions that are joined."""
        if isinstance(node, ast.UnaryOp):
            inner = self.of(node.operand, depth + 1)
            if isinstance(node.op, ast.Not):
                return UNKNOWN if inner is UNKNOWN else not inner
            number = isinstance(inner, int | float) and isinstance(node.op, ast.USub)
            return -inner if number else UNKNOWN
        if isinstance(node, ast.IfExp):
            test = self.of(node.test, depth + 1)
            return UNKNOWN if test is UNKNOWN else self.of(node.body if test else node.orelse, depth + 1)
        return self._joined(node, depth) if isinstance(node, ast.BoolOp) else UNKNOWN

    def _joined(self, node: ast.BoolOp, depth: int) -> Any:  # noqa: ANN401 - any value of a program
        value: Any = UNKNOWN
        for part in node.values:
            value = self.of(part, depth + 1)
            if value is UNKNOWN or bool(value) is isinstance(node.op, ast.Or):
                break
        return value


def program_values(tree: ast.Module, variables: Mapping[str, str]) -> ProgramValues:
    """Return the values of a program's names and arguments; ``variables`` are set from outside."""
    outside = {name: ast.Constant(text) for name, text in variables.items()}
    names: dict[str, Any] = dict(_parameters(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    names[target.id] = UNKNOWN if target.id in names else node.value
        elif isinstance(node, ast.AugAssign | ast.For) and isinstance(node.target, ast.Name):
            names[node.target.id] = UNKNOWN
    return ProgramValues({**names, **outside}, {**_arguments(tree), **outside}, _PARSED | set(_results(tree)))


def _parameters(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the defaults of the functions that a program starts: ``main()``, ``fire.Fire(main)``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    started = [c.func for c in calls if not c.args and not c.keywords]
    started += [c.args[0] for c in calls if c.args and ast.unparse(c.func) in _STARTING]
    called = {node.id for node in started if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in called:
            own = node.args
            given = own.args[len(own.args) - len(own.defaults) :]
            yield from ((arg.arg, value) for arg, value in zip(given, own.defaults, strict=True))


def _results(tree: ast.Module) -> Iterator[str]:
    """Yield the names of what a parser of arguments returns: ``args = parser.parse_args()``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = _last(node.value.func)
            if called.startswith("parse_") or called in _FILLING:
                targets = [t for one in node.targets for t in getattr(one, "elts", [one])]
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _arguments(tree: ast.Module) -> dict[str, Any]:
    """Return the defaults of the arguments of all parsers and data classes, by name."""
    found: dict[str, Any] = {}
    parsed: dict[str, Any] = {}
    filled = any(_last(node.func) in _FILLING for node in ast.walk(tree) if isinstance(node, ast.Call))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last(node.func) == "add_argument":
            for name, default in _argument(node):
                # The first argument of a name says its default.
                parsed.setdefault(name, default)
        elif isinstance(node, ast.ClassDef) and filled and any(map(_is_dataclass, node.decorator_list)):
            for name, default in _fields(node):
                found[name] = UNKNOWN if name in found and not _same(found[name], default) else default
        elif isinstance(node, ast.Assign | ast.AugAssign):
            # What a program changes itself is no default any more.
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {t.attr: UNKNOWN for t in targets if isinstance(t, ast.Attribute)}
    both = dict.fromkeys(found.keys() & parsed.keys(), UNKNOWN)
    return {**parsed, **found, **both}


def _argument(call: ast.Call) -> Iterator[tuple[str, Any]]:
    """Yield the name and the default of an argument of ``argparse``."""
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    flags = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
    named = given.get("dest")
    longest = next((flag for flag in flags if flag.startswith("--")), flags[0] if flags else "")
    name = str(named.value) if isinstance(named, ast.Constant) else longest.lstrip("-").replace("-", "_")
    action = given.get("action")
    switched = _SWITCHES.get(str(action.value)) if isinstance(action, ast.Constant) else None
    if name:
        without = ast.Constant(switched) if switched is not None else UNKNOWN
        yield name, given.get("default", without)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a data class with their defaults."""
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        value: Any = UNKNOWN if line.value is None else line.value
        if isinstance(line.value, ast.Call):
            given = {keyword.arg: keyword.value for keyword in line.value.keywords}
            value = given.get("default", UNKNOWN) if _last(line.value.func) == "field" else UNKNOWN
        yield line.target.id, value


def _is_dataclass(node: ast.expr) -> bool:
    return _last(node) == "dataclass"


def _last(node: ast.expr) -> str:
    inner = node.func if isinstance(node, ast.Call) else node
    return inner.attr if isinstance(inner, ast.Attribute) else getattr(inner, "id", "")


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401 - any value of a program
    both = isinstance(one, ast.expr) and isinstance(other, ast.expr)
    return ast.dump(one) == ast.dump(other) if both else one is other


#: Calls that have TrainingArguments, and what TRL's learn by.
_METHODS: Final = {"DPOConfig": "dpo", "KTOConfig": "kto", "ORPOConfig": "orpo", "GRPOConfig": "grpo"}
_ARGUMENTS: Final = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", *_METHODS)
_CALL: Final = re.compile(rf"\b(?:{'|'.join(_ARGUMENTS)})\s*\(")
_IMPORT: Final = re.compile(r"(?m)^\s*(?:from|import)\s+(?:transformers|trl)\b")
_OTHERS: Final = re.compile(r"(?m)^\s*(?:from|import)\s+(?:unsloth|megatron|nemo|axolotl|llamafactory)\b")
#: Names that adapters and trainers have for keys of TRL's own programs.
_ADAPTERS: Final = {"r": "lora_r", "target_modules": TRAINER.keys["adapted"], "lora_dropout": "lora_dropout"}
#: The rank of PEFT's LoraConfig where none is given.
_RANK: Final = 8
_LENGTHS: Final = frozenset({"max_seq_length", "max_length"})
#: Arguments of a call that loads a model.
_LOADING: Final = frozenset(
    {
        *TRAINER.data["weight_types"],
        *(TRAINER.keys[name] for name in ("attention", "four_bits", "eight_bits")),
    }
)
_LOADED: Final = re.compile(r"(?:AutoModel\w*|\w+ForCausalLM)\.from_pretrained")
#: Calls of a model that recompute, whatever the arguments say.
_RECOMPUTES: Final = re.compile(r"gradient_checkpointing_enable|prepare_model_for_kbit_training")
#: Calls that a function may not reach: what adapts a model, or quantises it.
_ADAPTING: Final = frozenset({"LoraConfig", "BitsAndBytesConfig"})


def is_program(file: LaunchFile) -> bool:
    """Return whether a file is a program in Python that sets TrainingArguments."""
    calls = _CALL.search(file.text) is not None and _IMPORT.search(file.text) is not None
    return file.values is None and calls and _OTHERS.search(file.text) is None


def method_of_program(text: str) -> str | None:
    """Return what a program of TRL's learns by, by the configuration that it makes."""
    return next((method for name, method in _METHODS.items() if re.search(rf"\b{name}\s*\(", text)), None)


def parsed_program(file: LaunchFile) -> ast.Module:
    """Return the syntax of a program; raises SpecError for what is no Python."""
    try:
        with warnings.catch_warnings():
            # What a compiler would warn of is the program's business.
            warnings.simplefilter("ignore")
            return ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise SpecError([Problem(f"it is no Python: {error!s:.120}", "$", file.name, line)]) from error


def program_document(file: LaunchFile) -> WrittenDocument:
    """Return the arguments of the calls of a program by name; raises SpecError for what is no Python."""
    tree = parsed_program(file)
    values = program_values(tree, file.variables)
    document = WrittenDocument(file.name, table=TRAINER)
    aside, doubtful = _not_reached(tree, values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node not in aside:
            for name, value in _named(node, values.names):
                _add(document, name, value, values)
    _leave_open(document, tree, file.text)
    document.opened |= {"adapters"} if doubtful else set()
    return document


def _not_reached(tree: ast.Module, values: ProgramValues) -> tuple[set[ast.Call], bool]:
    """Return the calls that a function leaves before, and whether that is not known of one."""
    aside: set[ast.Call] = set()
    doubtful = False
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        left: Any = False
        for statement in function.body:
            calls = {n for n in ast.walk(statement) if _is_call(n) and _called(n) in _ADAPTING}
            doubtful |= bool(calls) and left is UNKNOWN
            aside |= calls if left is True else set()
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return) and not left:
                test = values.of(statement.test)
                left = UNKNOWN if test is UNKNOWN else bool(test)
    return aside, doubtful


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _leave_open(document: WrittenDocument, tree: ast.Module, text: str) -> None:
    """Leave open what the version of TRL, a call of the model, the launcher or a condition decides."""
    configured = method_of_program(text) is not None or "SFTConfig" in text
    if "gradient_checkpointing" not in document.entries and (configured or _RECOMPUTES.search(text)):
        document.opened.add("recompute")
    if not {"bf16", "fp16"} & document.entries.keys():
        document.opened.add("precision")
    conditions = [node for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp)]
    called = (_called(inner) for node in conditions for inner in ast.walk(node) if _is_call(inner))
    if any(name in _ADAPTING for name in called):
        document.opened.add("adapters")


def _is_call(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call)


def _named(call: ast.Call, names: Mapping[str, Any]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what a call sets, by the names of TRL's programs."""
    called = ast.unparse(call.func)
    last = called.rpartition(".")[2]
    given = list(keywords_of(call, names))
    if last in _ARGUMENTS:
        yield from given
    elif last == "LoraConfig":
        yield "use_peft", ast.copy_location(ast.Constant(value=True), call)
        if "r" not in {name for name, _ in given}:
            yield _ADAPTERS["r"], ast.copy_location(ast.Constant(value=_RANK), call)
        yield from ((_ADAPTERS[name], value) for name, value in given if name in _ADAPTERS)
    elif last == "BitsAndBytesConfig":
        yield from ((name, value) for name, value in given if name.startswith(("load_in", "bnb_4bit_quant")))
    elif last.endswith("Trainer"):
        yield from ((name, value) for name, value in given if name in _LENGTHS or name == "packing")
    elif _LOADED.search(called) is not None and call.args:
        yield TRAINER.keys["model"], call.args[0]
        yield from ((n, v) for n, v in given if n in _LOADING)


def keywords_of(call: ast.Call, names: Mapping[str, Any]) -> Iterator[tuple[str, ast.expr]]:
    """Yield the arguments of a call by name, and those of a dictionary that is unpacked into it."""
    for keyword in call.keywords:
        whole = keyword.value
        if keyword.arg is not None:
            yield keyword.arg, whole
            continue
        found = names.get(whole.id) if isinstance(whole, ast.Name) else whole
        if isinstance(found, ast.Dict):
            for key, value in zip(found.keys, found.values, strict=True):
                if isinstance(key, ast.Constant):
                    yield str(key.value), value


def _add(document: WrittenDocument, name: str, node: ast.expr, values: ProgramValues) -> None:
    """Add the value of an argument; one that is not known leaves open what it may decide."""
    value = values.of(node)
    line, text = getattr(node, "lineno", None), f"{name}={ast.unparse(node)}"[:80]
    before = document.entries.get(name)
    if value is UNKNOWN or (before is not None and (before.value != value or isinstance(value, Mapping))):
        document.entries.pop(name, None)
        fields = _decided(name)
        document.opened |= fields
        if fields:
            document.notes.append(f"{text} (line {line}) is no one constant: left open")
    elif before is not None or not (TRAINER.data["decides"].get(name) and name in document.opened):
        section = isinstance(value, Mapping)
        document.entries[name] = Written(None if section else value, line, text)
        add_leaves(document, f"{name}.", value if section else {}, line)
        if values.is_argument(node) and _decided(name):
            document.notes.append(f"{text} (line {line}): read as the default of this argument")


def _decided(name: str) -> set[str]:
    """Return the fields that an argument decides."""
    return {*TRAINER.data["decides"].get(name, ()), *(("sequence_length",) if name in _LENGTHS else ())}


#: Names of its arguments that nothing else has together.
_NAMES: Final = interface("trainer").data["alpaca"]
ALPACA: Final = frozenset(_NAMES.values())
_SIGNS: Final = frozenset(_NAMES[name] for name in ("model", "mbs", "sequence_length"))
_OPTION: Final = re.compile(r"--([\w-]+)")


def is_alpaca(lines: Sequence[str]) -> bool:
    """Return whether lines of a script, which are no comments, have the arguments of such a program."""
    names = {match.replace("-", "_") for line in lines for match in _OPTION.findall(line)}
    return names >= _SIGNS


def alpaca_batch(document: WrittenDocument) -> Fields:
    """Call the arguments of such a program as the Trainer's, and return the batch of all devices."""
    entries = document.entries
    if not {_NAMES["mbs"], _NAMES["sequence_length"]} <= entries.keys():
        return {}
    entries.setdefault(document.path("mbs"), entries.pop(_NAMES["mbs"]))
    if not any(document.path(name) in entries for name in ("bf16", "fp16")):
        document.opened.add("precision")
    document.opened |= {"recompute"}
    if "lora_r" in entries and "adapters" in document.opened:
        document.opened.discard("adapters")
        entries["use_peft"] = Written("true", entries["lora_r"].line, entries["lora_r"].words)
    whole = document.number("batch_size")
    entries.pop("batch_size", None)
    return {"global_batch_size": whole} if whole is not None else {}
