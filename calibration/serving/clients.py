"""Clients of a server on the loopback, and the clock that judges it.

    python -m hybridperf_calibration.serving.clients < PLAN.json > TIMES.json

PLAN.json: {"port": 4711, "core": 1, "requests": [{"at_s": 0.2, "after": -1, "prompt": [17, 4],
"output": 3}]}: each request has a connection of its own and is sent at its second, or that long
after another one's end. TIMES.json: the start by the machine's clock (perf_counter), and of each
request the seconds since then when it was sent and when each token came, and the tokens. A process
of its own: a client must not take the server's core.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


async def _asked(
    plan: Mapping[str, Any], number: int, ends: Sequence[asyncio.Event], start_s: float
) -> dict[str, Any]:
    request = plan["requests"][number]
    if request["after"] >= 0:
        await ends[request["after"]].wait()
        await asyncio.sleep(request["at_s"])
    else:
        await asyncio.sleep(max(start_s + request["at_s"] - time.perf_counter(), 0.0))
    asked = {"number": number, "prompt": request["prompt"], "output": request["output"]}
    line = json.dumps(asked) + "\n"
    sent_s = time.perf_counter() - start_s
    reader, writer = await asyncio.open_connection("127.0.0.1", plan["port"])
    writer.write(line.encode())
    token_s, tokens = [], []
    while answer := await reader.readline():
        token_s.append(time.perf_counter() - start_s)
        tokens.append(int(answer))
    writer.close()
    ends[number].set()
    return {"sent_s": sent_s, "token_s": token_s, "tokens": tokens}


async def _all(plan: Mapping[str, Any]) -> dict[str, Any]:
    count = len(plan["requests"])
    ends = [asyncio.Event() for _ in range(count)]
    start_s = time.perf_counter()
    seen = await asyncio.gather(*(_asked(plan, one, ends, start_s) for one in range(count)))
    return {"start_s": start_s, "requests": seen}


def main() -> int:
    """The program."""
    plan = json.load(sys.stdin)
    if plan["core"] is not None and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {plan["core"]})
    json.dump(asyncio.run(_all(plan)), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
