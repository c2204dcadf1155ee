"""The web pages, rendered by the server. JavaScript only adds live updates. ``services`` checks the permissions."""

from latchwork_workflows.ui.routes import NAVIGATION, PAGES, ui_routers

__all__ = ["NAVIGATION", "PAGES", "ui_routers"]
