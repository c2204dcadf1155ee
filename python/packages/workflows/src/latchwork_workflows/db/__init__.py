"""The database of definitions, runs and their history: SQLite or PostgreSQL, through SQLAlchemy Core.

``Database`` opens a database and provides transactions. ``tables`` defines its tables, ``ShardGuard`` guards the writes
of masters, and ``DatabaseAccounts`` stores the accounts.
"""

from typing import TYPE_CHECKING

from latchwork.spi import lazy_getattr
from latchwork_workflows.db.database import Database
from latchwork_workflows.db.shard import ShardGuard

if TYPE_CHECKING:
    from latchwork_workflows.db.accounts import DatabaseAccounts
else:
    __getattr__ = lazy_getattr(__name__, {"latchwork_workflows.db.accounts": ("DatabaseAccounts",)})

__all__ = ["Database", "DatabaseAccounts", "ShardGuard"]
