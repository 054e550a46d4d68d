"""Settings of the documentation: `.ci/docs` builds the site.

The source folder of Sphinx is the root of the project, not docs/: links between documents of all
folders then lead to pages. `sphinx-build -c docs . build/docs/html` builds the pages alone.
"""

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

project = "dlslime"
author = "The dlslime developers"
copyright = author
release = re.findall(
    r'^__version__ = "(.+)"$', (HERE.parent / "dlslime_backend/__init__.py").read_text(), re.M
)[0]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "breathe",
    "cpp_headers",
    "python_names",
    "tree_links",
]

# Pages: the guides in docs/, and the documents in other folders that guides lead to.
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "CHANGELOG.md",
    "SECURITY.md",
    *(f"{top}/**README.md" for top in ("benchmarks", "csrc", "examples", "package")),
    *(f"{top}/**README.md" for top in ("tests", "torch_ext")),
]
exclude_patterns = ["build", "dist", ".*", "*.egg-info"]

nitpicky = True
nitpick_ignore_regex = [
    # No inventory of other projects: the site is built without a network.
    ("py:.*", r"(torch|datetime|collections\.abc|numpy)\..*"),
    ("cpp:identifier", r"std(::.*)?"),
    ("cpp:identifier", r"u?int\d+_t|size_t|milliseconds"),
    # Types that programs only pass on, and names that Sphinx looks for outside of their class.
    ("cpp:identifier", r"gloo(::.*)?|Accelerator(::.*)?|Clock(::.*)?|Kind|dlslime"),
    ("cpp:identifier", r"AcceptQueue|AddressRecord|DeviceStream|Group|MemoryOwner|PeerIdentity"),
    ("cpp:identifier", r"Piece|Rendezvous|SharedPages"),
]

myst_heading_anchors = 4
highlight_language = "text"  # of code without a named language

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    "Memory": "dlslime_backend.memory.Memory",
    "Pieces": "dlslime_backend.memory.Pieces",
}
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
default_role = "python_name"  # `name` in docstrings

breathe_default_project = "dlslime"
breathe_default_members = ()

html_theme = "furo"
html_title = f"dlslime {release}"
html_copy_source = False
copybutton_exclude = ".linenos, .gp, .go"
