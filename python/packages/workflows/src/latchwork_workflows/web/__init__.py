"""Building blocks of web pages: sign-in, roles, problems, live updates, tables, forms and drawings.

Independent of the system behind: the app provides its accounts, its changes and the contents of its pages. Pages work
without JavaScript. Browsers only load the files in ``static``.
"""

from typing import TYPE_CHECKING

from latchwork.spi import lazy_getattr
from latchwork_workflows.web.app import NavigationEntry, SiteConfig, make_app
from latchwork_workflows.web.identity import (
    Accounts,
    CurrentUser,
    Identity,
    Role,
    SignedIn,
    as_identity,
    current_user,
    is_still_allowed,
)
from latchwork_workflows.web.live import LiveHub, run_in_stream_thread
from latchwork_workflows.web.passwords import (
    AttemptLimit,
    TooManyAttempts,
    check_password,
    digest_of,
    hash_password,
    new_secret,
)
from latchwork_workflows.web.problems import HttpProblem

if TYPE_CHECKING:
    from latchwork_workflows.web.bars import Bar, GanttChart, share_bar
    from latchwork_workflows.web.connections import ConnectionLimits
    from latchwork_workflows.web.drawings import BACK, BOTH, graph_svg
    from latchwork_workflows.web.forms import FormField, FormInvalid, fields_of, values_of
    from latchwork_workflows.web.pages import Pages
    from latchwork_workflows.web.server import HttpServer, bind_socket, tls_context
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork_workflows.web.bars": ("Bar", "GanttChart", "share_bar"),
            "latchwork_workflows.web.connections": ("ConnectionLimits",),
            "latchwork_workflows.web.drawings": ("BACK", "BOTH", "graph_svg"),
            "latchwork_workflows.web.forms": ("FormField", "FormInvalid", "fields_of", "values_of"),
            "latchwork_workflows.web.pages": ("Pages",),
            "latchwork_workflows.web.server": ("HttpServer", "bind_socket", "tls_context"),
        },
    )

__all__ = [
    "BACK",
    "BOTH",
    "Accounts",
    "AttemptLimit",
    "Bar",
    "ConnectionLimits",
    "CurrentUser",
    "FormField",
    "FormInvalid",
    "GanttChart",
    "HttpProblem",
    "HttpServer",
    "Identity",
    "LiveHub",
    "NavigationEntry",
    "Pages",
    "Role",
    "SignedIn",
    "SiteConfig",
    "TooManyAttempts",
    "as_identity",
    "bind_socket",
    "check_password",
    "current_user",
    "digest_of",
    "fields_of",
    "graph_svg",
    "hash_password",
    "is_still_allowed",
    "make_app",
    "new_secret",
    "run_in_stream_thread",
    "share_bar",
    "tls_context",
    "values_of",
]
