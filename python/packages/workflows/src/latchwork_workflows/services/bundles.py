"""Code bundles, kept in the log store for workers."""

from __future__ import annotations

import hashlib
import io
import zipfile

from latchwork.errors import Unavailable
from latchwork_workflows.bundles import MOST_BYTES, Bundle
from latchwork_workflows.schemas.workflows import StoredBundle
from latchwork_workflows.services.parts import Parts
from latchwork_workflows.web import Identity, Problem, Role


def store(parts: Parts, who: Identity, data: bytes) -> StoredBundle:
    """Store a bundle, named by the SHA-256 of its bytes. Idempotent.

    Raises:
        Problem: 403, the account is not an editor of any project; 413; 422, it is not a zip file; 503, there is no log
            store.
    """
    if not who.may_somewhere(Role.EDITOR):
        raise Problem(
            403, f"{who.name} is no editor of any project; ask an administrator for that role", needs="editor"
        )
    if len(data) > MOST_BYTES:
        raise Problem(413, f"a bundle has at most {MOST_BYTES:,} bytes")
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise Problem(422, "body: this is no zip", errors=[("body", "this is no zip")])
    if parts.logs is None:
        raise Problem(503, "there is no log store to keep the code in; start the server with the --logs of the workers")
    bundle = Bundle(hashlib.sha256(data).hexdigest(), data)
    try:
        parts.logs.put_file(bundle.file, bundle.data)
    except OSError as error:
        raise Unavailable(f"the code bundle cannot be kept now: {error.strerror or error}") from error
    return StoredBundle(sha256=bundle.sha256)
