"""A page as one file: styles, figures and scripts stand in it, and its policy forbids all fetching.

The policy names each script by its hash, so that nothing else in the page can run, whatever text
it was given.
"""

import base64
import datetime
import functools
import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.resources import Resources
from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

import hybridperf
from hybridperf.io import replacing
from hybridperf.report.html.document import MOST_ROWS, Figure, Folded, Page, clean
from hybridperf.report.html.figures import DARK, LIGHT

PAGE_SCHEMA_VERSION = 2
_BEFORE_UNIT = re.compile(r"([0-9]) (?=(?:[a-zA-Zµ]{0,2}(?:s|B|J|W|B/s|FLOP/s)|%)(?![a-zA-Z]))")
_REPEATED = 50  # a longer list of strings is packed: each string once


def write_page(page: Page, path: str | os.PathLike) -> None:
    """Write the page, whole or not at all."""
    text = render(page)
    with replacing(path, "wb") as handle:
        handle.write(text.encode())


def render(page: Page) -> str:
    """The page's HTML."""
    figures = [block for section in page.sections for block in _figures(section.blocks)]
    environment = _environment()
    facts = [*page.facts, *_command()]
    script = environment.get_template("page.js.j2").render()
    scripts = [_bokeh(), script] if figures else [script]
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests)
    return environment.get_template("page.html.j2").render(
        page=page, facts=facts, schema=PAGE_SCHEMA_VERSION, version=hybridperf.__version__,
        today=datetime.date.today().isoformat(), light=LIGHT, dark=DARK,
        scripts=[Markup(script) for script in scripts], hashes=hashes,
        numbers={figure: at for at, figure in enumerate(figures)},
        items=[_packed(json_item(figure.model, ID(f"f{at}"))) for at, figure in enumerate(figures)],
        hues={LIGHT[name]: DARK[name] for name in LIGHT}, most_rows=MOST_ROWS,
    )  # fmt: skip


def _command() -> list[str]:
    """The command line, where the command makes the page."""
    program, *arguments = sys.argv
    ours = Path(program).stem == "hybridperf" or "hybridperf" in Path(program).parts
    return [shlex.join(["hybridperf", *arguments])] if ours else []


def _figures(blocks: Any) -> Iterator[Figure]:
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Folded):
            yield from _figures(block.blocks)


def whole_figures(text: str) -> Markup:
    """Escaped text without line breaks between a number and its unit (`5.76 s`)."""
    return Markup(_BEFORE_UNIT.sub("\\1\u00a0", str(escape(clean(text)))))


def _packed(value: Any) -> Any:
    """A figure's JSON with clean text, without TeX, and with repeated strings once."""
    if isinstance(value, str):
        return clean(value).replace("$$", "$ $")
    if isinstance(value, dict):
        return {key: _packed(one) for key, one in value.items()}
    if not isinstance(value, list | tuple):
        return value
    if len(value) > _REPEATED and all(isinstance(one, str) for one in value):
        place: dict[str, int] = {}
        pick = [place.setdefault(_packed(one), len(place)) for one in value]
        return {"pick": pick, "of": list(place)}
    return [_packed(one) for one in value]


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("hybridperf.report.html")
    found = Environment(loader=loader, autoescape=True, finalize=clean, trim_blocks=True,
                        lstrip_blocks=True)  # fmt: skip
    found.filters["whole_figures"] = whole_figures
    found.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # in order: Bokeh refers back
    return found


@functools.cache
def _bokeh() -> str:
    return "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw[:1])
