"""Docstrings of the package: names in backticks, colons, and the texts of compiled classes.

Docstrings are written as Markdown: a name in single backticks becomes a link if the API reference
has the name, and otherwise code. Compiled classes have their docstrings in the stub `_C.pyi`.
"""

import ast
import functools
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxRole

ROLE = "python_name"
PACKAGE = Path(__file__).parent.parent.parent / "dlslime_backend"
COMPILED = "dlslime_backend._C"
BEFORE_NAPOLEON = 400
# Arguments of constructors that only the package itself calls.
_INTERNAL = re.compile(r"^\((core|link): ")
_SELF = re.compile(r"^\(self: [\w.]+(, )?")  # pybind11 names the first argument
# Sphinx's text for an alias within another type.
_ALIAS = re.compile(
    r"TypeAliasForwardRef\('([a-zA-Z_.]+)'\)|(?<!~)\b(dlslime_backend\.memory\.\w+)"
)
_RETURNS = re.compile(r"^( *)Returns:\n\1( +)", re.MULTILINE)


class NameRole(SphinxRole):
    """A text in single backticks."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a link that may lead nowhere."""
        code = nodes.literal(self.rawtext, self.text, classes=["xref", "py", "py-obj"])
        link = addnodes.pending_xref(
            "",
            code,
            refdomain="py",
            reftype="obj",
            reftarget=self.text.removesuffix("()"),
            refdoc=self.env.docname,
            refexplicit=False,
            optional=True,
        )
        for key in ("py:module", "py:class"):
            link[key] = self.env.ref_context.get(key)
        return [link], []


def _elsewhere_or_code(
    app: Sphinx, env: BuildEnvironment, link: addnodes.pending_xref, text: nodes.Element
) -> nodes.Element | None:
    """Return a link to the class or method of another module, or else the text as code."""
    if not link.get("optional"):
        return None
    target = link["reftarget"]
    domain = env.domains.python_domain
    found = [name for name in domain.objects if name.endswith(f".{target}")]
    if len(found) == 1 and target[:1].isupper():
        page = link["refdoc"]
        return domain.resolve_xref(env, page, app.builder, "obj", found[0], link, text)
    return text


@functools.cache
def _stub() -> dict[str, str]:
    """Return the docstrings of the classes in the stub, by name."""
    tree = ast.parse((PACKAGE / "_C.pyi").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name: ast.get_docstring(node) or "" for node in classes}


def _prepare(
    _app: Sphinx, what: str, _name: str, found: Any, _options: Any, lines: list[str]
) -> None:
    """Prepare a docstring for napoleon, which takes words before a colon for a type."""
    if isinstance(found, type) and found.__module__ == COMPILED:
        lines[:] = _stub()[found.__name__].splitlines()
    text = "\n".join(lines)
    text = _RETURNS.sub(r"\1Returns:\n\1\2: ", text)
    if what == "property":
        text = f": {text}"
    lines[:] = text.split("\n")


def _signature(
    _app: Sphinx, what: str, _name: str, _found: Any, _options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Return the signature for readers; None leaves a signature as it is."""
    if not signature:
        return None
    if what == "class" and _INTERNAL.match(signature):
        return "", ""
    signature = _SELF.sub("(", signature)
    return _ALIAS.sub(r"~\1\2", signature), _ALIAS.sub(r"~\1\2", result or "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.add_role(ROLE, NameRole())
    app.connect("missing-reference", _elsewhere_or_code)
    app.connect("autodoc-process-docstring", _prepare, priority=BEFORE_NAPOLEON)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
