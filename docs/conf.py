"""The site of these pages: `make docs` builds it into build/docs, warnings as errors."""

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Bouquet"
copyright = "The Bouquet authors"
release = metadata.version("bouquet-fl")
html_title = f"Bouquet {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc", "evidence"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}  # autosummary writes pages of the second kind
html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,  # the six sections
}
html_sidebars = {"index": []}
html_static_path = ["static"]
html_css_files = ["style.css"]
html_search_scorer = str(Path(__file__).with_name("search_order.js"))
html_show_sourcelink = False

myst_heading_anchors = 4  # as GitHub makes them, so that a link works in both places

autodoc_typehints = "none"  # a docstring's own types say it
numpydoc_show_class_members = False
default_role = "code"  # a name in single backticks, as docstrings have it
