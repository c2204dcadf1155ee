"""Building blocks of web pages: sign-in, roles, problems, live updates, tables, forms and drawings.

Independent of the system behind: the app provides its accounts, its changes and the contents of its pages. Pages work
without JavaScript. Browsers only load the files in ``static``.
"""

from typing import TYPE_CHECKING

from latchwork.spi import late
from latchwork_workflows.web.app import Link, Site, make_app
from latchwork_workflows.web.identity import Accounts, Identity, Role, SignedIn, Who, asked_by, may_still, who
from latchwork_workflows.web.live import Hub, aside
from latchwork_workflows.web.passwords import TooManyTries, Tries, check_password, digest_of, hash_password, new_secret
from latchwork_workflows.web.problems import Problem

if TYPE_CHECKING:
    from latchwork_workflows.web.bars import Bar, Bars, shares
    from latchwork_workflows.web.connections import ConnectionLimits
    from latchwork_workflows.web.drawings import BACK, BOTH, graph_svg
    from latchwork_workflows.web.forms import Field, FormInvalid, fields_of, values_of
    from latchwork_workflows.web.pages import Pages
    from latchwork_workflows.web.server import HttpServer, listening, tls_context
else:
    __getattr__ = late(
        __name__,
        {
            "latchwork_workflows.web.bars": ("Bar", "Bars", "shares"),
            "latchwork_workflows.web.connections": ("ConnectionLimits",),
            "latchwork_workflows.web.drawings": ("BACK", "BOTH", "graph_svg"),
            "latchwork_workflows.web.forms": ("Field", "FormInvalid", "fields_of", "values_of"),
            "latchwork_workflows.web.pages": ("Pages",),
            "latchwork_workflows.web.server": ("HttpServer", "listening", "tls_context"),
        },
    )

__all__ = [
    "BACK",
    "BOTH",
    "Accounts",
    "Bar",
    "Bars",
    "ConnectionLimits",
    "Field",
    "FormInvalid",
    "HttpServer",
    "Hub",
    "Identity",
    "Link",
    "Pages",
    "Problem",
    "Role",
    "SignedIn",
    "Site",
    "TooManyTries",
    "Tries",
    "Who",
    "aside",
    "asked_by",
    "check_password",
    "digest_of",
    "fields_of",
    "graph_svg",
    "hash_password",
    "listening",
    "make_app",
    "may_still",
    "new_secret",
    "shares",
    "tls_context",
    "values_of",
    "who",
]
