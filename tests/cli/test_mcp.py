"""Tools for agents, asked by the protocol's own client over standard input and output: one process
answers twenty questions, each as the command itself does.
"""

import asyncio
import sys
from typing import Any

import pytest

import hybridperf as hp

STEP = {"model": "llama2-7b", "gpu": "h100_sxm", "n_gpus": 8, "dp": 8, "global_batch": 32}
ROW = [f"{name}={value}" for name, value in STEP.items()]
SERVE = ["--shape=llama3-8b", "--system=h200", "--gpus=1", "--precision=fp8", "--isl=512"]
# tool, its arguments, the command that answers the same ("": refused), where in the answer to look
QUESTIONS: list[tuple[str, dict[str, Any], list[str], str]] = [
    ("known", {"what": "devices"}, ["devices"], ""),
    ("known", {"what": "systems"}, ["systems"], ""),
    ("known", {"what": "models"}, ["models"], ""),
    ("known", {"what": "h100"}, ["show", "h100"], "text"),
    ("known", {"what": "llama3-70b"}, ["show", "llama3-70b"], "text"),
    ("known", {"what": "dgx_h100"}, ["show", "dgx_h100"], "text"),
    ("known", {"what": "h1000"}, [], "did you mean"),
    ("fit_check", {"model": "llama3-8b", "gpu": "l4"}, ["fit-check", "llama3-8b", "l4"], "uses"),
    ("fit_check", {"model": "qwen3-8b", "gpu": "t4"}, ["fit-check", "qwen3-8b", "t4"], "cheapest"),
    ("fit_check", {"model": "no-such"}, [], "unknown model"),
    ("fit_check", {"model": "llama3-8b", "gpu": "l4", "context": 0}, [], "expected context"),
    ("predict", {"step": STEP}, ["steps", *ROW], "rows"),
    ("predict", {"step": STEP | {"tp": 2, "dp": 4}}, ["steps", *ROW, "tp=2", "dp=4"], "rows"),
    ("predict", {"step": STEP | {"gpu": "h1000"}}, ["steps", *ROW, "gpu=h1000"], "rows"),
    ("predict", {"step": {"grad_acum": 2}}, [], "grad_accum"),
    ("serve", {"model": "llama3-8b", "system": "h200", "gpus": 1, "precision": "fp8", "isl": 512,
               "top": 2}, ["serve", *SERVE, "--top=2"], "deployments"),
    ("serve", {"model": "llama3-8b", "system": "h200", "sla": "ttft"}, [], "--sla"),
    ("plan", {"model": "llama2-7b", "system": "dgx_h100", "gpus": 8, "batch": 32}, ["plan",
     "--shape=llama2-7b", "--system=dgx_h100", "--gpus=8", "--batch=32", "--top=3"], "layouts"),
    ("plan", {"model": "llama2-7b", "system": "dgx_h1000", "gpus": 8}, [], "dgx_h100"),
    ("explain", {"step": {"model": "no-such"}}, [], "no-such"),
]  # fmt: skip


def test_without_the_package_it_says_what_to_install(
    refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    assert "pip install hybridperf[mcp]" in refused("mcp")


def answered() -> list[Any]:
    """What one process answers to all questions, in their order."""
    mcp = pytest.importorskip("mcp")

    async def ask() -> list[Any]:
        program = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "hybridperf.cli", "mcp"]
        )
        async with mcp.Client(program) as client:
            named = {one.name for one in (await client.list_tools()).tools}
            assert named == {"fit_check", "predict", "explain", "plan", "serve", "known"}
            return [await client.call_tool(name, given) for name, given, _, _ in QUESTIONS]

    return asyncio.run(ask())


def test_twenty_questions_are_answered_as_commands_answer_them() -> None:
    answers = answered()
    assert len(answers) == 20
    for (name, given, command, where), answer in zip(QUESTIONS, answers, strict=True):
        if not command:
            assert answer.is_error, (name, given)
            assert where in answer.content[0].text, answer.content[0].text
            continue
        assert not answer.is_error, (name, given, answer.content)
        said = answer.structured_content
        if where and name in ("known", "predict"):
            assert said[where] == hp.ask(*unique(command))[where], (name, given)
        else:
            assert said[where or command[0]]


def unique(command: list[str]) -> list[str]:
    """Words of a row, of which the last of a name counts."""
    return [*{word.split("=")[0]: word for word in command}.values()]
