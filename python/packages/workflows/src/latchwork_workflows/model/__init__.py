"""Definitions of workflows as Python, YAML or JSON, and their validation, which reports every problem with its path.

The parsing of text is internal. A ``Definition`` returned by this package is valid.
"""

from typing import TYPE_CHECKING

from latchwork.spi import lazy_getattr

if TYPE_CHECKING:
    from latchwork_workflows.model.definition import NAME_PATTERN, Definition, TaskSpec
    from latchwork_workflows.model.validate import check_definition, find_problems_in_text, report_used_settings
    from latchwork_workflows.model.yaml_format import format_as_yaml, format_yaml, parse_yaml
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork_workflows.model.yaml_format": ("format_as_yaml", "parse_yaml", "format_yaml"),
            "latchwork_workflows.model.definition": ("NAME_PATTERN", "Definition", "TaskSpec"),
            "latchwork_workflows.model.validate": (
                "check_definition",
                "report_used_settings",
                "find_problems_in_text",
            ),
        },
    )

__all__ = [
    "NAME_PATTERN",
    "Definition",
    "TaskSpec",
    "check_definition",
    "find_problems_in_text",
    "format_as_yaml",
    "format_yaml",
    "parse_yaml",
    "report_used_settings",
]
