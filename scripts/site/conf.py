"""Configuration of Sphinx for the documentation site. ``scripts/make_site`` prepares the sources."""

from __future__ import annotations

import logging
from importlib.metadata import version as version_of

import latchwork_workflows

# Loaded before autodoc looks at it, which otherwise imports modules with ``TYPE_CHECKING`` set, in a circle.
for _name in latchwork_workflows.__all__:
    getattr(latchwork_workflows, _name)
logging.getLogger("alembic").setLevel(logging.WARNING)

project = "latchwork"
author = "the latchwork authors"
version = release = version_of("latchwork")
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "notfound.extension",
    "sphinx_reredirects",
]

# Markdown
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
# Fences say how the tests run them, as in ``python file=jobs.py``; their first word is the language.
suppress_warnings = ["myst.header"]

# API reference
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False}
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
python_use_unqualified_type_names = True
viewcode_line_numbers = True

# Pages
html_theme = "furo"
html_title = "latchwork"
html_show_sourcelink = False
html_copy_source = False
templates_path = []
html_static_path = []
copybutton_prompt_text = r"^\$ |^>>> "
copybutton_prompt_is_regexp = True
notfound_urls_prefix = ""
redirects = {
    "reference/index": "../index.html",
    "api/index": "../index.html",
}
