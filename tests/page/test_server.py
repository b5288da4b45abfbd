"""Who may ask the page's server, and what can be asked of it."""

import asyncio
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer.main
from starlette.responses import PlainTextResponse
from support.served_page import Served, served

from hybridperf.cli.app import app
from hybridperf.cli.page import PROGRAM
from hybridperf.fields import fields_of
from hybridperf.io import InputError
from hybridperf.page import uploads
from hybridperf.page.processes import Answerer
from hybridperf.page.questions import beside, question, views
from hybridperf.page.server import Guard
from hybridperf.page.uploads import Uploads
from hybridperf.workloads.transformer.framework import framework_habits

STEP = {"model": "gpt2-xl", "gpu": "h100_sxm", "n_gpus": 1, "tp": 1, "pp": 1}
MACHINE = {"model": "a100_sxm4_80g", "system": "aws_p4de_a100"}
JSON = {"Content_Type": "application/json"}


# answers each line with how many there have been
_ECHO = """import sys
for count, _ in enumerate(sys.stdin, 1):
    print('{"answer": %d}' % count, flush=True)
"""


def body(**asked: object) -> bytes:
    return json.dumps({"view": "step", "question": "step", "values": STEP} | asked).encode()


def lines(answer: bytes) -> list[dict]:
    return [json.loads(line) for line in answer.splitlines()]


def no_file(key: str) -> tuple[Path, str]:
    raise InputError(f"expected a file that was dropped here, got {key}")


def test_only_the_page_itself_is_answered(page: Served) -> None:
    port = page.address.split(":")[2].split("/")[0]
    assert page.address.startswith("http://127.0.0.1:")
    status, headers, text = page.request("GET", "")
    assert status == 200
    assert b"<main" in text
    policy = headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    for other in ({"Host": "evil.example"}, {"Host": f"evil.example:{port}"},
                  {"Origin": "http://evil.example"}, {"Origin": "null"},
                  {"Sec_Fetch_Site": "cross-site"}):  # fmt: skip
        assert page.request("GET", "", **other)[0] == 403, other
        assert page.request("POST", "ask", body(), **JSON, **other)[0] == 403, other
    own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
    assert page.request("GET", "views.json", **own)[0] == 200
    for path in ("../", "../views.json", "..%2fserver.py", "%2e%2e/server.py", "server.py"):
        assert page.request("GET", path)[0] == 404, path


def test_the_ports_that_browsers_leave_out_are_known() -> None:
    async def app(scope: dict, receive: object, send: object) -> None:
        await PlainTextResponse("page")(scope, receive, send)

    for port, host, status in ((80, "localhost", 200), (80, "127.0.0.1:80", 200),
                               (81, "localhost", 403), (80, "evil.example", 403)):  # fmt: skip
        told: list[dict] = []

        async def send(message: dict, told: list[dict] = told) -> None:
            told.append(message)

        scope = {"type": "http", "headers": [(b"host", host.encode())]}
        asyncio.run(Guard(app, port)(scope, lambda: None, send))
        assert told[0]["status"] == status, (port, host)


def test_a_field_that_a_command_needs_is_asked_for() -> None:
    with pytest.raises(InputError, match="expected a value of Model, got none"):
        question("run", "run", {"shape": ""}, no_file)


def test_questions_of_another_kind_or_size_are_refused(page: Served) -> None:
    assert page.request("POST", "ask", body(), Content_Type="text/plain")[0] == 413
    assert page.request("POST", "ask", b" " * (1 << 17), **JSON)[0] == 413
    assert page.request("POST", "ask", b"[1", **JSON)[0] == 400
    assert page.request("POST", "ask", b"{}", **JSON)[0] == 400
    assert page.request("GET", "ask")[0] == 404
    for asked in (
        {"view": "validate"}, {"question": "page"}, {"values": {"out": "/etc/passwd"}},
        {"values": {"model": "--out=x"}}, {"values": {"tp": "1e999"}},
        {"values": {"model": "../../etc/passwd"}}, {"values": {"sharding": "zero9"}},
    ):  # fmt: skip
        status, _, text = page.request("POST", "ask", body(**asked), **JSON)
        assert status == 200
        assert "expected" in lines(text)[-1]["error"], asked


