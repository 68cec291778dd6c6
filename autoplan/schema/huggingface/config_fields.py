"""Reading single fields of a Hugging Face config.json, and noting all that is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from autoplan.errors import Problem
from autoplan.schema.model import MAX_SIZE

#: Says that a field has no default, so a config without it is refused.
ABSENT: Final = -1

#: The most layers that a model file may have.
MOST_LAYERS: Final = 10_000

#: The fields of a model file, before they are checked.
Spec = dict[str, object]

_GATED: Final = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "relu": "reglu"}
_PLAIN: Final = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}
_FULL: Final = "full_attention"
_LOCAL: Final = ("sliding_attention", "chunked_attention")


def names(keys: Sequence[str]) -> str:
    """Return the keys that a field may have, the first one first, as a reader would say them."""
    return keys[0] if len(keys) == 1 else f"{keys[0]} (or {', '.join(keys[1:])})"


class Fields:
    """A config whose fields are read by type; a wrong one is noted and reads as a stand-in.

    Reading goes on after a problem, so that one run names every field that is missing or wrong.
    A family may know a field by several keys; the first that is there and not null counts.
    """

    def __init__(self, config: Mapping[str, object], path: str = "$") -> None:
        self._config = config
        self._path = path
        self.problems: list[Problem] = []

    def reject(self, key: str, message: str) -> None:
        """Note that ``key`` is wrong, once."""
        problem = Problem(message, path=f"{self._path}.{key}")
        if problem not in self.problems:
            self.problems.append(problem)

    def with_defaults(self, **defaults: int) -> Fields:
        """Return the same fields, with ``defaults`` where the config has nothing."""
        filled = Fields({**defaults, **self._config}, self._path)
        filled.problems = self.problems
        return filled

    def given(self, *keys: str) -> object:
        """Return the first of ``keys`` that is there and not null, else None."""
        return next((self._config[key] for key in keys if self._config.get(key) is not None), None)

    def mentions(self, key: str) -> bool:
        """Return whether the config has ``key`` at all, be it null."""
        return key in self._config

    def integer(self, *keys: str, default: int = ABSENT, least: int = 1, most: int = MAX_SIZE) -> int:
        """Return a whole number; a missing one is ``default``, or a problem if there is none."""
        value = self.given(*keys)
        if value is None and default != ABSENT:
            return default
        if type(value) is int and least <= value <= most:
            return value
        wanted = f"must be a whole number from {least} to {most}"
        self.reject(keys[0], self._validation_error(keys, value, wanted))
        return max(least, 1)

    def optional_integer(self, *keys: str, most: int = MAX_SIZE) -> int | None:
        """Return a whole number from 0, or None where the config has null or nothing."""
        return None if self.given(*keys) is None else self.integer(*keys, least=0, most=most)

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a truth value."""
        value = self.given(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.reject(key, self._validation_error((key,), value, "must be true or false"))
        return value is True

    def activation(self, *keys: str, gated: bool, default: str) -> str:
        """Return our name of an activation; every flavour of GELU counts as gelu."""
        value = self.given(*keys)
        word = default if value is None else value
        activations = _GATED if gated else _PLAIN
        plain = "gelu" if isinstance(word, str) and "gelu" in word else word
        if isinstance(plain, str) and plain in activations:
            return activations[plain]
        wanted = f"is an activation that autoplan does not know; it knows {', '.join(activations)}"
        self.reject(keys[0], self._validation_error(keys, value, wanted))
        return activations["silu"]

    def window(self, *keys: str, default: int | None = None, every: int | None = None) -> object:
        """Return the sliding window as a model file has it, or None for full attention.

        Args:
            keys: Where the width of the window may stand.
            default: The width where the config says nothing at all.
            every: One layer in so many sees everything, unless ``layer_types`` says otherwise.
        """
        silent = not any(self.mentions(key) for key in keys)
        width = default if silent else self.optional_integer(*keys, most=1_000_000_000)
        kinds = self._layer_types()
        if not width or (kinds and all(kinds)):
            return None
        return {"window": width, "every": self._period(kinds) if kinds else every}

    def _layer_types(self) -> list[bool]:
        """Return for each of ``layer_types`` whether it sees everything; nothing if absent."""
        kinds = self.given("layer_types")
        if kinds is None:
            return []
        layer_types = (_FULL, *_LOCAL)
        if isinstance(kinds, list | tuple) and all(kind in layer_types for kind in kinds):
            return [kind == _FULL for kind in kinds]
        self.reject("layer_types", f"layer_types must be a list of {', '.join(layer_types)}")
        return []

    def _period(self, kinds: list[bool]) -> int | None:
        """Return N where just the last of each N layers sees everything; None: no layer does."""
        period = kinds.index(True) + 1 if any(kinds) else None
        regular = [period is not None and (i + 1) % period == 0 for i in range(len(kinds))]
        if regular != kinds:
            self.reject("layer_types", "layer_types must have full attention in the last of each N layers")
        return period

    @staticmethod
    def _validation_error(keys: Sequence[str], value: object, wanted: str) -> str:
        if value is None:
            return f"{names(keys)} is missing and has no default"
        return f"{keys[0]} {wanted}, not {_short(value)}"


def _short(value: object) -> str:
    """Show a value of any size in a few characters."""
    if isinstance(value, bool | str) or (isinstance(value, int) and abs(value) < 10**30):
        text = repr(value)
        return text if len(text) <= 40 else f"{text[:37]}..."
    return f"a value of type {type(value).__name__}"


#: Turns the fields of one `model_type` into the fields of a model file.
Family = Callable[[Fields], Spec]


def decoder(fields: Fields, *, kv_heads: int = ABSENT, head_dim: int | None = None) -> Spec:
    """Read what all families share; the arguments are the family's defaults."""
    heads = fields.integer("num_attention_heads", "n_head", "n_heads")
    width = fields.optional_integer("head_dim") or head_dim
    spec: Spec = {
        "layers": fields.integer("num_hidden_layers", "n_layer", "n_layers", most=MOST_LAYERS),
        "hidden_size": fields.integer("hidden_size", "n_embd", "n_embed", "d_model"),
        "heads": heads,
        "kv_heads": _kv_heads(fields, heads, kv_heads),
        "vocabulary": fields.integer("vocab_size"),
        "max_positions": _context(fields),
    }
    return {**spec, "head_dim": width} if width else spec


def _kv_heads(fields: Fields, heads: int, default: int) -> int:
    """Return the key-value heads: null is the number of heads, a missing key the family's default."""
    if default == ABSENT or fields.mentions("num_key_value_heads"):
        default = heads
    return fields.integer("num_key_value_heads", default=default)


def _context(fields: Fields) -> int | None:
    keys = ("max_position_embeddings", "n_positions", "max_seq_len")
    return fields.optional_integer(*keys, most=1_000_000_000) or None
