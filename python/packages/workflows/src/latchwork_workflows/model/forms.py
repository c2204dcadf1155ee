"""Definitions as text: YAML and JSON, read and written. What is read is plain values, not yet looked at."""

from __future__ import annotations

import re
from typing import Any

import yaml

from latchwork_workflows.errors import DefinitionInvalid, Problem
from latchwork_workflows.model.model import Definition

MOST_TEXT = 4_000_000
MAX_DEPTH = 50
#: Values, counted as often as they are referred to: a few aliases can stand for billions.
MOST_VALUES = 500_000


class _Loader(yaml.SafeLoader):
    """Plain values only; a key that stands twice is a mistake, and ``on`` and ``3:10`` are text."""

    merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Not too much: what is merged (``<<``) is written out for each mention, before any value is made."""
        self.merged += len(node.value)
        if self.merged > MOST_VALUES:
            told = f"it merges more than {MOST_VALUES:,} values; use fewer aliases"
            raise yaml.constructor.ConstructorError(None, None, told, node.start_mark)
        super().flatten_mapping(node)

    def fetch_flow_collection_start(self, token: type) -> None:
        """Not too deep: each level costs the scanner time for every level around it."""
        _check_depth(self.flow_level, self.get_mark())
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """As above."""
        _check_depth(len(self.indents), self.get_mark())
        return bool(super().add_indent(column))


def _check_depth(depth: int, mark: yaml.Mark) -> None:
    if depth > MAX_DEPTH:
        raise yaml.scanner.ScannerError(None, None, f"there are more than {MAX_DEPTH} levels", mark)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, (str, int, float)):
            raise yaml.constructor.ConstructorError(None, None, "a key has to be text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands there twice", key_node.start_mark
            )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_KEPT = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rows if tag not in {*_KEPT, "tag:yaml.org,2002:timestamp"}]
    for first, rows in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(tag, re.compile(pattern), list(first))


# As in YAML 1.2: `on` and `no` are words, `010` is ten, `3:10` a time of day.
_resolve("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_resolve("tag:yaml.org,2002:int", r"^[-+]?[0-9]+$", "-+0123456789")
_resolve("tag:yaml.org,2002:float", r"^[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789")


def read(text: str, *, most_text: int = MOST_TEXT) -> Any:
    """The plain values of a YAML or JSON text (JSON is YAML).

    Args:
        text: of a mapping.
        most_text: characters that it has at most.
    Raises:
        DefinitionInvalid: it is neither; the problem has the line.
    """
    if len(text) > most_text:
        raise DefinitionInvalid([Problem("", f"the text has {len(text):,} characters; at most {most_text:,}")])
    try:
        value = yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader with fewer types
    except yaml.MarkedYAMLError as error:
        place = (
            f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}" if error.problem_mark else ""
        )
        raise DefinitionInvalid([Problem(place, error.problem or "this is no YAML")]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DefinitionInvalid([Problem("", f"this is no YAML: {error}"[:300])]) from None
    if not isinstance(value, dict):
        raise DefinitionInvalid([Problem("", "a definition is a mapping that begins with 'name:'")])
    _check_values(value)
    return value


def _check_values(value: object) -> None:
    """What refers to itself, or is more than anybody means, has more values than the limit."""
    open_ = [value]
    for _ in range(MOST_VALUES):
        if not open_:
            return
        each = open_.pop()
        if isinstance(each, dict):
            open_.extend(each.values())
        elif isinstance(each, list):
            open_.extend(each)
    raise DefinitionInvalid([Problem("", f"it stands for more than {MOST_VALUES:,} values; use fewer aliases")])


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks."""


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers  # what it leaves bare is read back as the same


def write(definition: Definition) -> str:
    """The definition as YAML, in the order of its fields, without defaults; ``read`` has the same again."""
    return as_yaml(definition.model_dump(mode="json", exclude_defaults=True))


def as_yaml(plain: Any) -> str:
    """Plain values as YAML that ``read`` takes, in their order."""
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
