"""A page as one file: styles, drawings and the little script stand in it, and its own policy
forbids it to fetch anything.

The policy names the script by its hash, so that nothing else in the page can run, whatever text it
was given.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import os
from collections.abc import Sequence
from importlib import resources

import hybridperf
from hybridperf.io import replacing
from hybridperf.report.html.bars import bars_html, ranges_html
from hybridperf.report.html.blocks import facts_html, notes_html, table_html, text_html
from hybridperf.report.html.document import (
    Bars,
    Block,
    Facts,
    Folded,
    Notes,
    Page,
    Plot,
    Ranges,
    Table,
    Text,
    Timeline,
)
from hybridperf.report.html.plot import plot_html
from hybridperf.report.html.tracks import timeline_html
from hybridperf.report.html.words import escaped

PAGE_SCHEMA_VERSION = 1


def write_page(page: Page, path: str | os.PathLike) -> None:
    """Write the page, whole or not at all."""
    text = render(page)
    with replacing(path, "wb") as handle:
        handle.write(text.encode())


def render(page: Page) -> str:
    """The page's HTML."""
    script = _resource("page.js")
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src"
        f" 'sha256-{_sha256(script)}'; base-uri 'none'"
    )
    sections = "\n".join(
        f'<section id="s{at}"><h2>{escaped(one.title)}</h2>\n{_blocks(one.blocks)}\n</section>'
        for at, one in enumerate(page.sections)
    )
    links = "".join(
        f'<a href="#s{at}">{escaped(one.title)}</a>' for at, one in enumerate(page.sections)
    )
    lead = f'<p class="lead">{escaped(page.lead)}</p>\n' if page.lead else ""
    menu = f'<nav aria-label="sections">{links}</nav>\n' if len(page.sections) > 1 else ""
    facts = [
        f"made by hybridperf {hybridperf.__version__} on {datetime.date.today().isoformat()}",
        *page.facts,
    ]
    foot = " · ".join(map(escaped, facts))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="hybridperf {escaped(hybridperf.__version__)}">
<meta name="schema" content="hybridperf/page {PAGE_SCHEMA_VERSION}">
<link rel="icon" href="data:,">
<title>{escaped(page.title)}</title>
<style>
{_resource("page.css")}</style>
</head>
<body>
<header>
<h1>{escaped(page.title)}</h1>
{lead}{menu}</header>
<main>
{sections}
</main>
<footer>{foot}</footer>
<script>{script}</script>
</body>
</html>
"""


def _blocks(blocks: Sequence[Block | Folded]) -> str:
    return "\n".join(_block(block) for block in blocks)


def _block(block: Block | Folded) -> str:
    match block:
        case Folded():
            return f"<details><summary>{escaped(block.title)}</summary>\n{_blocks(block.blocks)}\n</details>"
        case Text():
            return text_html(block)
        case Notes():
            return notes_html(block)
        case Facts():
            return facts_html(block)
        case Table():
            return table_html(block)
        case Bars():
            return bars_html(block)
        case Ranges():
            return ranges_html(block)
        case Plot():
            return plot_html(block)
        case Timeline():
            return timeline_html(block)


@functools.cache
def _resource(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
