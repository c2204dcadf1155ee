"""Definitions of workflows as Python, YAML or JSON, and their validation, which reports every problem with its path.

The parsing of text is internal. A ``Definition`` returned by this package is valid.
"""

from typing import TYPE_CHECKING

from latchwork.spi import late

if TYPE_CHECKING:
    from latchwork_workflows.model.model import NAME_PATTERN, Definition, TaskSpec
    from latchwork_workflows.model.validate import checked, needs_of, problems_of
    from latchwork_workflows.model.yaml_format import as_yaml, read, write
else:
    __getattr__ = late(
        __name__,
        {
            "latchwork_workflows.model.yaml_format": ("as_yaml", "read", "write"),
            "latchwork_workflows.model.model": ("NAME_PATTERN", "Definition", "TaskSpec"),
            "latchwork_workflows.model.validate": ("checked", "needs_of", "problems_of"),
        },
    )

__all__ = ["NAME_PATTERN", "Definition", "TaskSpec", "as_yaml", "checked", "needs_of", "problems_of", "read", "write"]
