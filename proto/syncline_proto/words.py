"""From pydantic's findings to one plain sentence: which key, what is wrong, what would be right.

The one place for it, so that a wrong setting reads the same in a file, a flag, the environment and
a request. Knows nothing of what the keys mean, and repeats no secret.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from syncline_proto.names import IN_WORDS

KEYS_MAX = 24
"""More keys than this are not listed."""

MEANT_MAX = 3
"""More keys than this are too many to have meant."""

ALMOST = 0.77
"""How alike (1: equal) a variable's name is to that of the setting that somebody meant."""

GIVEN_CHARACTERS_MAX = 60
"""A wrong value is repeated up to this length."""

SECRETS = frozenset({"token"})
"""Keys whose values are never repeated."""

OWN_WORDS = frozenset({"value_error", "assertion_error"})
"""Findings whose message a validator of ours wrote."""

GROUPS = frozenset({"model_type", "model_attributes_type", "dict_type", "dataclass_type"})

Shape = type[BaseModel]


def sentence(
    error: ValidationError, shape: Shape | None = None, name: Callable[[str], str] = str
) -> str:
    """Say the first finding, a key that nobody knows before all others.

    A misspelt key is also a missing one; that it is misspelt is what helps.

    Args:
        shape: what was checked; with it the keys that there are can be named.
        name: from a key's dotted path to what the reader knows it by, such as a flag.
    """
    return finding(first(error), shape, name)


def flag_or_variable(flags: Container[str], prefix: str) -> Callable[[str], str]:
    """A ``name`` of a program's settings: a flag that was given, or else what the environment has.

    Some have no flag, and who set the variable looks for it.
    """

    def name(key: str) -> str:
        return "--" + key.replace("_", "-") if key in flags else prefix + key.upper()

    return name


def misspelt(variables: Iterable[str], prefix: str, shape: Shape) -> list[str]:
    """Say of each variable that is almost one of the settings which that is.

    All else with the ``prefix`` may be somebody's own: Kubernetes, say, names addresses so.
    """
    known = list(shape.model_fields)
    given = (name for name in sorted(variables) if name.startswith(prefix))
    return [
        f"{name} is not a setting; did you mean {prefix + meant.upper()}?"
        for name in given
        if (key := name.removeprefix(prefix).lower()) not in known
        for meant in _almost(key, known)
    ]


def _almost(key: str, known: list[str]) -> list[str]:
    """The one of which this has the letters in another order, or the first words; or nearly all."""
    same = [one for one in known if sorted(one) == sorted(key) or one.startswith(f"{key}_")]
    return same[:1] or difflib.get_close_matches(key, known, n=1, cutoff=ALMOST)


def first(error: ValidationError) -> ErrorDetails:
    """Return the finding to say, where there are several: a key that nobody knows before others."""
    findings = error.errors(include_url=False)
    return min(findings, key=lambda found: found["type"] != "extra_forbidden")


def finding(
    found: ErrorDetails,
    shape: Shape | None = None,
    name: Callable[[str], str] = str,
    whole: str = "it",
) -> str:
    """Say one finding; ``shape`` and ``name`` as for ``sentence``, ``whole`` is what has no key."""
    key = ".".join(str(part) for part in found["loc"])
    if found["type"] == "extra_forbidden":
        if key in paths_in(shape) and "." in str(found["loc"][-1]):
            return f"{name(key)} is a key in a group: write it as {_nested(key, found['input'])}."
        return unknown(key, _keys_beside(found, shape), name, list(paths_in(shape)))
    message = found["msg"]
    if found["type"] in OWN_WORDS:
        said = _bare(message.partition(", ")[2] or message)
        return f"{name(key)}: {said}." if key else f"{said}."
    subject = name(key) if key else whole
    if found["type"] == "missing":
        return f"{subject} is missing."
    return f"{subject} {_demand(found)}{_such_as(key, found)}{_given(found)}."


