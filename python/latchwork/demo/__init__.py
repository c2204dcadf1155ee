"""The demo: a cluster of processes counts the standard library, loses a process to `kill -9`, and finishes.

Keys, below a root of the demo's own, next to those of the job cluster:

    demo/running/<node>             what the node is running at this moment
    demo/starts/<item>              every start of the item: by whom and when
    demo/results/<item>             what was counted, written once
    demo/shares/<node>/r<number>    the items a run of the node began with, one key per change of its share
"""

from latchwork.demo.outcome import Report
from latchwork.demo.session import DemoFailed, DemoOptions, run_demo
from latchwork.demo.view import LiveView, PlainView, View

__all__ = ["DemoFailed", "DemoOptions", "LiveView", "PlainView", "Report", "View", "run_demo"]
