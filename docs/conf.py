# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration. ``make docs`` first puts the pages together (assemble.py), then builds them."""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

import veilwood

ROOT = Path(os.environ.get("VEILWOOD_ROOT", Path(__file__).parents[1]))

project = "Veilwood"
author = "The Veilwood developers"
copyright = "The Veilwood developers, Apache-2.0"
version = release = veilwood.__version__

extensions = [
    "sphinx.ext.autodoc",
    "numpydoc",
    "myst_nb",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "sphinx_design",
]
nitpicky = False
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5", "gallery/*.zip", "gallery/*.json"]
suppress_warnings = [
    "myst.header",  # pages that are read on their own may begin a level lower
    "misc.highlighting_failure",  # what a command prints is not always a language
    "config.cache",
]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline", "dollarmath"]
html_math_renderer = "mathml"  # browsers draw it themselves: no script from elsewhere
myst_heading_anchors = 4
nb_execution_mode = "off" if os.environ.get("VEILWOOD_DOCS") == "quick" else "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

numpydoc_show_class_members = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
toc_object_entries = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": [str(ROOT / "examples" / "gallery")],
    "gallery_dirs": ["gallery"],
    "filename_pattern": r"/plot_",
    "plot_gallery": os.environ.get("VEILWOOD_DOCS") != "quick",
    "abort_on_example_error": True,
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 1e6,
}
warnings.filterwarnings("ignore", category=veilwood.UtilityWarning)  # the examples are small

html_theme = "pydata_sphinx_theme"
html_title = "Veilwood"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_logo = html_favicon = "_static/logo.svg"
html_baseurl = os.environ.get("VEILWOOD_DOCS_URL", "")
html_last_updated_fmt = None  # the same pages from the same sources
templates_path = ["_templates"]
html_theme_options = {
    "logo": {"text": "Veilwood", "alt_text": "Veilwood, first page"},
    "navbar_align": "left",
    "navbar_center": ["sections.html"],
    "navbar_persistent": ["search-button"],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_center": [],
    "footer_end": ["project.html"],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"**": ["menu.html"]}
html_context = {"default_mode": "auto"}

# Parameters that a reader looks for first; the others follow in the order of the class.
FIRST_PARAMETERS = ("schema", "epsilon", "delta", "privacy_unit", "n_rows")
LAST_PARAMETERS = ("max_weight", "random_state", "ledger", "n_jobs", "invalid")
FILE_NAME = re.compile(r"\bproofs/([\w-]+)\.md")

# A prime as a superscript is too small to see: it stands beside its letter.
LETTER, SIGN = r"(<mi>\w</mi>)", r"<mi>(&#x0203[23];)</mi>"
PRIMES = (
    (re.compile(f"<msup>{LETTER}{SIGN}</msup>"), r"<mrow>\1<mo lspace='0' rspace='0'>\2</mo></mrow>"),
    (
        re.compile(f"<msubsup>{LETTER}{LETTER}{SIGN}</msubsup>"),
        r"<msub><mrow>\1<mo lspace='0' rspace='0'>\3</mo></mrow>\2</msub>",
    ),
)


def _draw(display: str) -> Callable[[HTML5Translator, nodes.math | nodes.math_block], None]:
    """Return what writes a formula as MathML; a command that is not known fails the build."""

    def visit(writer: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
        drawn = convert(node.astext(), display=display)
        for prime, beside in PRIMES:
            drawn = prime.sub(beside, drawn)
        if "\\" in drawn:
            logging.getLogger(__name__).warning("formula not understood: %s", node.astext(), location=node)
        writer.body.append(drawn if display == "inline" else f'<div class="formula">{drawn}</div>')
        raise nodes.SkipNode

    return visit


def order_parameters(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, text: str | None, returned: str | None
) -> tuple[str, None] | None:
    """Put the parameters of an estimator in the order of interest; types are in the list of parameters."""
    if what != "class" or not hasattr(obj, "fit"):
        return None
    declared = inspect.signature(obj).parameters
    first = [key for key in FIRST_PARAMETERS if key in declared]
    last = [key for key in LAST_PARAMETERS if key in declared]
    names = [*first, *(key for key in declared if key not in (*first, *last)), *last]
    return "(" + ", ".join(f"{key}={declared[key].default!r}" for key in names) + ")", None


def link_proofs(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Make links of the names of proofs."""
    lines[:] = [FILE_NAME.sub(r":doc:`proof </proofs/\1>`", line) for line in lines]


def setup(app: Sphinx) -> None:
    """Let Sphinx write formulas as MathML, order parameters and link proofs."""
    app.add_html_math_renderer("mathml", (_draw("inline"), None), (_draw("block"), None))
    app.connect("autodoc-process-signature", order_parameters)
    app.connect("autodoc-process-docstring", link_proofs)