def test_a_question_is_the_commands(page: Served) -> None:
    asked = body(values=STEP | {"global_batch": 8})
    head, *_, last = lines(page.request("POST", "ask", asked, **JSON)[2])
    words = "model=gpt2-xl gpu=h100_sxm n_gpus=1 tp=1 pp=1 global_batch=8"
    assert head["command"] == f"hybridperf steps {words}"
    found: dict = {}
    exec(head["python"], found)  # the words that the button copies
    assert "ask" not in head["python"]
    (row,), (shown,) = found["answer"].to_dict(orient="records"), last["answer"]["rows"]
    assert row["predicted_s"] == pytest.approx(shown["predicted_s"], rel=1e-9)
    for name in ("low_s", "high_s", "tokens_per_s", "mfu", "memory_bytes"):
        number = float("nan") if shown[name] is None else shown[name]
        assert row[name] == pytest.approx(number, rel=1e-9, nan_ok=True), name
    wrong = lines(page.request("POST", "ask", body(values=STEP | {"tp": 7}), **JSON)[2])
    assert wrong[-1]["answer"]["status"] == 3


def test_files_are_bounded_and_named_by_us(
    page: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = b"name,rows,dim,pooling\n<script>,1000,64,10\nb,2000,64,20\n"
    kind = {"Content_Type": "application/octet-stream"}
    _, _, text = page.request("POST", "upload", table, **kind, X_Name="..%2F<b>.csv")
    asked = {"file": f"file:{json.loads(text)['file']}", "gpus": 2, "batch": 64}
    sent = body(view="tables", question="shard", values=asked | MACHINE)
    head, *_, last = lines(page.request("POST", "ask", sent, **JSON)[2])
    assert "'<b>.csv'" in head["command"]
    assert {one["table"] for one in last["answer"]["per_table"]} == {"<script>", "b"}
    # a sentence about a file has the name that its owner gave it
    _, _, text = page.request("POST", "upload", b'{"a": ', **kind, X_Name="a%22.json")
    sent = body(
        view="trace", question="summary", values={"file": f"file:{json.loads(text)['file']}"}
    )
    said = lines(page.request("POST", "ask", sent, **JSON)[2])[-1]["error"]
    assert said.startswith('a".json is cut off')
    refused = page.request("POST", "upload", table, **kind, X_Name="x.sh")
    assert refused[0] == 200
    assert json.loads(refused[2])["error"].startswith("expected a file ending in")

    monkeypatch.setattr(uploads, "MOST_BYTES", 1 << 20)
    kept = Uploads()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"0" * (1 << 16)

    async def add() -> None:
        await kept.add("large.json", endless())

    with pytest.raises(InputError, match="at most 1 MiB"):
        asyncio.run(add())
    folder = Path(kept._folder.name)
    assert list(folder.iterdir()) == []
    kept.close()
    assert not folder.exists()


def test_what_a_killed_server_has_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, other = (tmp_path / f"{uploads.FOLDER}{pid}-x" for pid in (gone.pid, os.getpid()))
    for folder in (left, other):
        folder.mkdir()
        (folder / "half.json").write_text("{")
    kept = Uploads()
    assert not left.exists()
    assert (other / "half.json").exists()
    kept.close()


def test_a_question_that_nobody_waits_for_is_stopped() -> None:
    plan = question(
        "layouts", "plan", {"shape": "gpt3-175b", "system": "dgx_h100", "gpus": 1024}, no_file
    )

    async def story() -> tuple[bool, dict]:
        one = Answerer(PROGRAM)
        first = one.ask(plan.arguments)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await anext(first)
        await first.aclose()
        ended = one._process is None
        said = [line async for line in one.ask(["systems"])]
        await one.stop()
        return ended, said[-1]

    ended, said = asyncio.run(story())
    assert ended
    assert "systems" in said["answer"]


def test_what_may_be_asked_next_is_asked_ahead_until_somebody_asks() -> None:
    echo = ["python3", "-c", _ECHO]

    async def asked_ahead(by_a_reader: bool) -> int:
        answerer = Answerer(echo)
        ahead = asyncio.ensure_future(answerer.ask_ahead([["a"], ["b"]]))
        await asyncio.sleep(0)  # it begins
        if by_a_reader:
            assert [one async for one in answerer.ask(["first"])] == [{"answer": 1}]
        await ahead
        found = [one async for one in answerer.ask(["last"])]
        await answerer.stop()
        return int(found[-1]["answer"])

    assert asyncio.run(asked_ahead(by_a_reader=False)) == 3
    assert asyncio.run(asked_ahead(by_a_reader=True)) == 2
    near = beside("run", "run", {"gpus": "8", "tokens": "1T"})
    assert near == [{"gpus": 16, "tokens": "1T"}, {"gpus": 4, "tokens": "1T"}]
    assert beside("run", "run", {"gpus": "1"}) == [{"gpus": 2}]
    assert beside("tables", "shard", {"gpus": "8"}) == []


def test_views_ask_what_commands_take() -> None:
    commands = typer.main.get_command(app).commands
    for view in views().values():
        for name, asked in view["questions"].items():
            command = commands
            asks = ""  # of a sweep, whose fields are its options
            for word in asked["command"]:
                if command:
                    found = command[word]
                    command = getattr(found, "commands", {})
                else:
                    asks = word
            options = {option for one in found.params for option in one.opts}
            if asks:
                options |= {f"--{name}" for one in fields_of(asks) for name in one.names}
            fields = [one for one in view["fields"] if one["name"] in asked["fields"]]
            taken = [one["as"] for one in fields if one.get("as", "").startswith("--")]
            taken += [one.partition("=")[0] for one in asked.get("options", [])]
            written = [asked["folder"].partition("=")[0]] if "folder" in asked else []
            taken += written  # by the server, always
            assert set(taken) <= options, name
            required = {one.opts[0] for one in found.params if one.required}
            # what is hidden is set by the view
            never_empty = [f for f in fields if f.get("needed") or f.get("group") == "hidden"]
            given = {one.get("as") for one in never_empty} | {
                one.partition("=")[0] for one in (*asked.get("options", []), *written)
            }
            assert {one for one in required if one.startswith("--")} <= given, name
    frameworks = [one for one in views()["step"]["fields"] if one["name"] == "framework"]
    assert set(frameworks[0]["choices"]) == set(framework_habits())


@pytest.mark.parametrize(
    "text",
    [b"[" * 30_000 + b"]" * 30_000, b'{"values":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
     b"1" * 60_000,
     b'{"view":["a"],"question":"step","values":{}}', b"null"],
)  # fmt: skip
def test_deep_and_odd_questions_are_refused_as_such(page: Served, text: bytes) -> None:
    assert page.request("POST", "ask", text, **JSON)[0] == 400
    assert page.request("GET", "x" * 20_000)[0] == 404


def test_half_a_request_shuts_nobody_out_and_is_given_up(page: Served) -> None:
    parts = urlsplit(page.address)
    halves = (
        b"GET / HT",
        f"POST {parts.path}ask HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode(),
        b"",
    )
    links = []
    for at in range(80):
        links.append(socket.create_connection((parts.hostname, parts.port)))
        links[-1].sendall(halves[at % 3])
    with ThreadPoolExecutor(100) as asked:
        found = list(asked.map(lambda _: page.request("GET", "")[0], range(200)))
    assert found == [200] * 200
    for link in links:
        link.settimeout(300)
        answer = link.recv(1000)  # ends, or says that it waited in vain
        assert not answer or b" 408 " in answer
        link.close()


def test_programs_end_with_a_server_that_is_killed() -> None:
    with served() as page:
        task = Path(f"/proc/{page.process.pid}/task/{page.process.pid}/children")
        while not (children := [*map(int, task.read_text().split())]):
            time.sleep(0.1)  # it asks first questions itself
        time.sleep(3.0)  # they load, or compute
        page.process.kill()
        page.process.wait(300)
    ends_s = time.monotonic() + 300
    while time.monotonic() < ends_s and any(map(runs, children)):
        time.sleep(0.2)
    assert not any(map(runs, children))


def runs(process: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
