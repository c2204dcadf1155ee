"""Code bundles, kept in the log store for workers."""

from __future__ import annotations

import hashlib
import io
import zipfile

from latchwork.errors import Unavailable
from latchwork_workflows.bundles import MAX_BYTES, Bundle
from latchwork_workflows.schemas.workflows import StoredBundle
from latchwork_workflows.services.context import ServiceContext
from latchwork_workflows.web import HttpProblem, Identity, Role


def store_bundle(context: ServiceContext, user: Identity, data: bytes) -> StoredBundle:
    """Store a code bundle for workers in the log store, named by the SHA-256 of its bytes. Idempotent.

    Raises:
        HttpProblem: 403 (forbidden) if the account is not an editor of any project, 413 (too large) if the file is too
            large, 422 (invalid) if it is not a zip file, 503 (unavailable) if there is no log store.
    """
    if not user.has_any_role(Role.EDITOR):
        raise HttpProblem(
            403, f"{user.name} is not an editor of any project; ask an administrator for that role", needs="editor"
        )
    if len(data) > MAX_BYTES:
        raise HttpProblem(413, f"a bundle has at most {MAX_BYTES:,} bytes")
    if not zipfile.is_zipfile(io.BytesIO(data)):
        raise HttpProblem(422, "body: this is not a zip file", errors=[("body", "this is not a zip file")])
    if context.logs is None:
        raise HttpProblem(
            503, "there is no log store to keep the code in; start the server with the --logs of the workers"
        )
    bundle = Bundle(hashlib.sha256(data).hexdigest(), data)
    try:
        context.logs.put_file(bundle.file_name, bundle.data)
    except OSError as error:
        raise Unavailable(f"the code bundle cannot be stored now: {error.strerror or error}") from error
    return StoredBundle(sha256=bundle.sha256)
