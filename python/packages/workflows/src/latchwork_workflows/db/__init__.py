"""Where definitions, instances and their history are: SQLite or PostgreSQL, by SQLAlchemy's Core.

``Database`` opens one and hands out transactions; ``tables`` are its tables, ``Shard`` the guard of what masters write,
``DatabaseAccounts`` who may come in.
"""

from typing import TYPE_CHECKING

from latchwork.spi import late
from latchwork_workflows.db.database import Database
from latchwork_workflows.db.shard import Shard

if TYPE_CHECKING:
    from latchwork_workflows.db.accounts import DatabaseAccounts
else:
    __getattr__ = late(__name__, {"latchwork_workflows.db.accounts": ("DatabaseAccounts",)})

__all__ = ["Database", "DatabaseAccounts", "Shard"]
