"""A real browser without a window, spoken to over a pipe (Chrome's DevTools protocol): no driver,
no port, no network.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "headless_shell",
    "chrome-headless-shell",
)
_PLAYWRIGHT = (
    "chromium-*/chrome-linux*/chrome",
    "chromium_headless_shell-*/chrome-*/*headless*shell",
)
_PATIENCE_S = 60.0


def find_browser() -> str | None:
    """A browser of the Chromium family: HYBRIDPERF_BROWSER, one on the path, or one that playwright
    has installed.
    """
    if given := os.environ.get("HYBRIDPERF_BROWSER"):
        return given
    if found := next(filter(None, map(shutil.which, _NAMES)), None):
        return found
    folder = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright")
    )
    return next(
        (
            str(path)
            for pattern in _PLAYWRIGHT
            for path in sorted(folder.glob(pattern), reverse=True)
        ),
        None,
    )


def browser_or_skip() -> "Browser":
    """A started browser; without one the test is skipped, and says why."""
    found = find_browser()
    if found is None:
        pytest.skip(
            "no headless browser: install chromium (`apt-get install chromium`) or set"
            " HYBRIDPERF_BROWSER"
        )
    return Browser(found)


class Browser:
    """One browser with its own empty profile."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.mkdtemp(prefix="hybridperf-browser-")
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        options = [
            "--headless", "--remote-debugging-pipe", f"--user-data-dir={self._profile}",
            "--no-first-run", "--disable-gpu", "--no-sandbox", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ]  # fmt: skip
        # the browser reads commands from 3 and writes answers to 4
        script = f'exec "$@" 3<&{read} 4>&{write}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *options, "about:blank"],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._rest, self._last = b"", 0
        self.events: list[dict] = []

    def call(self, method: str, session: str | None = None, **params):
        """The result of one command of the protocol."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            answer = self._next(until)
            if answer.get("id") == message["id"]:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)
        raise TimeoutError(method)

    def wait_for(self, method: str) -> dict:
        """The first event of a kind."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            if found := next(
                (event for event in self.events if event.get("method") == method), None
            ):
                return found
            self.events.append(self._next(until))
        raise TimeoutError(method)

    def close(self) -> None:
        """End the browser."""
        try:
            self.call("Browser.close")
            self._process.wait(20)
        except (OSError, AssertionError, TimeoutError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _next(self, until: float) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Tab:
    """One page, opened from a file without a network, or from an address, with everything it said
    or asked for.
    """

    def __init__(
        self, browser: Browser, file: Path | str, width: int = 1200, height: int = 900,
        dark: bool = False,
    ) -> None:  # fmt: skip
        self._browser = browser
        browser.events.clear()
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Network.emulateNetworkConditions",
            offline=isinstance(file, Path),
            latency=0,
            downloadThroughput=-1,
            uploadThroughput=-1,
        )
        self.resize(width, height)
        self.dark(dark)
        url = file.resolve().as_uri() if isinstance(file, Path) else file
        self.call("Page.navigate", url=url)
        browser.wait_for("Page.loadEventFired")
        self.settle()

    def call(self, method: str, **params):
        """A command to this page."""
        return self._browser.call(method, self._session, **params)

    def resize(self, width: int, height: int = 900) -> None:
        """Another window."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def dark(self, dark: bool) -> None:
        """Another theme of the reader's system."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def settle(self) -> None:
        """Two frames drawn, where the page is in front."""
        self.value(
            "new Promise(done => { requestAnimationFrame(() => requestAnimationFrame(done));"
            " setTimeout(done, 500); }).then(() => 1)"
        )

    def value(self, expression: str):
        """What an expression is in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key, as a person presses it."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)
        self.settle()

    def mouse(self, kind: str, x: float, y: float, **more) -> None:
        """A mouse event at a place of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def screenshot(self, path: Path, whole: bool = True) -> Path:
        """A picture of the page."""
        found = self.call(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **self._clip() if whole else {},
        )
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def _clip(self) -> dict:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {
            "clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        }

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and exceptions."""
        found = []
        for event in self._mine():
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in (
                "error",
                "warning",
                "assert",
            ):
                found.append(str(params["args"]))
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in (
                "error",
                "warning",
            ):
                found.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        return found

    def requests(self) -> list[str]:
        """Every address that the page asked for, its own included."""
        return [
            event["params"]["request"]["url"]
            for event in self._mine()
            if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        """Close the page."""
        self.call("Page.close")

    def _mine(self) -> list[dict]:
        self.settle()
        return [event for event in self._browser.events if event.get("sessionId") == self._session]
