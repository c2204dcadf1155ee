"""latchwork: coordination for Python over etcd, ZooKeeper and an embedded store.

Connect with a URL, then use the store, one primitive, or the whole job manager.
"""

from typing import TYPE_CHECKING

from latchwork.doors import late
from latchwork.errors import (
    AuthenticationFailed,
    BackendNotInstalled,
    BadRecord,
    BarrierBroken,
    Closed,
    Conflict,
    ConnectFailed,
    ForkedProcess,
    InvalidKey,
    InvalidURL,
    KeyExists,
    LatchworkError,
    LockLost,
    MemberEvicted,
    NodeIdInUse,
    NotLeader,
    OnceFailed,
    OutcomeUnknown,
    OwnershipLost,
    PermissionDenied,
    QuotaExceeded,
    SessionLost,
    TransactionTooLarge,
    Unavailable,
    ValueTooLarge,
    WaitTimeout,
)
from latchwork.types import Absent, At, Change, Committed, Create, Delete, Entry, Exists, Fence, Put

if TYPE_CHECKING:
    from latchwork.store import Mirror, Pipeline, Session, Store, Tx, Watch, connect
else:
    __getattr__ = late(
        __name__,
        {
            "latchwork.store": (
                "Mirror",
                "Pipeline",
                "Session",
                "Store",
                "Tx",
                "Watch",
                "connect",
            ),
        },
    )

__version__ = "0.1.0"

__all__ = [
    "Absent",
    "At",
    "AuthenticationFailed",
    "BackendNotInstalled",
    "BadRecord",
    "BarrierBroken",
    "Change",
    "Closed",
    "Committed",
    "Conflict",
    "ConnectFailed",
    "Create",
    "Delete",
    "Entry",
    "Exists",
    "Fence",
    "ForkedProcess",
    "InvalidKey",
    "InvalidURL",
    "KeyExists",
    "LatchworkError",
    "LockLost",
    "MemberEvicted",
    "Mirror",
    "NodeIdInUse",
    "NotLeader",
    "OnceFailed",
    "OutcomeUnknown",
    "OwnershipLost",
    "PermissionDenied",
    "Pipeline",
    "Put",
    "QuotaExceeded",
    "Session",
    "SessionLost",
    "Store",
    "TransactionTooLarge",
    "Tx",
    "Unavailable",
    "ValueTooLarge",
    "WaitTimeout",
    "Watch",
    "connect",
]
