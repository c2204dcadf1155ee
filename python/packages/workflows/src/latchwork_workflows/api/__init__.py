"""The REST API: documents in, documents out, errors as problems (RFC 9457). What it may do is the desk's to say."""

from latchwork_workflows.api.routes import routers

__all__ = ["routers"]
