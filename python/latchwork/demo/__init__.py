"""The demo: a cluster of processes counts the standard library, loses a process to `kill -9`, and finishes.

Keys, below a root of the demo, next to those of the job cluster:

    demo/running/<node>             the item that the node is running
    demo/starts/<item>              all starts of the item: node and time
    demo/results/<item>             the counts, written once
    demo/assignments/<node>/r<n>    the items with which a run of the node began, one key per change
"""

from latchwork.demo.outcome import Report
from latchwork.demo.session import DemoFailed, DemoOptions, run_demo
from latchwork.demo.view import DemoView, LiveView, PlainView

__all__ = ["DemoFailed", "DemoOptions", "DemoView", "LiveView", "PlainView", "Report", "run_demo"]
