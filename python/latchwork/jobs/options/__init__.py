"""The options of jobs, nodes and clusters, at construction and while they run.

A door for the command line, which makes its flags of the same rows. How settings are followed stays inside.
"""

from latchwork.jobs.options import settings
from latchwork.jobs.options.kinds import THREADS, number
from latchwork.jobs.options.settings import NodeOptions
from latchwork.jobs.options.table import JobRows, NodeRows, Row, rows

__all__ = ["THREADS", "JobRows", "NodeOptions", "NodeRows", "Row", "number", "rows", "settings"]
