"""Programs that answer commands: JSON lines to their standard input, JSON lines back.

What one loads and compiles stays there for the next question, so while nobody asks, a program is
asked what a reader may ask next. An answer that takes too long for its reader is stopped with its
program; the next question starts another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Any

from hybridperf.io import InputError

_LONGEST_LINE = 64 << 20  # bytes of an answer
_QUIET_S = 0.5  # without a question, before one is asked ahead
Ask = Callable[..., dict[str, Any]]
_ENDED = "the program that computes has ended; ask again, a new one starts"


@contextlib.contextmanager
def one_by_one(program: Sequence[str]) -> Iterator[Ask]:
    """A function of a command's words that waits for the program's answer, `InputError` where that
    is a sentence.
    """
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(*words: str) -> dict[str, Any]:
            print(json.dumps(words), file=process.stdin, flush=True)
            for line in process.stdout or ():
                said = json.loads(line)
                if "answer" in said:
                    found: dict[str, Any] = said["answer"]
                    return found
                if "error" in said:
                    raise InputError(said["error"])
            raise InputError(_ENDED)

        try:
            yield ask
        finally:
            process.kill()


class Answerer:
    """One program, asked one question after the other."""

    def __init__(self, program: Sequence[str]) -> None:
        self._program = program
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._asked = 0  # questions so far; those asked ahead do not count

    async def ask(self, arguments: Sequence[str]) -> AsyncGenerator[dict[str, Any], None]:
        """What the program says, line by line; the last has `answer` or `error`.

        Whoever stops listening before the last line stops the program.
        """
        self._asked += 1
        async with contextlib.aclosing(self._lines(arguments)) as lines:
            async for said in lines:
                yield said

    async def _lines(self, arguments: Sequence[str]) -> AsyncGenerator[dict[str, Any], None]:
        if self._turn.locked():
            yield {"progress": "waits for another question"}
        async with self._turn:
            process, last = await self._started(), False
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
                await process.stdin.drain()
                while not last:
                    line = await process.stdout.readline()
                    said = json.loads(line) if line.endswith(b"\n") else {"error": _ENDED}
                    last = "progress" not in said
                    if not line:
                        self._process = None
                    yield said
            except (BrokenPipeError, ConnectionResetError, ValueError):
                last = True
                await self.stop()
                yield {"error": _ENDED}
            finally:
                if not last:
                    await self.stop()

    async def ask_ahead(self, questions: Sequence[Sequence[str]]) -> None:
        """Ask these one after the other, once nobody has asked for a moment and until one does."""
        mine = self._asked
        await asyncio.sleep(_QUIET_S)
        for arguments in questions:
            if self._asked != mine:
                return
            async for _ in self._lines(arguments):
                pass

    async def stop(self) -> None:
        """End the program, at once."""
        self._asked += 1
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._program, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL, limit=_LONGEST_LINE,
            )  # fmt: skip
        return self._process
