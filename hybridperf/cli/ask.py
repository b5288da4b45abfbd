"""Commands asked from Python, and from the page by a process that answers one after the other.

    hp.ask("steps", "model=llama2-7b", "gpu=h100_sxm", "n_gpus=8")["rows"][0]["predicted_s"]

As a program (`python -m hybridperf.cli.ask`) it reads a JSON list of arguments a line and writes a
JSON object a line: `{"progress": words}` while it works, then `{"answer": ...}` or
`{"error": sentence}`. What was loaded and compiled stays for the next question.
"""

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TextIO


def ask(*arguments: str) -> dict[str, Any]:
    """The answer of a command: what its `--json` prints.

    Args:
        arguments: words of the command line after `hybridperf`, the command first.

    Returns:
        The content of that JSON: numbers in SI units, tables as lists of dicts.

    Raises:
        InputError: the command cannot use its arguments; the sentence that it would print.
    """
    from hybridperf.cli.app import command, sentence
    from hybridperf.io import InputError

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # as a command of its own (`app.main`)
    written = io.StringIO()
    try:
        with contextlib.redirect_stdout(written):
            command().main([*arguments, "--json"], standalone_mode=False)
    except Exception as error:
        raise InputError(sentence(error)) from error
    found: dict[str, Any] = json.loads(written.getvalue())
    return found


class _Progress(io.TextIOBase):
    """Standard error whose lines are told as they are written."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._rest = tell, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).replace("\r", "\n").split("\n")
        for line in filter(None, map(str.strip, lines)):
            self._tell(line)
        return len(text)


def answer(questions: TextIO, answers: TextIO) -> None:
    """Answer lines until there are no more."""
    from hybridperf.io import InputError

    def tell(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    for line in questions:
        arguments: Sequence[str] = json.loads(line)
        try:
            with contextlib.redirect_stderr(_Progress(lambda words: tell(progress=words))):
                found = ask(*arguments)
        except InputError as error:
            tell(error=str(error))
        else:
            tell(answer=found)


def _end_with(parent: int) -> None:
    """End this process when its parent has, however that ended: nobody reads an answer then."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    # what libraries write themselves is no answer
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        answer(sys.stdin, own)
