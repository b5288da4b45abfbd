"""`hybridperf page`: questions and answers in a browser."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

PROGRAM = (sys.executable, "-m", "hybridperf.cli.ask")


def page(
    port: Annotated[int, Option(min=0, max=65535)] = 0, no_open: bool = False,
    export: Path | None = None, model: str = "", system: str = "", gpus: str = "",
) -> None:  # fmt: skip
    """Open a page that answers what-if questions: steps, layouts, serving, runs, traces.

    Its address has a token, and only this machine reaches it. Ctrl-C ends it. --export FILE.html
    writes a page that needs no server instead: steps, layouts and serving, with the answers for
    the models, systems and numbers of GPUs of --model, --system, --gpus (names or numbers with
    commas; those of `page/exported.toml` if not given).
    """
    if export is not None or model or system or gpus:
        _export(export, model, system, gpus)
        return
    import webbrowser

    from hybridperf.page.server import serve

    def listening(address: str) -> None:
        print(f"page at {address} (Ctrl-C ends it)", flush=True)
        if not no_open:
            webbrowser.open(address)

    serve(PROGRAM, port, listening)


def _export(export: Path | None, model: str, system: str, gpus: str) -> None:
    from hybridperf.cli import common
    from hybridperf.hardware import load_system
    from hybridperf.page.exported import write_exported
    from hybridperf.workloads.transformer import load_shape

    if export is None:
        raise common.wrong("expected --export FILE with --model, --system or --gpus, got none")
    common.ready(export, "a page")
    models, systems = common.names_in(model), common.names_in(system)
    for names, load in ((models, load_shape), (systems, load_system)):
        for name in names:
            load(name)  # one that nobody knows is refused before anything is asked
    counts = common.names_in(gpus)
    if wrong := [one for one in counts if not one.isdecimal() or int(one) < 1]:
        raise common.wrong(f"expected --gpus such as 8,64, got {wrong[0]!r}; mend it")
    answers = write_exported(export, PROGRAM, models, systems, [*map(int, counts)])
    print(f"{export}: {answers:,} answers, {export.stat().st_size / 1e6:.1f} MB")
