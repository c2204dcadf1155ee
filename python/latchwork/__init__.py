"""latchwork: coordination for Python over etcd, ZooKeeper and an embedded store.

Connect with a URL, then use the store, one primitive, or the whole job manager.
"""

from latchwork._base.lazy import lazy_getattr

TYPE_CHECKING = False  # as typing has it, without importing typing
if TYPE_CHECKING:
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
        StoreFull,
        TransactionTooLarge,
        Unavailable,
        ValueTooLarge,
        WaitTimeout,
    )
    from latchwork.primitives.removal import forget
    from latchwork.store import Mirror, Pipeline, Session, Store, Tx, Watch
    from latchwork.store.connect import connect
    from latchwork.types import Absent, At, Change, Committed, Create, Delete, Entry, Exists, Fence, Put
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork.errors": (
                "AuthenticationFailed",
                "BackendNotInstalled",
                "BadRecord",
                "BarrierBroken",
                "Closed",
                "Conflict",
                "ConnectFailed",
                "ForkedProcess",
                "InvalidKey",
                "InvalidURL",
                "KeyExists",
                "LatchworkError",
                "LockLost",
                "MemberEvicted",
                "NodeIdInUse",
                "NotLeader",
                "OnceFailed",
                "OutcomeUnknown",
                "OwnershipLost",
                "PermissionDenied",
                "QuotaExceeded",
                "StoreFull",
                "SessionLost",
                "TransactionTooLarge",
                "Unavailable",
                "ValueTooLarge",
                "WaitTimeout",
            ),
            "latchwork.primitives.removal": ("forget",),
            "latchwork.store": (
                "Mirror",
                "Pipeline",
                "Session",
                "Store",
                "Tx",
                "Watch",
            ),
            "latchwork.store.connect": ("connect",),
            "latchwork.types": (
                "Absent",
                "At",
                "Change",
                "Committed",
                "Create",
                "Delete",
                "Entry",
                "Exists",
                "Fence",
                "Put",
            ),
        },
    )

__version__ = "0.2.0"

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
    "StoreFull",
    "TransactionTooLarge",
    "Tx",
    "Unavailable",
    "ValueTooLarge",
    "WaitTimeout",
    "Watch",
    "connect",
    "forget",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
