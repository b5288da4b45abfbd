"""For mkdocs: the page of commands shows what `--help` prints, that of columns what the registry of
fields holds, so that neither can be out of date.
"""

import os
import re
import subprocess
import sys
from typing import Any

_NAMES = (
    "demo calibrate fit plan-measurements ops collectives predict steps serve run rl plan pool"
    " shard sweep devices systems models show validate calibrations trace:summary"
    " trace:replay trace:export"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the help of every command, the columns of a question, in place of its mark."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", "\n".join(map(_section, _NAMES.split())))
    while mark := re.search(r"<!-- columns of (\w+) -->", markdown):
        markdown = markdown.replace(mark[0], columns(mark[1]))
    return markdown


def columns(question: str) -> str:
    """A table of the columns of a question: meaning, other names, other words."""
    from hybridperf.fields import fields_of
    from hybridperf.fields.registry import described

    lines = ["| column | meaning | other names | other words |", "|---|---|---|---|"]
    for field in fields_of(question):
        words = [f"{word or 'not given'}: {', '.join(one)}" for word, one in field.words.items()
                 if one]  # fmt: skip
        cells = field.name, described(field), ", ".join(field.names[1:]), "; ".join(words)
        lines.append("| " + " | ".join(cells) + " |")
    unread = ", ".join(sorted(fields_of(question).unread))
    refused = f"\nRefused, with what to write in its place: {unread}.\n" if unread else ""
    return "\n".join(lines) + f"\n{refused}"


def _section(name: str) -> str:
    words = name.split(":")
    command = [sys.executable, "-m", "hybridperf.cli", *words, "--help"]
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    text = done.stdout.replace("python -m hybridperf.cli", "hybridperf").strip()
    return f"## {' '.join(words)}\n\n```text\n{text}\n```\n"
