"""The REST API: documents in, documents out, errors as problems (RFC 9457). ``services`` decides what is allowed."""

from latchwork_workflows.api.app import make_api

__all__ = ["make_api"]
