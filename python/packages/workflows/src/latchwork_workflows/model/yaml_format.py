"""Reads and writes definitions as YAML and JSON. Reading returns plain values without validation."""

from __future__ import annotations

import re
from typing import Any

import yaml

from latchwork_workflows.errors import DefinitionInvalid, Problem
from latchwork_workflows.model.definition import Definition

MAX_TEXT = 4_000_000
MAX_DEPTH = 50
#: The maximum number of values, counting every use of an alias: a few aliases can expand to billions.
MAX_VALUES = 500_000


class _Loader(yaml.SafeLoader):
    """Loads plain values only. Duplicate keys are errors, and ``on`` and ``3:10`` are text."""

    merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge other mappings (``<<``) into a mapping. The number of merges is limited, because each of them copies
        values.
        """
        self.merged += len(node.value)
        if self.merged > MAX_VALUES:
            message = f"it merges more than {MAX_VALUES:,} values; use fewer aliases"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        super().flatten_mapping(node)

    def fetch_flow_collection_start(self, token: type) -> None:
        """Read an opening bracket. The nesting depth is limited, because the scanner gets slower with each level."""
        _check_depth(self.flow_level, self.get_mark())
        super().fetch_flow_collection_start(token)

    def add_indent(self, column: int) -> bool:
        """Begin an indented block. The nesting depth of blocks is limited."""
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
            raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} occurs twice", key_node.start_mark)
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


def parse_yaml(text: str, *, most_text: int = MAX_TEXT) -> Any:
    """Parse a YAML or JSON text and return its plain values. JSON is valid YAML.

    Args:
        text: The text, which must contain a mapping.
        most_text: The maximum number of characters.
    Raises:
        DefinitionInvalid: The text is invalid. The problem includes the line.
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
        raise DefinitionInvalid([Problem("", f"this is not valid YAML: {error}"[:300])]) from None
    if not isinstance(value, dict):
        raise DefinitionInvalid([Problem("", "a definition is a mapping that begins with 'name:'")])
    _check_values(value)
    return value


def _check_values(value: object) -> None:
    """Check that a document does not have too many values. Each use of an alias counts."""
    open_ = [value]
    for _ in range(MAX_VALUES):
        if not open_:
            return
        each = open_.pop()
        if isinstance(each, dict):
            open_.extend(each.values())
        elif isinstance(each, list):
            open_.extend(each)
    raise DefinitionInvalid([Problem("", f"it expands to more than {MAX_VALUES:,} values; use fewer aliases")])


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as blocks."""


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers  # unquoted text is read back as text


def format_yaml(definition: Definition) -> str:
    """Return a definition as YAML, in field order, without defaults."""
    return format_as_yaml(definition.model_dump(mode="json", exclude_defaults=True))


def format_as_yaml(plain: Any) -> str:
    """Return plain values as YAML, in their order."""
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
