"""What is to run: workflows as Python, YAML or JSON, and every problem of one that cannot run, by its place.

How text becomes a definition is kept inside; a ``Definition`` that is handed out is valid.
"""

from typing import TYPE_CHECKING

from latchwork.spi import late

if TYPE_CHECKING:
    from latchwork_workflows.model.forms import as_yaml, read, write
    from latchwork_workflows.model.model import NAME_PATTERN, Definition, TaskSpec
    from latchwork_workflows.model.validate import checked, needs_of, problems_of
else:
    __getattr__ = late(
        __name__,
        {
            "latchwork_workflows.model.forms": ("as_yaml", "read", "write"),
            "latchwork_workflows.model.model": ("NAME_PATTERN", "Definition", "TaskSpec"),
            "latchwork_workflows.model.validate": ("checked", "needs_of", "problems_of"),
        },
    )

__all__ = ["NAME_PATTERN", "Definition", "TaskSpec", "as_yaml", "checked", "needs_of", "problems_of", "read", "write"]