def unknown(
    key: str,
    known: list[str],
    name: Callable[[str], str] = str,
    elsewhere: Sequence[str] = (),
) -> str:
    """Say that there is no such key.

    Args:
        known: those that could stand in its place.
        name: as for ``sentence``.
        elsewhere: dotted paths of all that there are: a key may lack its group, or have another's.
    """
    group, dot, last = key.rpartition(".")
    meant = _ending_in(last, elsewhere)
    if not meant:
        beside = _near(last, known) or _with_word_near(last, known)
        meant = [group + dot + one for one in beside]
    if not meant:
        near = _near(last, sorted({path.rpartition(".")[2] for path in elsewhere}))
        meant = [path for one in near for path in _ending_in(one, elsewhere)]
    hint = f"; did you mean {' or '.join(map(name, meant))}?" if meant else "."
    few = f" Known here: {', '.join(sorted(known))}." if 0 < len(known) <= KEYS_MAX else ""
    return f"{name(key)} is not a setting{hint}{few}"


def paths_in(shape: Shape | None, below: str = "") -> Iterator[str]:
    """Yield the dotted paths of all keys that a shape has, groups too."""
    for key, field in shape.model_fields.items() if shape else ():
        yield below + key
        for group in _shapes(field.annotation):
            yield from paths_in(group, f"{below}{key}.")


def _nested(path: str, given: Any) -> str:
    """A dotted path as groups, with a number that was given; other values are for their owner."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    written = str(given) if is_number else "..."
    for part in reversed(path.split(".")):
        written = f'{{"{part}": {written}}}'
    return written


def _near(key: str, known: list[str]) -> list[str]:
    """The key that somebody meant who misspelt it, if there is one."""
    near = difflib.get_close_matches(key, known, n=1)
    # Of short keys, two letters that changed places leave nothing that difflib calls close.
    return near or [one for one in known if sorted(one) == sorted(key)][:1]


def _with_word_near(key: str, known: list[str]) -> list[str]:
    """The keys of which somebody meant a word, and no other: "tokn" is of ``token_budget``."""
    words = {word for one in known for word in one.split("_")}
    near = set(_near(key, sorted(words)))
    found = [one for one in known if near & set(one.split("_"))]
    return found if len(found) <= MEANT_MAX else []


def _ending_in(key: str, paths: Sequence[str]) -> list[str]:
    """The paths that end in this key, if they are few enough to choose from."""
    found = [path for path in paths if path.rpartition(".")[2] == key]
    return found if len(found) <= MEANT_MAX else []


def _demand(found: ErrorDetails) -> str:
    """What pydantic asks of a value, as what follows its name."""
    if found["type"] in GROUPS:
        return "must be a group of keys"
    wanted = found.get("ctx", {})
    if found["type"] in ("too_short", "string_too_short") and wanted.get("min_length") == 1:
        return "must not be empty"
    if found["type"] == "string_pattern_mismatch":
        # A pattern without words is of what programs write, such as a checksum in a file.
        return f"must be {IN_WORDS.get(wanted['pattern'], 'of another form')}"
    # "Input should be a valid integer, unable to parse string as an integer"
    asked = _bare(found["msg"].partition(", unable")[0])
    asked = re.sub(r"^(Input|String|List|Value|Data) should ", "must ", asked)
    asked = asked.replace("greater than or equal to", "at least")
    asked = asked.replace("less than or equal to", "at most")
    return asked if asked.startswith("must ") else f"is wrong ({asked})"


def _such_as(key: str, found: ErrorDetails) -> str:
    """How a list is written whose only text stands alone, in a shell, too."""
    given = found["input"]
    if not key or found["type"] != "list_type" or not isinstance(given, str) or not given:
        return ""
    if SECRETS & set(map(str, found["loc"])) or len(given) > GIVEN_CHARACTERS_MAX:
        return ""
    return f""", such as '{key}=["{given}"]'"""


def _given(found: ErrorDetails) -> str:
    given, secret = found["input"], bool(SECRETS & set(map(str, found["loc"])))
    if secret or not isinstance(given, str | int | float | None):
        return ""
    shown = repr(given)
    if len(shown) > GIVEN_CHARACTERS_MAX:
        shown = shown[:GIVEN_CHARACTERS_MAX] + "..."
    return f", not {shown}"


def _keys_beside(found: ErrorDetails, shape: Shape | None) -> list[str]:
    """The keys that could stand where the unknown one does; none if that cannot be told."""
    for part in found["loc"][:-1]:
        if shape is None:
            break
        below = shape.model_fields.get(str(part))
        shape = next(_shapes(below.annotation), None) if below else None
    return [] if shape is None else list(shape.model_fields)


def _shapes(annotation: Any) -> Iterator[Shape]:
    """The models in an annotation such as ``Section | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _shapes(part)


def _bare(said: str) -> str:
    return said.rstrip(".")
