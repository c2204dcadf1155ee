"""Where definitions, instances and their history are: SQLite or PostgreSQL, by SQLAlchemy's Core.

``Database`` opens one and hands out transactions; ``tables`` are its tables, ``Shard`` the guard of what masters write.
"""

from latchwork.workflows.database.database import Database
from latchwork.workflows.database.shard import Shard

__all__ = ["Database", "Shard"]
