"""What can be set: of a job, of the cluster, of a node, at construction or while it runs.

A door for the command line, which makes its flags of the same rows. How settings are followed stays inside.
"""

from latchwork.jobs.options import settings
from latchwork.jobs.options.kinds import THREADS, number
from latchwork.jobs.options.settings import NodeOptions
from latchwork.jobs.options.table import JobRows, NodeRows, Row, rows

__all__ = ["THREADS", "JobRows", "NodeOptions", "NodeRows", "Row", "number", "rows", "settings"]
