"""The capabilities of a backend, which are the allowed differences between backends.

A backend declares them in its ``SchemeSpec``, so that they can be read without a server and without its client library.
``latchwork backends`` and docs/how-to/choose-a-backend.md show them. The conformance kit skips a test only if a
capability allows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

#: Portable limits of the contract. Every backend allows at least these.
MAX_CHECKS = 100
MAX_OPS = 100
MAX_TXN_BYTES = 1_000_000

#: Events that acknowledged writes survive. Each one includes those before it.
Survives = Literal["nothing", "restart", "crash", "power loss"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features and limits of a backend.

    Attributes:
        name: The scheme, for messages.
        multi_process: Several processes share the data.
        multi_host: Several machines share the data.
        survives: The worst event that acknowledged writes survive: nothing (they end with the process), an orderly
            restart, a crash of the server or of all processes, or a power loss.
        verifies_password: A wrong password is refused when connecting.
        min_ttl_s: The minimum session TTL in seconds with the default settings of the server. A shorter one is raised.
        max_ttl_s: The maximum session TTL in seconds with the default settings. A longer one is lowered.
        poll_interval_s: Seconds between two polls for changes of other processes. 0 if changes are pushed.
        max_txn_checks: The maximum number of checks in one transaction.
        max_txn_ops: The maximum number of operations in one transaction.
        max_txn_bytes: The maximum size of the keys and values of one transaction, including those of checks, in bytes.
    """

    name: str
    multi_process: bool = True
    multi_host: bool = True
    survives: Survives = "power loss"
    verifies_password: bool = True
    min_ttl_s: float = 1.0
    max_ttl_s: float = inf
    poll_interval_s: float = 0.0
    max_txn_checks: int = MAX_CHECKS
    max_txn_ops: int = MAX_OPS
    max_txn_bytes: int = MAX_TXN_BYTES
