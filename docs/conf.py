"""How Sphinx builds the website: `make docs`."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).parent))

from site_generator.pages import finished

from cafedcl import __version__

LOGGER = logging.getLogger(__name__)

project = "cafedcl"
release = __version__
extensions = ["myst_nb"]
exclude_patterns = ["site_generator"]

myst_heading_anchors = 6
myst_enable_extensions = ["dollarmath"]
# A text such as P_k costs $5 is no formula.
myst_dmath_allow_space = False
myst_dmath_allow_digits = False

# The repository holds notebooks without outputs. The build makes them, so that they are those of
# the code as it is; a cell that fails ends the build.
nb_execution_mode = "force"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
if shutil.which("nginx") is None:
    # A deployment runs behind nginx. Without it the page shows no outputs.
    nb_execution_excludepatterns = ["tutorials/05-*"]
    print("tutorial 05 is not executed: nginx is not installed")
# Quotes and dots only: dashes would turn the options of commands in small print into "—scale".
smartquotes_action = "qe"
# Progress that a cell prints on standard error is not part of what it explains.
nb_output_stderr = "remove"

nitpicky = True
# Signatures name types of Python, NumPy and PyTorch, whose pages are not part of this website.
nitpick_ignore_regex = [("py:class", ".*")]

html_theme = "furo"
html_title = "cafedcl"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
# Most blocks are commands; a block of Python says so.
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"


def read_page(_: Sphinx, page: str, source: list[str]) -> None:
    """Fill in what the code says; Sphinx takes the text out of the list.

    Notebooks come here as JSON, in which links look the same.
    """
    source[0] = finished(page, source[0])


def as_mathml(node: nodes.Element, *, alone: bool) -> str:
    """Return a formula as MathML, which browsers draw without a script from elsewhere."""
    # TeX takes one digit for each part of \frac12; the converter would take 12 for the first.
    formula = re.sub(r"frac(\d)(\d)", r"frac{\1}{\2}", node.astext())
    try:
        return tex2mathml(formula, as_block=alone)
    except MathError as error:
        LOGGER.warning("formula %r: %s", formula, error, location=node)
        return ""


def show_formula(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula that stands in a line."""
    translator.body.append(as_mathml(node, alone=False))
    raise nodes.SkipNode


def show_displayed_formula(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula that stands alone."""
    translator.body.append(f'<div class="formula">{as_mathml(node, alone=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect all this to Sphinx."""
    app.connect("source-read", read_page)
    app.add_html_math_renderer("mathml", (show_formula, None), (show_displayed_formula, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
