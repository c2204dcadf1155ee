"""Taking a lease: one request that may be repeated, since its random id says whether an earlier one got through."""

from __future__ import annotations

import os

from etcd3 import etcdrpc as pb

from latchwork.backends.etcd import errors as rpc_errors
from latchwork.backends.etcd.connection import Link
from latchwork.backends.futures import Steps
from latchwork.errors import LatchworkError

_OURS_ALREADY = "lease already exists"


def grant(link: Link, ttl_s: int, what: str, deadline: float) -> Steps[tuple[int, float]]:
    """A lease whose id was never used before, and its TTL as granted, in seconds.

    Its life is to be counted from before this was called: a request whose answer was lost may have started it.
    """
    # Not from `random`: programs that seed it alike would share their leases, and take each other's for their own.
    lease = (int.from_bytes(os.urandom(8), "big") >> 2) + 1
    try:
        answer = yield from link.call("LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=ttl_s), what, deadline)
    except LatchworkError as error:
        if error.__cause__ is None or not rpc_errors.says(error.__cause__, _OURS_ALREADY):
            raise
        answer = yield from link.call("LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=lease), what, deadline)
        if answer.TTL <= 0:  # it has run out again meanwhile
            raise
    return lease, float(answer.TTL)
