"""The page's server as a process, as `hybridperf page` starts it."""

import contextlib
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Served:
    """A server that runs."""

    address: str
    process: subprocess.Popen

    def request(
        self, method: str, path: str, body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """(status, headers, body) of a request; `path` stands behind the token."""
        parts = urlsplit(self.address)
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        link.putrequest(method, parts.path + path, skip_host="Host" in headers)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            link.putheader(name.replace("_", "-"), value)
        link.endheaders(body)
        answer = link.getresponse()
        with contextlib.closing(link):
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, headers, answer.read()


@contextlib.contextmanager
def served() -> Iterator[Served]:
    """A server with a port of its own."""
    command = [sys.executable, "-m", "hybridperf.cli", "page", "--no-open"]
    # one thread each: the programs that compute share the machine with other tests
    quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **quiet}
    )
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        yield Served(words[2], process)
    finally:
        process.terminate()
        process.wait(20)
        if process.stdout is not None:
            process.stdout.close()
