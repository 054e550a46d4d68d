"""Check that each link of the built pages leads to a file, and to a place in the file.

    python docs/_ext/page_links.py build/docs/html

Sphinx checks the links of documents; here the links of themes, signatures and indices are checked,
too. Links to other sites are counted only.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LINKS = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src"}
# Themes lead to the top of a page by these, which browsers know.
TOP = {"", "top"}


class Page(HTMLParser):
    """The links of a page, and the places that links may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = set(TOP)
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the link and the name of an element."""
        values = dict(attrs)
        self.places |= {value for key in ("id", "name") if (value := values.get(key))}
        link = values.get(LINKS.get(tag, ""))
        if link is not None:
            self.links.append(link)


class Broken(NamedTuple):
    """A link that leads nowhere."""

    page: Path
    link: str
    why: str


def broken_links(pages: dict[Path, Page]) -> Iterator[Broken]:
    """Yield the links to missing files and places."""
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            place = unquote(target.fragment)
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            if file.is_dir():
                file /= "index.html"
            if not file.exists():
                yield Broken(path, link, "no such file")
            elif file in pages and place not in pages[file].places:
                yield Broken(path, link, "no such place in the page")


def main() -> int:
    """Check the pages in a folder; return the exit status."""
    root = Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text()) for path in sorted(root.rglob("*.html"))}
    found = list(broken_links(pages))
    lines = [f"{entry.page.relative_to(root)}: {entry.link}: {entry.why}" for entry in found]
    links = [link for page in pages.values() for link in page.links]
    others = sum(bool(urlsplit(link).netloc) for link in links)
    lines.append(
        f"{len(pages)} pages, {len(links) - others} links, {len(found)} broken; "
        f"{others} links to other sites not checked"
    )
    sys.stdout.write("\n".join([*lines, ""]))
    return int(bool(found) or not pages)


if __name__ == "__main__":
    sys.exit(main())
