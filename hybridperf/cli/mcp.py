"""`hybridperf mcp`: the commands as tools of the Model Context Protocol, for agents. Each tool asks
one command (`hp.ask`) and answers what its `--json` prints, or its one sentence.
"""

import threading
from typing import TYPE_CHECKING, Any

from hybridperf.cli.common import wrong

if TYPE_CHECKING:
    from mcp.server import MCPServer

_ONE = threading.Lock()  # commands share standard output
_SAID = (
    "Predicts how long machine-learning work takes on accelerators that need not be here: seconds,"
    " bytes, intervals of 90 %, and notes of what was assumed. Call known first for names of"
    " devices, systems and models. Say the interval and the notes with a number."
)


def mcp() -> None:
    """Serve tools to an agent over standard input and output (Model Context Protocol): fit_check,
    predict, plan, serve, explain, known. Needs `pip install hybridperf[mcp]`.
    """
    server().run("stdio")


def server() -> "MCPServer[Any]":
    """A server with all tools.

    Raises:
        InputError: the package of the protocol is not installed.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError as error:
        raise wrong(
            "expected the package mcp, which is not installed; pip install hybridperf[mcp]"
        ) from error

    import hybridperf
    from hybridperf.io import InputError

    def asked(*arguments: str) -> dict[str, Any]:
        with _ONE:
            try:
                return hybridperf.ask(*arguments, "--quiet")
            except InputError as error:
                raise ToolError(str(error)) from error

    tools = MCPServer("hybridperf", instructions=_SAID, version=hybridperf.__version__)

    @tools.tool()
    def fit_check(model: str, gpu: str = "", context: int = 4096, batch: int = 1) -> dict[str, Any]:
        """Does a model fit on a GPU, to be served, adapted (LoRA) or trained; on how many at least,
        how fast, the cheapest way, what the numbers rest on.

        Args:
            model: a name (llama3-70b), a config.json or its folder, a .gguf file.
            gpu: a name (h100, rtx_4090); this machine's or common ones if empty.
            context: tokens of a request with its answer, and of a sequence that trains.
            batch: requests at once.
        """
        options = ["--context", str(context), "--batch", str(batch)]
        return asked("fit-check", model, *filter(None, [gpu]), *options)

    @tools.tool()
    def predict(step: dict[str, str | int | float]) -> dict[str, Any]:
        """Seconds, tokens/s, memory and parts of one training step, with a 90 % interval.

        Args:
            step: columns of the step: model, gpu, n_gpus, tp, pp, dp, micro_batch, global_batch,
                seq, precision, recompute, sharding (zero1, zero3), framework, adapters, ...
        """
        return asked("steps", *_words(step))

    @tools.tool()
    def explain(step: dict[str, str | int | float]) -> dict[str, Any]:
        """What a training step's time consists of and which number of the machine drives it
        (elasticities), with memory of each stage.

        Args:
            step: columns as of predict, one layout in full.
        """
        return asked("predict", *_words(step), "--why")

    @tools.tool()
    def plan(
        model: str, system: str, gpus: int, batch: int = 0, seq: int = 0, top: int = 3
    ) -> dict[str, Any]:
        """The best layouts for training a model on GPUs: all legal ones that fit, ranked.

        Args:
            model: a name or file, as of fit_check.
            system: nodes and links (dgx_h100; see known "systems").
            gpus: how many.
            batch: sequences of a step; 0: chosen.
            seq: tokens of a sequence; 0: the model's own.
            top: how many layouts.
        """
        options = {"--shape": model, "--system": system, "--gpus": gpus, "--top": top}
        given = {"--batch": batch, "--seq": seq}
        return asked("plan", *_words(options | {name: n for name, n in given.items() if n}))

    @tools.tool()
    def serve(
        model: str, system: str, gpus: int = 8, isl: int = 1024, osl: int = 1024, sla: str = "",
        precision: str = "", top: int = 5,
    ) -> dict[str, Any]:  # fmt: skip
        """All ways to serve a model on some GPUs, ranked by tokens/s and GPU under limits of
        latency.

        Args:
            model: a name or file, as of fit_check.
            system: a device or system (h200, gb200).
            gpus: how many in all.
            isl: tokens of a prompt.
            osl: tokens of an answer.
            sla: limits, such as ttft=1s,tpot=30ms.
            precision: bf16, fp8, fp4, separated by commas; all that the GPU has if empty.
            top: how many deployments.
        """
        options = {
            "--shape": model, "--system": system, "--gpus": gpus, "--isl": isl, "--osl": osl,
            "--top": top,
        }  # fmt: skip
        given = {"--sla": sla, "--precision": precision}
        return asked("serve", *_words(options | {name: one for name, one in given.items() if one}))

    @tools.tool()
    def known(what: str) -> dict[str, Any]:
        """Names of "devices", "systems" or "models"; or what is known of one of them.

        Args:
            what: one of these three words, or a name.
        """
        if what not in ("devices", "systems", "models"):
            return asked("show", what)
        found = asked(what)[what]
        return {what: [*found] if isinstance(found, dict) else [one["id"] for one in found]}

    return tools


def _words(row: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in row.items()]
