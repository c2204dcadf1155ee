"""Forms from a JSON schema, and values from submitted forms. Pure.

Text, numbers, choices and check boxes have their own fields. Lists of text have one item per line. Everything else is
JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from latchwork.errors import BadRecord
from latchwork.spi import read_json


class FormInvalid(ValueError):
    """A field has an invalid value.

    Attributes:
        problems: The messages, by field name.
    """

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {why}" for name, why in problems.items()))
        self.problems = dict(problems)


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of a form.

    Attributes:
        name: The name of the field.
        kind: ``text``, ``area``, ``number``, ``whole``, ``tick``, ``choice``, ``lines`` or ``json``.
        required: Whether it is required.
        value: The initial value, as text.
        choices: The values of a choice.
        help: A sentence that explains it.
        optional: Whether an empty field means no value.
    """

    name: str
    kind: str
    required: bool = False
    value: str = ""
    choices: tuple[str, ...] = ()
    help: str = ""
    optional: bool = False


def build_fields(schema: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> list[FormField]:
    """Return the form fields for an object, in the order of its JSON schema.

    Args:
        schema: The JSON schema of the object.
        values: Initial values that replace the defaults.
    """
    return list(_fields(schema, values or {}))


def _fields(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[FormField]:
    known = schema.get("$defs", {})
    needed = set(schema.get("required", ()))
    for name, given in schema.get("properties", {}).items():
        part, optional = _simplify_schema(given, known)
        kind = _kind(part, name)
        value = values.get(name, given.get("default", part.get("default")))
        yield FormField(
            name,
            kind,
            name in needed,
            _as_text(kind, value),
            tuple(str(each) for each in part.get("enum", ())),
            str(
                given.get("description", part.get("description", ""))
                if kind != "json"
                else given.get("description", "")
            ),
            optional,
        )


def _simplify_schema(given: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Simplify the schema of a field: resolve its reference, and remove the alternative null.

    Args:
        given: The schema of the field.
        known: The schemas that can be referred to.
    Returns:
        The simplified schema, and whether null is allowed.
    """
    optional = False
    for _ in range(5):
        if "$ref" in given:
            given = known.get(str(given["$ref"]).rpartition("/")[2], {})
        elif "anyOf" in given:
            shapes = [each for each in given["anyOf"] if each.get("type") != "null"]
            optional = optional or len(shapes) < len(given["anyOf"])
            given = shapes[0] if len(shapes) == 1 else {}
    return given, optional


def _kind(part: Mapping[str, Any], name: str) -> str:
    if "enum" in part:
        return "choice"
    kind = part.get("type")
    if kind == "string":
        return "area" if name in {"script", "statement", "source", "description"} else "text"
    if kind == "array" and part.get("items", {}).get("type") == "string":
        return "lines"
    return {"integer": "whole", "number": "number", "boolean": "tick"}.get(str(kind), "json")


def _as_text(kind: str, value: Any) -> str:
    if value is None:
        return ""
    if kind == "tick":
        return "yes" if value else ""
    if kind == "lines" and isinstance(value, (list, tuple)):
        return "\n".join(map(str, value))
    return value if isinstance(value, str) and kind != "json" else json.dumps(value, ensure_ascii=False)


def parse_values(fields: list[FormField], sent: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Return the values of a submitted form. Empty optional fields and unchanged defaults are left out.

    Args:
        fields: The fields of the form.
        sent: The submitted text of each field, by field name.
        prefix: Prefix of the field names in ``sent``.
    Raises:
        FormInvalid: Names each field with an invalid value.
    """
    found: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for each in fields:
        text = sent.get(prefix + each.name, "").replace("\r\n", "\n")
        if each.kind == "tick":
            if bool(text) != bool(each.value):
                found[each.name] = bool(text)
        elif not text.strip():
            if each.required:
                problems[each.name] = "this is required"
        elif text != each.value or each.required:
            try:
                found[each.name] = _value(each, text)
            except (ValueError, BadRecord) as error:
                problems[each.name] = str(error)[:200]
    if problems:
        raise FormInvalid(problems)
    return found


def _value(field: FormField, text: str) -> Any:
    if field.kind in {"whole", "number"}:
        try:
            return int(text) if field.kind == "whole" else float(text)
        except ValueError:
            raise ValueError(
                f"{text.strip()[:40]!r} is not a {'whole ' if field.kind == 'whole' else ''}number"
            ) from None
    if field.kind == "lines":
        return [line for line in text.split("\n") if line.strip()]
    if field.kind == "json":
        return read_json(text.encode("utf-8", "replace"))
    return text
