"""Links from documents to files of the source tree.

A link to a document that is a page leads to the page, and a link to a folder leads to the page of
the folder's README.md. The project has no public address, so any other link to a file becomes text
with the path of the file. With the setting `tree_links_base`, such as
"https://example.org/dlslime/blob/main", links lead to the file at this address.
"""

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

GUIDES = "docs/"


class TreeLinks(SphinxTransform):
    """Replaces links to files that are not pages."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Look at each link of a document."""
        for kind in (addnodes.pending_xref, addnodes.download_reference):
            for link in list(self.document.findall(kind)):
                if link.get("reftype") == "myst":
                    self._look_at(link)

    def _look_at(self, link: nodes.Element) -> None:
        root = Path(self.env.srcdir)
        target, _, fragment = link["reftarget"].partition("#")
        if link.get("refdomain") == "doc":
            if target in self.env.found_docs:
                return
            path = root / f"{target}.md"
            fragment = link.get("reftargetid") or ""
        else:
            path = Path(self.env.doc2path(self.env.docname)).parent / target
        path = path.resolve()
        if not target or not path.exists() or not path.is_relative_to(root):
            return  # an anchor, or a broken link: MyST warns
        name = path.relative_to(root).as_posix()
        page = f"{name}/README"
        if page in self.env.found_docs:
            link["refdomain"], link["reftarget"], link["reftargetid"] = "doc", page, None
            return
        link.replace_self(self._link_by_address(link, name, fragment) or _text(link, name))

    def _link_by_address(
        self, link: nodes.Element, name: str, fragment: str
    ) -> list[nodes.Node] | None:
        base = self.config.tree_links_base
        if not base:
            return None
        address = f"{base.rstrip('/')}/{name}" + (f"#{fragment}" if fragment else "")
        return [nodes.reference("", "", *link.children, refuri=address)]


def _text(link: nodes.Element, name: str) -> list[nodes.Node]:
    """Return the text of a link with the path, once: a text is often the end of the path."""
    short = name.removesuffix("/README.md")
    for path in (short, name):
        if f"/{path}".endswith(f"/{link.astext()}"):
            return [nodes.literal(path, path)]
    return [*link.children, nodes.Text(" ("), nodes.literal(name, name), nodes.Text(")")]


def _mark_outside(app: Sphinx, doctree: nodes.document) -> None:
    """Pages of other folders are in no table of contents: guides lead to them."""
    if not app.env.docname.startswith(GUIDES):
        app.env.metadata[app.env.docname]["orphan"] = True


def _write_entrance(app: Sphinx, error: Exception | None) -> None:
    """Write index.html, which leads to the first page in its folder."""
    if error is None and app.builder.name == "html":
        target = f"{app.config.root_doc}.html"
        Path(app.outdir, "index.html").write_text(
            "<!DOCTYPE html>\n"
            f'<html lang="en"><head><meta charset="utf-8"><title>{app.config.project}</title>\n'
            f'<meta http-equiv="refresh" content="0; url={target}"></head>\n'
            f'<body><a href="{target}">{app.config.project}</a></body></html>\n'
        )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.add_config_value("tree_links_base", "", "env")
    app.add_transform(TreeLinks)
    app.connect("doctree-read", _mark_outside)
    app.connect("build-finished", _write_entrance)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
