"""The page's server: who may ask, and what there is to ask for.

It listens on 127.0.0.1 alone. Its address has a token of 128 bits as its first part; other paths
are not found, another Host or Origin is refused, so that no page of another site and no other user
of the machine asks it. It keeps nothing: a link's part behind `#` holds the state of a view.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from hybridperf.io import InputError, parse_json
from hybridperf.page.processes import Answerer
from hybridperf.page.questions import Question, beside, question, views
from hybridperf.page.uploads import FOLDER, Uploads
from hybridperf.report import answer_page

HOST = "127.0.0.1"
_MOST_QUESTION_BYTES = 1 << 16
_PATIENCE_S = 10.0  # for the next bytes of a request
_LATE = "expected a whole request, waited in vain for the rest"
_LINES = "application/x-ndjson"
_NO_TEXT = {".png", ".parquet"}
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FIRST = (("step", "step"), ("serving", "serve"))  # of those that answer other views, too
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses other hosts and origins; adds the headers that keep a page to itself."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        # browsers leave HTTP's own port out
        after = {f":{port}", "" if port == 80 else f":{port}"}
        self._hosts = {f"{host}{one}" for host in (HOST, "localhost") for one in after}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Request(scope).headers
        origin = given.get("origin")
        known = given.get("host") in self._hosts
        own = origin is None or origin in {f"http://{host}" for host in self._hosts}
        own = own and given.get("sec-fetch-site", "none") in ("none", "same-origin")

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                more = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *more]
            await send(message)

        if known and own:
            await self._app(scope, receive, with_headers)
        else:
            refusal = PlainTextResponse("another host or origin may not ask this page", 403)
            await refusal(scope, receive, with_headers)


def application(program: Sequence[str], port: int, token: str) -> Starlette:
    """The application.

    Args:
        program: a command line that answers commands (`hybridperf/cli/ask.py`).
        port: where it listens, which the Host of a request must name.
        token: the first part of every path.
    """
    names = {asked["process"] for view in views().values() for asked in view["questions"].values()}
    answerers, uploads = {name: Answerer(program) for name in names}, Uploads()

    async def front(request: Request) -> Response:
        name = request.path_params.get("name") or "index.html"
        file = resources.files(__package__) / "front" / name
        ending = Path(name).suffix
        if "/" in name or ending not in _KINDS or not file.is_file():
            return PlainTextResponse("not found", 404)
        return Response(file.read_bytes(), media_type=_KINDS[ending])

    async def colours(_: Request) -> Response:
        return Response(answer_page.colours(), media_type="text/css")

    async def known(_: Request) -> Response:
        return JSONResponse(views())

    async def ask(request: Request) -> Response:
        try:
            body = await _body(request)
        except TimeoutError:
            return PlainTextResponse(_LATE, 408)
        if body is None:
            return PlainTextResponse("a question of that kind or size is refused", 413)
        try:
            asked = parse_json(body)
            one = question(asked["view"], asked["question"], asked["values"], uploads.get)
        except InputError as error:
            return Response(json.dumps({"error": str(error)}) + "\n", media_type=_LINES)
        except (ValueError, KeyError, TypeError, AttributeError):
            return PlainTextResponse("expected a question in JSON", 400)
        answerer = answerers[one.process]
        ahead = [
            question(asked["view"], asked["question"], values, uploads.get).arguments
            for values in beside(asked["view"], asked["question"], asked["values"])
        ]
        following = BackgroundTask(answerer.ask_ahead, ahead) if ahead else None
        return _lines(_answers(answerer, one), one.names, following)

    async def upload(request: Request) -> Response:
        name = unquote(request.headers.get("x-name", ""))
        if request.headers.get("content-type") != "application/octet-stream":
            return PlainTextResponse("expected bytes of a file", 415)
        try:
            return JSONResponse({"file": await uploads.add(name, _pieces(request))})
        except TimeoutError:
            return PlainTextResponse(_LATE, 408)
        except InputError as error:
            # an answer, as of a question: browsers write other kinds to their console
            return JSONResponse({"error": str(error)})

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.ensure_future(_warmed(answerers))
        yield
        warming.cancel()
        for one in answerers.values():
            await one.stop()
        uploads.close()

    inside = [
        Route("/", front),
        Route("/views.json", known),
        Route("/colours.css", colours),
        Route("/ask", ask, methods=["POST"]),
        Route("/upload", upload, methods=["POST"]),
        Route("/{name}", front),
    ]
    guard = Middleware(Guard, port=port)
    mount = Mount(f"/{token}", app=Router(inside, redirect_slashes=False))
    app = Starlette(routes=[mount], middleware=[guard], lifespan=life)
    app.router.redirect_slashes = False
    return app


async def _warmed(answerers: Mapping[str, Answerer]) -> None:
    """Have first questions asked before a reader does: they load and compile."""
    for view, name in _FIRST:
        values = {one["name"]: one.get("default") for one in views()[view]["fields"]}
        first = question(view, name, values, lambda key: (Path(key), key))
        async for _ in answerers[first.process].ask(first.arguments):
            pass


async def _body(request: Request) -> bytes | None:
    """A question's text; None where it is of another type, which forms could send, or too large."""
    if request.headers.get("content-type") != "application/json":
        return None
    found = b""
    async for chunk in _pieces(request):
        found += chunk
        if len(found) > _MOST_QUESTION_BYTES:
            return None
    return found


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    """What is sent, as long as something comes; `TimeoutError` after `_PATIENCE_S` of nothing."""
    stream = aiter(request.stream())
    with contextlib.suppress(StopAsyncIteration):
        while True:
            async with asyncio.timeout(_PATIENCE_S):
                piece = await anext(stream)
            yield piece


