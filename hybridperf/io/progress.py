"""How far long work is: a bar in a notebook or on a terminal, elsewhere a line now and then.

What measures is a program of its own. It tells how far it is on its standard output, a JSON object
a line, and the process that started it shows that:

    {"progress": {"done": 120, "total": 824, "doing": "gemm", "left_s": 181.0}}
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator

READ = "HYBRIDPERF_PROGRESS"  # set: whoever started this process reads its standard output
SHOWN_EVERY_S = 1.0  # each redrawing takes milliseconds, perhaps of the core that is measured
LINE_EVERY_S = 10.0  # where nothing can be redrawn
SAID = "hybridperf: "  # before what this library says beside its results
_BAR_COLUMNS = 100
_MANY_S = 90.0  # from here on minutes are counted


@dataclasses.dataclass(frozen=True)
class Progress:
    """How many of `total` are done, what is being done, and how long the rest takes."""

    done: int
    total: int
    doing: str = ""  # "": nothing worth a word
    left_s: float | None = None  # None: not known

    def words(self) -> str:
        """`120 of 824, gemm, about 3 minutes left`."""
        parts = [f"{self.done:,} of {self.total:,}"]
        if self.done < self.total:
            parts += [self.doing] if self.doing else []
            parts += [time_left(self.left_s)] if self.left_s is not None else []
        return ", ".join(parts)


Show = Callable[[Progress], None]


def time_left(left_s: float) -> str:
    """Remaining seconds as people say them: `about 3 minutes left`."""
    if left_s < _MANY_S:
        return "a minute left" if left_s > _MANY_S / 2 else "less than a minute left"
    return f"about {left_s / 60:.0f} minutes left"


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


def say(line: str) -> None:
    """A line of progress on standard error; in a notebook, which paints that red, as output."""
    if in_notebook():
        from tqdm import tqdm

        tqdm.write(f"{SAID}{line}", file=sys.stdout)  # above a bar of letters
    else:
        print(f"{SAID}{line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def told(what: str) -> Iterator[Show]:
    """As `shown`, for a program that measures: whoever started it shows it, if they can."""
    if READ not in os.environ:
        with shown(what) as show:
            yield show
        return
    with contextlib.ExitStack() as ends:
        yield _seldom(
            lambda now: print(json.dumps({"progress": dataclasses.asdict(now)}), flush=True),
            SHOWN_EVERY_S, ends,
        )  # fmt: skip


def read(line: str) -> Progress | None:
    """What a line of a program's standard output tells; None where it tells something else."""
    if not line.startswith('{"progress": '):
        return None
    try:
        return Progress(**json.loads(line)["progress"])
    except (ValueError, TypeError):  # cut off: the program was stopped
        return None


@contextlib.contextmanager
def shown(what: str) -> Iterator[Show]:
    """A function that shows how far `what` is; nothing is seen before its first call."""
    with contextlib.ExitStack() as ends:
        shows: list[Show] = []

        def show(now: Progress) -> None:
            if not shows:
                shows.append(_opened(what, now.total, ends))
            shows[0](now)

        yield show


def _opened(what: str, total: int, ends: contextlib.ExitStack) -> Show:
    if in_notebook():
        return _seldom(_notebook_bar(what, total, ends), SHOWN_EVERY_S, ends)
    if sys.stderr.isatty():
        return _seldom(_terminal_bar(what, total, ends), SHOWN_EVERY_S, ends)
    return _seldom(
        lambda now: print(f"{SAID}{what}: {now.words()}", file=sys.stderr, flush=True),
        LINE_EVERY_S, ends,
    )  # fmt: skip


def _notebook_bar(what: str, total: int, ends: contextlib.ExitStack) -> Show:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets the bar is one of letters
        from tqdm.auto import tqdm

        bar = ends.enter_context(
            tqdm(total=total, bar_format=f"{what} {{bar}}", file=sys.stdout, ncols=_BAR_COLUMNS)
        )

    def not_red() -> None:  # as a widget ends that is not full: the time was up
        bar.total = bar.n if hasattr(bar, "container") else bar.total

    ends.callback(not_red)

    def show(now: Progress) -> None:
        bar.n, bar.bar_format = now.done, f"{what} |{{bar}}| {now.words()}"
        bar.refresh()

    return show


def _terminal_bar(what: str, total: int, ends: contextlib.ExitStack) -> Show:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what, markup=False), BarColumn(),
               TextColumn("{task.description}", markup=False))  # fmt: skip
    # no refreshing thread: it would run on the core that is being timed
    bar = ends.enter_context(Bar(*columns, console=Console(stderr=True), auto_refresh=False))
    task = bar.add_task("", total=total)
    return lambda now: bar.update(task, completed=now.done, description=now.words(), refresh=True)


def _seldom(show: Show, every_s: float, ends: contextlib.ExitStack) -> Show:
    """It no oftener than that, but always the end, also one that comes too soon."""
    last: Progress | None = None
    last_s = -math.inf

    def seldom(now: Progress) -> None:
        nonlocal last, last_s
        last = now
        if now.done == now.total or time.perf_counter() - last_s >= every_s:
            last_s = time.perf_counter()
            show(now)

    def end() -> None:
        if last is not None and last.done < last.total:
            show(dataclasses.replace(last, doing="", left_s=None))

    ends.callback(end)
    return seldom
