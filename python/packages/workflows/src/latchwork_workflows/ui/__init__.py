"""The pages: made by the server, live where a browser can, whole where it cannot. What they may do is the desk's."""

from latchwork_workflows.ui.routes import NAVIGATION, PAGES, ui_routers

__all__ = ["NAVIGATION", "PAGES", "ui_routers"]