async def _answers(answerer: Answerer, asked: Question) -> AsyncGenerator[dict[str, Any], None]:
    """The words to copy, then what the program says; files that it wrote as text."""
    yield {"command": asked.command, "python": asked.python}
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-") as folder:
        more = [asked.folder_option.format(folder)] if asked.folder_option else []
        async with contextlib.aclosing(answerer.ask([*asked.arguments, *more])) as lines:
            async for said in lines:
                if more and "answer" in said:
                    files = sorted(one for one in Path(folder).rglob("*") if one.is_file())
                    said["files"] = {
                        one.name: one.read_text("utf-8", errors="replace")
                        for one in files
                        if one.suffix not in _NO_TEXT
                    }
                yield said


def _lines(
    said: AsyncGenerator[dict[str, Any], None], names: Sequence[tuple[str, str]] = (),
    following: BackgroundTask | None = None,
) -> StreamingResponse:  # fmt: skip
    """Lines of JSON, in which dropped files have the names that their owner knows; `following` is
    done once they are sent.
    """

    async def lines() -> AsyncIterator[str]:
        async with contextlib.aclosing(said):
            async for one in said:
                line = json.dumps(one)
                for here, theirs in names:
                    line = line.replace(here, json.dumps(theirs)[1:-1])
                yield line + "\n"

    return StreamingResponse(lines(), media_type=_LINES, background=following)


def _protocol() -> Any:
    """HTTP on connections that are closed where no whole request comes, or no next one."""
    from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

    class Patient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(_PATIENCE_S, self._waited, None)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.loop.call_later(_PATIENCE_S, self._waited, self.cycle)

        def _waited(self, cycle: RequestResponseCycle | None) -> None:
            """Nothing was asked since; what is answered may take as long as it takes."""
            idle = cycle is None or cycle.response_complete
            if self.cycle is cycle and idle and not self.transport.is_closing():
                self.transport.close()

    return Patient


def serve(
    program: Sequence[str], port: int, listening: Callable[[str], Any] | None = None
) -> None:  # fmt: skip
    """Serve the page until it is interrupted.

    Args:
        program: as `application` takes.
        port: 0 for one that is free.
        listening: called with the address once it answers.

    Raises:
        InputError: the port is taken.
    """
    import socket

    import uvicorn

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"expected a free --port, got {port} ({reason}); leave it out for one"
            ) from error
        port, token = listener.getsockname()[1], secrets.token_hex(16)
        app = application(program, port, token)
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, date_header=False,
            timeout_graceful_shutdown=1, http=_protocol(),
        )  # fmt: skip
        server = uvicorn.Server(config)

        async def run() -> None:
            told: Awaitable[None] = asyncio.ensure_future(tell())
            await server.serve(sockets=[listener])
            await told

        async def tell() -> None:
            while not server.started and not server.should_exit:
                await asyncio.sleep(0.01)
            if listening is not None and server.started:
                listening(f"http://{HOST}:{port}/{token}/")

        asyncio.run(run())
