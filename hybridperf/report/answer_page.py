"""A command's answer as one HTML file that a browser opens from disk, with nothing to fetch.

The page's front end (`page/front/`) draws it: its modules stand in the file as one script beside
the answer's JSON. The file's policy names that script by its hash, so that nothing else in it can
run, whatever text it was given.
"""

import base64
import datetime
import functools
import hashlib
import html
import json
import os
import re
import shlex
import sys
import tomllib
import zlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import hybridperf
from hybridperf.io import plain, replacing

PAGE_SCHEMA_VERSION = 3
FRONT = resources.files("hybridperf") / "page" / "front"
_MODULES = ("units", "parts", "draw", "grid", "answer")  # each after those that it imports
_IMPORT = re.compile(r'^import (?:\* as )?(.+?) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
# Not the file that was written: nothing of it is shown.
_SHOW = """
const one = (name) => document.querySelector(name);
const texts = ["title", "h1", "main > p", "#told"].map((name) => one(name).textContent);
if ($answer.sum(texts.join("\\n")) === one("#told").dataset.sum) {
  const told = JSON.parse(texts.at(-1));
  $answer.show(one("#answer"), told.answer, told.printed);
} else {
  one("main").textContent = "This file was damaged or changed since it was written: make it again.";
}
"""


def write_answer_page(
    path: str | os.PathLike, title: str, answer: Mapping[str, Any], printed: str = ""
) -> None:
    """Write the page, whole or not at all.

    Args:
        path: the file.
        title: of the page.
        answer: what `--json` prints of it.
        printed: what the command printed.
    """
    text = answer_page(title, answer, printed)
    with replacing(path, "wb") as handle:
        handle.write(text.encode())


def answer_page(title: str, answer: Mapping[str, Any], printed: str = "") -> str:
    """One HTML file that draws an answer without a network."""
    told = json.dumps({"answer": plain(answer), "printed": printed}, allow_nan=False)
    title, foot = clean(title), clean(made_by())
    told = told.replace("<", "\\u003c")
    total = zlib.crc32("\n".join([title, title, foot, told]).encode())
    body = f"""<main>
<h1>{html.escape(title)}</h1>
<div id="answer"><noscript>Drawing takes JavaScript; --json prints the same.</noscript></div>
<p class="quiet">{html.escape(foot)}</p>
</main>
<script type="application/json" id="told" data-sum="{total:08x}">{told}</script>
"""
    code = script(dict(zip(_MODULES, _MODULES, strict=True)), _SHOW)
    return document(title, body, code, f"hybridperf/page {PAGE_SCHEMA_VERSION}")


def made_by() -> str:
    """Which version made a file, on what day, by which command."""
    program, *arguments = sys.argv
    command = shlex.join(["hybridperf", *arguments]) if "hybridperf" in program else ""
    version, day = hybridperf.__version__, datetime.date.today().isoformat()
    return f"made by hybridperf {version} on {day} {command}".strip()


def clean(text: str) -> str:
    """Text without controls and what turns it around."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


@functools.cache
def colours() -> str:
    """The hues of a reader's theme, as style sheets have them."""
    light, dark = (
        "".join(f"--{name}: {hue}; " for name, hue in theme.items())
        for theme in tomllib.loads(FRONT.joinpath("colours.toml").read_text("utf-8")).values()
    )
    both = f":root {{ color-scheme: light dark; {light}}}\n"
    return f"{both}@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"


def script(modules: Mapping[str, str], then: str = "") -> str:
    """Modules of the front end as one script: each a function that returns what it exports.

    Args:
        modules: the files by the names that others import them by, each after those it imports.
        then: what is done behind them.
    """
    parts = ['"use strict";']
    for name, file in modules.items():
        code = FRONT.joinpath(f"{file}.js").read_text("utf-8")
        exported = ", ".join(_EXPORT.findall(code))
        code = _IMPORT.sub(_bound, _EXPORT.sub("", code))
        parts.append(f"const ${name} = (() => {{\n{code}return {{ {exported} }};\n}})();")
    return "\n".join([*parts, then])


def _bound(found: re.Match[str]) -> str:
    """An import as names of a module above, `$answer` of `answer.js`."""
    names, module = found.groups()
    return f"const {names} = ${module};"


def document(title: str, body: str, code: str, schema: str) -> str:
    """An HTML file that fetches nothing and runs one script, known by its hash.

    Args:
        title: in plain text.
        body: HTML.
        code: the script.
        schema: of what the file holds, with its version.
    """
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none';"
        f" script-src 'sha256-{digest}'"
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="schema" content="{schema}">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>
{colours()}{FRONT.joinpath("page.css").read_text("utf-8")}</style>
</head>
<body>
{body}<script>{code}</script>
</body>
</html>
"""
