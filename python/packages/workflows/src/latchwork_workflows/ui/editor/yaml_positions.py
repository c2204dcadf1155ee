"""Finds the line of a path such as ``tasks[3].params.script`` in a YAML text. Pure."""

from __future__ import annotations

import re

import yaml

_STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_LINE = re.compile(r"line (\d+)")


def find_line(text: str, path: str) -> int | None:
    """Return the line number of a path in a YAML text, counted from 1. If the path is missing, use its nearest parent.

    Args:
        text: The YAML text.
        path: A path such as ``tasks[3].params``.
    Returns:
        None if no parent is found either.
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
