"""`hybridperf page`: questions and answers in a browser."""

import sys
from typing import Annotated

from typer import Option

PROGRAM = (sys.executable, "-m", "hybridperf.cli.ask")


def page(port: Annotated[int, Option(min=0, max=65535)] = 0, no_open: bool = False) -> None:
    """Open a page that answers what-if questions: steps, layouts, serving, runs, traces.

    Its address has a token, and only this machine reaches it. Ctrl-C ends it.
    """
    import webbrowser

    from hybridperf.page.server import serve

    def listening(address: str) -> None:
        print(f"page at {address} (Ctrl-C ends it)", flush=True)
        if not no_open:
            webbrowser.open(address)

    serve(PROGRAM, port, listening)
