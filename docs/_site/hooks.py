"""Hooks of the site: public names become links, reference pages begin with a list, figures open when clicked.

mkdocs loads this file for its pages, and griffe for docstrings.
"""

import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe

ROOT = Path(__file__).resolve().parents[2]
ENTRY = re.compile(r"^::: metastep\.(\S+)$", re.M)
# In fences, headings and links there is no new link.
CODE = re.compile(r"(^```.*?^```|^#.*?$|\[[^\]]*\]\([^)]*\))", re.M | re.S)
OFF_THE_SITE = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)]*)?\)")


@cache
def public() -> dict[str, str]:
    """Return the names that the reference describes, by how a text writes them: `MAML`, `methods.ANIL`."""
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return {name: f"metastep.{name}" for page in pages for name in ENTRY.findall(page.read_text())}


@cache
def summary(name: str) -> str:
    """Return the first sentence of a public name's docstring."""
    docstring = _package()[name].docstring
    return docstring.value.split("\n\n")[0] if docstring else ""


@cache
def _package() -> Any:
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    loader.load("dataclasses")  # metastep's are resolved by it
    return loader.load("metastep")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    if folder == "tutorials":
        page.meta["hide"] = ["toc"]  # one heading: the code takes the room
    if folder == "reference":
        return _listed(markdown)
    return _linked(OFF_THE_SITE.sub(lambda link: _named(link, folder), markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Let a figure open by itself, large, when it is clicked."""
    return re.sub(r'<p>(<img [^>]*?src="([^"]+)"[^>]*>)</p>', r'<p><a href="\2">\1</a></p>', html)


def _named(link: re.Match[str], folder: str) -> str:
    """A link to a file that is not on the site, such as `../CONTRIBUTING.md`, as the file's name."""
    path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
    return link[0] if path.startswith("docs/") else f"{link[1]} (`{path}`)".replace(f"{path} (`{path}`)", f"`{path}`")


def _linked(markdown: str) -> str:
    """The page with a link to the reference where it first mentions a public name, such as `ms.MAML(...)`"""
    seen = set()

    def link(code: re.Match[str]) -> str:
        if code[1] in seen or code[1] not in public():
            return code[0]
        seen.add(code[1])
        return f"[{code[0]}][{public()[code[1]]}]"

    parts = CODE.split(markdown)
    return "".join(part if k % 2 else re.sub(r"`ms\.([\w.]+)[^`]*`", link, part) for k, part in enumerate(parts))


def _listed(markdown: str) -> str:
    """A reference page with a table of its names before the first of them"""
    rows = "".join(f"| [`{name}`][metastep.{name}] | {summary(name)} |\n" for name in ENTRY.findall(markdown))
    table = f"| `metastep.` | |\n|---|---|\n{rows}\n"
    return ENTRY.sub(lambda entry: table + entry[0], markdown, count=1)


class Docstrings(griffe.Extension):
    """Show the doctests under `Example:` as code, which griffe knows as `Examples:`, and link public names."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = self._linked(obj.docstring.value.replace("\nExample:\n", "\nExamples:\n"), obj.name)

    @staticmethod
    def _linked(text: str, own: str) -> str:
        """Names with a capital or an underscore: `apply` is also a word"""

        def link(code: re.Match[str]) -> str:
            known = code[1] in public() and code[1] != own and re.search(r"[A-Z_]", code[1])
            return f"[{code[0]}][{public()[code[1]]}]" if known else code[0]

        return re.sub(r"`(?:ms\.)?([\w.]+)`", link, text)
