"""For mkdocs: the page of commands shows what `--help` prints, so that it cannot be out of date."""

import os
import subprocess
import sys
from typing import Any

_NAMES = (
    "demo calibrate fit plan-measurements ops collectives predict steps serve run plan pool shard"
    " sweep search devices systems models show validate calibrations trace:summary trace:replay"
    " trace:export choose:strategies choose:chimera choose:kaisa"
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the help of every command in place of the mark for it."""
    if "<!-- commands -->" not in markdown:
        return markdown
    return markdown.replace("<!-- commands -->", "\n".join(map(_section, _NAMES.split())))


def _section(name: str) -> str:
    words = name.split(":")
    command = [sys.executable, "-m", "hybridperf.cli", *words, "--help"]
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    text = done.stdout.replace("python -m hybridperf.cli", "hybridperf").strip()
    return f"## {' '.join(words)}\n\n```text\n{text}\n```\n"
