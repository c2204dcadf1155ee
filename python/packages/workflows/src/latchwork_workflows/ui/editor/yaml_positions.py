"""Finds the line of a path such as ``tasks[3].params.script`` in a YAML text. Pure."""

from __future__ import annotations

import re

import yaml

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_LINE = re.compile(r"line (\d+)")


def line_of(text: str, path: str) -> int | None:
    """Return the number of the line, from 1, on which a path such as ``tasks[3].params`` is, or its nearest parent.

    None if not found.
    """
    direct = _LINE.match(path)
    if direct is not None:
        return int(direct.group(1))
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return None
    found = None
    for step in _STEP.finditer(path):
        name, index = step.group(1), step.group(2)
        if isinstance(node, yaml.MappingNode) and name is not None:
            pair = next(((key, value) for key, value in node.value if key.value == name), None)
            if pair is None:
                break
            found, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and index is not None and int(index) < len(node.value):
            node = node.value[int(index)]
            found = node.start_mark.line + 1
        else:
            break
    return found
