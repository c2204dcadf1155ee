"""For systems built on latchwork: names that add-ons may use besides the public names of packages.

Nothing here is for applications. A name is imported when it is first used, so that importing this module costs nothing.
docs/reference/spi.md describes each name.
"""

from latchwork._base.lazy import lazy_getattr

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
    from latchwork._base.files import explain_write_failure, make_file, replace_file, secure_folder
    from latchwork._base.interrupts import mutex
    from latchwork._base.signals import on_end_signals
    from latchwork._base.text import counted, printable, reason, short, utc_text
    from latchwork._base.trouble_log import TroubleLog
    from latchwork._base.user_code import call_user
    from latchwork._base.validation import check_store, is_number
    from latchwork.backends.base import (
        MAX_OLDER,
        MAX_ORDER_SUFFIX,
        Backend,
        BackendSession,
        BackendWatch,
        Broken,
        Current,
        Delta,
        Snapshot,
        VersionKey,
        WatchCallback,
        WatchEvent,
        check_version,
    )
    from latchwork.backends.capabilities import Capabilities
    from latchwork.backends.delivery import DeliveringWatch
    from latchwork.backends.futures import (
        FutureGenerator,
        attempt,
        completed,
        failed,
        mapped,
        reject,
        resolve,
        run_generator,
    )
    from latchwork.backends.key_syntax import append_number
    from latchwork.backends.outcomes import describe_transaction
    from latchwork.backends.timer import Timer
    from latchwork.backends.url import SchemeSpec, StoreURL, find_spec, one_of, readable_file
    from latchwork.cli.commands import CommandSpec
    from latchwork.cli.environment import disable_process_inspection
    from latchwork.cli.options import Json, Url, command, group, require_url
    from latchwork.cli.outcome import FAILURE, LOG_FORMAT, USAGE, UsageError, debugging, quiet_logs
    from latchwork.cli.probe import ProbeHost, ProbePort, create_store_observers, serve_worker
    from latchwork.cli.target import import_module
    from latchwork.cli.text import Grid, Line, console, print_change, print_list, say, say_json, show
    from latchwork.tasks.node import Node, NodeHealth, default_node_id
else:
    __getattr__ = lazy_getattr(
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
            "latchwork.backends.base": (
                "MAX_OLDER",
                "MAX_ORDER_SUFFIX",
                "Backend",
                "BackendSession",
                "BackendWatch",
                "Broken",
                "Current",
                "Delta",
                "WatchCallback",
                "Snapshot",
                "VersionKey",
                "WatchEvent",
                "check_version",
            ),
            "latchwork.backends.capabilities": ("Capabilities",),
            "latchwork.backends.delivery": ("DeliveringWatch",),
            "latchwork.backends.futures": (
                "FutureGenerator",
                "attempt",
                "completed",
                "run_generator",
                "failed",
                "mapped",
                "reject",
                "resolve",
            ),
            "latchwork.backends.key_syntax": ("append_number",),
            "latchwork.backends.outcomes": ("describe_transaction",),
            "latchwork.backends.timer": ("Timer",),
            "latchwork.backends.url": ("SchemeSpec", "StoreURL", "find_spec", "one_of", "readable_file"),
            "latchwork.cli.commands": ("CommandSpec",),
            "latchwork.cli.environment": ("disable_process_inspection",),
            "latchwork.cli.options": (
                "Json",
                "Url",
                "command",
                "group",
                "require_url",
            ),
            "latchwork.cli.outcome": (
                "FAILURE",
                "LOG_FORMAT",
                "USAGE",
                "UsageError",
                "debugging",
                "quiet_logs",
            ),
            "latchwork.cli.probe": ("ProbeHost", "ProbePort", "serve_worker", "create_store_observers"),
            "latchwork.cli.target": ("import_module",),
            "latchwork.cli.text": (
                "Grid",
                "Line",
                "console",
                "print_list",
                "say",
                "say_json",
                "show",
                "print_change",
            ),
            "latchwork._base.files": (
                "make_file",
                "replace_file",
                "secure_folder",
                "explain_write_failure",
            ),
            "latchwork._base.interrupts": ("mutex",),
            "latchwork._base.signals": ("on_end_signals",),
            "latchwork._base.trouble_log": ("TroubleLog",),
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
    "MAX_OLDER",
    "MAX_ORDER_SUFFIX",
    "MAX_TIME_S",
    "MAX_WHOLE",
    "USAGE",
    "Backend",
    "BackendSession",
    "BackendWatch",
    "Broken",
    "Capabilities",
    "CommandSpec",
    "Count",
    "Current",
    "Decoder",
    "DeliveringWatch",
    "Delta",
    "FutureGenerator",
    "Grid",
    "Json",
    "Line",
    "Node",
    "NodeHealth",
    "Positive",
    "ProbeHost",
    "ProbePort",
    "SchemeSpec",
    "Seconds",
    "Snapshot",
    "StoreURL",
    "Timer",
    "Timestamp",
    "TroubleLog",
    "Url",
    "UsageError",
    "VersionKey",
    "WatchCallback",
    "WatchEvent",
    "Whole",
    "append_number",
    "attempt",
    "call_user",
    "check_store",
    "check_version",
    "command",
    "completed",
    "console",
    "counted",
    "create_store_observers",
    "debugging",
    "default_node_id",
    "describe_transaction",
    "disable_process_inspection",
    "encode",
    "explain_write_failure",
    "failed",
    "find_spec",
    "group",
    "import_module",
    "is_number",
    "lazy_getattr",
    "make_file",
    "mapped",
    "mutex",
    "on_end_signals",
    "one_of",
    "print_change",
    "print_list",
    "printable",
    "quiet_logs",
    "read_json",
    "readable_file",
    "reason",
    "reject",
    "replace_file",
    "require_url",
    "resolve",
    "run_generator",
    "say",
    "say_json",
    "secure_folder",
    "serve_worker",
    "short",
    "show",
    "utc_text",
]
