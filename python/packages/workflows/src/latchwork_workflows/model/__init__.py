"""Definitions of workflows as Python, YAML or JSON, and their validation, which reports every problem with its path.

The parsing of text is internal. A ``Definition`` returned by this package is valid.
"""

from typing import TYPE_CHECKING

from latchwork.spi import lazy_getattr

if TYPE_CHECKING:
    from latchwork_workflows.model.model import NAME_PATTERN, Definition, TaskSpec
    from latchwork_workflows.model.validate import problems_in_text, required_settings_of, validated
    from latchwork_workflows.model.yaml_format import parse, to_yaml, values_to_yaml
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork_workflows.model.yaml_format": ("values_to_yaml", "parse", "to_yaml"),
            "latchwork_workflows.model.model": ("NAME_PATTERN", "Definition", "TaskSpec"),
            "latchwork_workflows.model.validate": ("validated", "required_settings_of", "problems_in_text"),
        },
    )

__all__ = [
    "NAME_PATTERN",
    "Definition",
    "TaskSpec",
    "parse",
    "problems_in_text",
    "required_settings_of",
    "to_yaml",
    "validated",
    "values_to_yaml",
]
