"""The page's server as a process, as `hybridperf page` starts it."""

import contextlib
import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from support.headless import Tab


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
        link = http.client.HTTPConnection(parts.hostname, parts.port, timeout=300)
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
        process.wait(300)
        if process.stdout is not None:
            process.stdout.close()


def keep_moving(tab: Tab, moves: int) -> None:
    """Move a slider of a step so often, at most twenty times a second."""
    script = f"""(async () => {{
        const slider = document.querySelector('#field-global_batch ~ input[type=range]');
        for (let move = 0; move < {moves}; move += 1) {{
            slider.value = 3 + (move % 5);
            slider.dispatchEvent(new Event('input', {{ bubbles: true }}));
            await new Promise((done) => setTimeout(done, 50));
        }}
    }})()"""
    tab.value(script)


# view: its question, fields that stay, the one that moves by `at` = 0, 1, ... (JavaScript)
MOVED = {
    "step": (
        "step",
        "{ model: 'gpt2-xl', gpu: 'h100_sxm', system: 'dgx_h100', n_gpus: 8, tp: 1, pp: 1,"
        " micro_batch: 1 }",
        "global_batch: 8 * 2 ** (at % 8)",
    ),
    "serving": (
        "serve",
        "{ shape: 'llama2-7b', system: 'h200', gpus: 1, osl: 512, sla: 'ttft=1s,tpot=30ms' }",
        "isl: 512 + 32 * at",
    ),
    "run": (
        "run",
        "{ shape: 'gpt2-xl', system: 'dgx_h100', gpus: 2, batch: 4 }",
        "tokens: `${1 + at}B`",
    ),
    "layouts": (
        "plan",
        "{ shape: 'gpt2-xl', system: 'dgx_h100', gpus: 2, only: 'zero=0 cp=1' }",
        "batch: 2 * 2 ** (at % 4)",
    ),
}


def asked_often(tab: Tab, view: str, times: int) -> list[float]:
    """Milliseconds of a clock of answers to so many moves of a view, the shortest first."""
    question, base, moved = MOVED[view]
    script = f"""(async () => {{
        const {{ ask }} = await import('./ask.js');
        const [base, all] = [{base}, []];
        for (let at = 0; at < {times}; at += 1) {{
            const start = performance.now();
            await ask('{view}', '{question}', {{ ...base, {moved} }});
            all.push(performance.now() - start);
        }}
        return all.sort((a, b) => a - b);
    }})()"""
    return list(tab.value(script))


def held_bytes(tab: Tab, page: Served) -> dict[str, int]:
    """What a page holds after its garbage is gone; of the server: all its processes but the one
    that answers `inside`, which keeps the graphs of the last few steps.
    """
    tab.call("HeapProfiler.enable")
    tab.call("HeapProfiler.collectGarbage")
    tab.call("Performance.enable")
    metrics = {one["name"]: one["value"] for one in tab.call("Performance.getMetrics")["metrics"]}
    server = sum(map(_resident_bytes, _answering(page)))
    return {"page": int(metrics["JSHeapUsedSize"]), "server": server}


def processor_s(page: Served) -> float:
    """Processor seconds so far of the server and of all that answer."""
    ticks = 0
    for pid in (page.process.pid, *_children(page)):
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(after_name[11]) + int(after_name[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _answering(page: Served) -> tuple[int, int]:
    """The server and its first program, which answers steps."""
    return page.process.pid, min(_children(page))


def _children(page: Served) -> list[int]:
    pid = page.process.pid
    return [*map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
