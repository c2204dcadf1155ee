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
    current_user,
    is_still_allowed,
    wrap_with_identity,
)
from latchwork_workflows.web.live import LiveHub, run_in_stream_thread
from latchwork_workflows.web.passwords import (
    AttemptLimit,
    TooManyAttempts,
    create_secret,
    hash_password,
    hash_secret,
    matches_password,
)
from latchwork_workflows.web.problems import HttpProblem

if TYPE_CHECKING:
    from latchwork_workflows.web.bars import Bar, GanttChart, draw_share_bar
    from latchwork_workflows.web.connections import ConnectionLimits
    from latchwork_workflows.web.drawings import BACK, BOTH, draw_graph_svg
    from latchwork_workflows.web.forms import FormField, FormInvalid, build_fields, parse_values
    from latchwork_workflows.web.pages import Pages
    from latchwork_workflows.web.server import HttpServer, bind_socket, load_tls_context
else:
    __getattr__ = lazy_getattr(
        __name__,
        {
            "latchwork_workflows.web.bars": ("Bar", "GanttChart", "draw_share_bar"),
            "latchwork_workflows.web.connections": ("ConnectionLimits",),
            "latchwork_workflows.web.drawings": ("BACK", "BOTH", "draw_graph_svg"),
            "latchwork_workflows.web.forms": ("FormField", "FormInvalid", "build_fields", "parse_values"),
            "latchwork_workflows.web.pages": ("Pages",),
            "latchwork_workflows.web.server": ("HttpServer", "bind_socket", "load_tls_context"),
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
    "bind_socket",
    "build_fields",
    "create_secret",
    "current_user",
    "draw_graph_svg",
    "draw_share_bar",
    "hash_password",
    "hash_secret",
    "is_still_allowed",
    "load_tls_context",
    "make_app",
    "matches_password",
    "parse_values",
    "run_in_stream_thread",
    "wrap_with_identity",
]
