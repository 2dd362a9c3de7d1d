"""Reads our pages: their blocks of code, command lines, words in backquotes, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?:    .*\n|\n(?=    ))+", flags=re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_ASSIGNED = re.compile(r"^[A-Z_]+=\S*$")


@cache
def text_of(page: Path) -> str:
    return page.read_text()


def fenced(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return [block for named, block in _FENCED.findall(text_of(page)) if named == language]


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return _INDENTED.sub("\n", _FENCED.sub("", text_of(page)))


def spans(page: Path) -> list[str]:
    """What stands in backquotes, each as one line."""
    return [re.sub(r"\s+", " ", span) for span in _SPAN.findall(prose(page))]


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words of every indented line that a shell could read, without variables and comments."""
    for block in _INDENTED.findall(_FENCED.sub("", text_of(page))):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                continue  # prose or a formula
            while words and (words[0] == "export" or _ASSIGNED.match(words[0])):
                del words[0]
            if words:
                yield words


def links(page: Path) -> list[str]:
    """Where the page leads to; of other sites nothing."""
    found = re.findall(r"\]\(([^)\s]+)\)", _SPAN.sub("", prose(page)))
    return [link for link in found if "://" not in link]


def anchors(page: Path) -> set[str]:
    """The names of the page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
