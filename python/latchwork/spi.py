"""For systems built on latchwork: names that add-ons may use besides the public names of packages.

Nothing here is for applications. A name is imported when it is first used, so that importing this module costs nothing.
docs/reference/spi.md describes each name.
"""

from latchwork._base.lazy import late

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
    from latchwork._base.decoding import (
        MAX_DEPTH,
        MAX_TIME_S,
        MAX_WHOLE,
        Count,
        Decoder,
        Positive,
        Seconds,
        Timestamp,
        Whole,
        encode,
        read_json,
    )
    from latchwork._base.files import make_file, replace_file, secure_folder, trouble_of
    from latchwork._base.interrupts import mutex
    from latchwork._base.signals import on_end_signals
    from latchwork._base.text import counted, printable, reason, short, utc_text
    from latchwork._base.user_code import call_user
    from latchwork._base.validation import check_store, is_number
    from latchwork.cli.commands import CommandSpec
    from latchwork.cli.environment import refuse_readers
    from latchwork.cli.options import Json, Url, command, group, renamed, wanted_url
    from latchwork.cli.outcome import FAILURE, LOG_FORMAT, USAGE, UsageError, debugging, quiet_logs
    from latchwork.cli.target import import_module
    from latchwork.cli.text import Grid, Line, console, listed, say, say_json, show, told
    from latchwork.tasks.node import Node, NodeHealth, default_node_id
else:
    __getattr__ = late(
        __name__,
        {
            "latchwork._base.decoding": (
                "MAX_DEPTH",
                "MAX_TIME_S",
                "MAX_WHOLE",
                "Count",
                "Decoder",
                "Positive",
                "Seconds",
                "Timestamp",
                "Whole",
                "encode",
                "read_json",
            ),
            "latchwork._base.validation": (
                "check_store",
                "is_number",
            ),
            "latchwork.cli.commands": ("CommandSpec",),
            "latchwork.cli.environment": ("refuse_readers",),
            "latchwork.cli.options": (
                "Json",
                "Url",
                "command",
                "group",
                "renamed",
                "wanted_url",
            ),
            "latchwork.cli.outcome": (
                "FAILURE",
                "LOG_FORMAT",
                "USAGE",
                "UsageError",
                "debugging",
                "quiet_logs",
            ),
            "latchwork.cli.target": ("import_module",),
            "latchwork.cli.text": (
                "Grid",
                "Line",
                "console",
                "listed",
                "say",
                "say_json",
                "show",
                "told",
            ),
            "latchwork._base.files": (
                "make_file",
                "replace_file",
                "secure_folder",
                "trouble_of",
            ),
            "latchwork._base.interrupts": ("mutex",),
            "latchwork._base.signals": ("on_end_signals",),
            "latchwork.tasks.node": (
                "Node",
                "NodeHealth",
                "default_node_id",
            ),
            "latchwork._base.user_code": ("call_user",),
            "latchwork._base.text": (
                "counted",
                "printable",
                "reason",
                "short",
                "utc_text",
            ),
        },
    )

__all__ = [
    "FAILURE",
    "LOG_FORMAT",
    "MAX_DEPTH",
    "MAX_TIME_S",
    "MAX_WHOLE",
    "USAGE",
    "CommandSpec",
    "Count",
    "Decoder",
    "Grid",
    "Json",
    "Line",
    "Node",
    "NodeHealth",
    "Positive",
    "Seconds",
    "Timestamp",
    "Url",
    "UsageError",
    "Whole",
    "call_user",
    "check_store",
    "command",
    "console",
    "counted",
    "debugging",
    "default_node_id",
    "encode",
    "group",
    "import_module",
    "is_number",
    "late",
    "listed",
    "make_file",
    "mutex",
    "on_end_signals",
    "printable",
    "quiet_logs",
    "read_json",
    "reason",
    "refuse_readers",
    "renamed",
    "replace_file",
    "say",
    "say_json",
    "secure_folder",
    "short",
    "show",
    "told",
    "trouble_of",
    "utc_text",
    "wanted_url",
]
