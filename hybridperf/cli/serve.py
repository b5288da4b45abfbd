"""`hybridperf serve`: operating points of servers, predicted row by row, or with --shape the best
deployment of a model on some GPUs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import named_in, names_in, seconds_in, wrong
from hybridperf.cli.manner import printed

_OF_ROWS = ("rows", "out", "fit_on", "model", "save", "shape", "explain")
_DRAWN = 2000  # deployments on a page


def serve(
    rows: Annotated[Path | None, Argument()] = None,
    out: Path | None = None,
    fit_on: list[Path] | None = None,
    model: Path | None = None,
    save: Path | None = None,
    shape: str = "",
    system: str = "",
    device: str = "",
    gpus: int = 8,
    isl: int = 1024,
    osl: int = 1024,
    sla: str = "",
    framework: str = "",
    precision: str = "",
    drafted: Annotated[int, Option(min=0)] = 0,
    acceptance: float | None = None,
    cached_share: float = 0.0,
    prices: Path | None = None,
    requests: Path | None = None,
    trace: str = "",
    sessions: str = "",
    routing: str = "",
    host_cache: Annotated[float, Option(min=0)] = 0.0,
    nvme: Annotated[float, Option(min=0)] = 0.0,
    nvme_bandwidth: Annotated[float, Option(min=0)] = 0.0,
    top: int = 10,
    html: Path | None = None,
    why: bool = False,
    explain: bool = False,
) -> int:
    """Predict each row of a table of served models: time to first token, time per output token,
    throughput, memory. With --shape instead: all ways to serve a model on some GPUs, ranked by
    tokens a second and GPU under limits of latency, with their front, costs and launch commands;
    with --requests or --sessions also what recorded requests or tasks of several turns see of the
    best.

    Columns that are read; what is left out is assumed, and the note says so.
    Names that frameworks give them are read, too; a name that resembles one is refused:

    \b
    COLUMNS serve

    \b
    WRITTEN

    Columns of --requests:

    \b
    COLUMNS requests

    \b
    Lines of --sessions, a JSON object each:
      arrival_s       when the session comes; 0 if not given
      turns           list of new_tokens (of the prompt, beyond all that was said before),
                      output_tokens, pause_s (behind the answer before, or the arrival; 0 if not
                      given) and agents, sessions that start with the answer and that the next
                      turn waits for
      shared, shared_tokens    first tokens that all sessions of this name begin with
      inherits        of an agent: true where it begins with the context of its turn
      session_id      not read
    or distributions, as NAME=NUMBER, NAME=LOW..HIGH (uniform) or NAME=MEAN~SPREAD (log-normal,
    SPREAD the deviation of logs), separated by commas:
      turns, new_tokens, output_tokens, pause_s    as above
      rate or clients    sessions a second that come, or that many at a time
      count           sessions; 1,000 if not given
      fan_out, agent_turns    agents that a turn starts, 0 if not given, and their turns
      shared_tokens, seed     0 if not given
    """
    if not shape:
        if rows is None:
            raise common.wrong(
                "expected a table of rows, or --shape and --system, got none of them"
            )
        if option := common.first_given(serve, locals(), *_OF_ROWS):
            raise common.wrong(
                f"expected {option} with --shape, got it with a table of rows, whose columns say"
                " how they are served; leave it out"
            )
        return of_rows(rows, out, fit_on or [], model, save, explain)
    if rows is not None or save or explain:
        raise common.wrong(
            "expected --shape without rows, --save and --explain, got both; rows are predicted,"
            " shapes are deployed"
        )
    if not system:
        raise common.wrong("expected --system with --shape, such as h200, got none")
    if acceptance is not None and not drafted:
        raise wrong(f"expected --drafted with --acceptance {acceptance:g}, got none")
    of_shape(
        shape, system, device, gpus, isl, osl, sla, framework, precision,
        drafted, acceptance, cached_share, prices, top, out, html, requests, trace, fit_on or [],
        model, why, sessions, routing, (host_cache, nvme, nvme_bandwidth),
    )  # fmt: skip
    return 0


def of_rows(
    rows: Path, out: Path | None, fit_on: list[Path], model: Path | None, save: Path | None,
    explain: bool = False,
) -> int:  # fmt: skip
    """A table, predicted; the exit status."""
    import pandas as pd

    from hybridperf.io import read_table
    from hybridperf.serving.frames import predict_serving
    from hybridperf.serving.table import saved

    if save and not fit_on:
        raise common.wrong(
            "expected --fit-on ROWS with --save: without measured rows there is nothing to save"
        )
    common.table_ready(out, [rows, *fit_on])
    frame = read_table(rows)
    common.compilation_cache()
    fit = _fit(fit_on, model)
    predicted = predict_serving(frame, fit=fit, explain=explain)
    if save:
        measured = pd.concat([read_table(path) for path in fit_on], ignore_index=True)
        print(f"a model of {saved(save, fit, measured)} with these effects in {save}")
    return common.say_predicted(predicted, out, "predicted_ttft_s")


def _fit(fit_on: Sequence[Path], model: Path | None) -> Any:
    """Effects of measured rows or of a model's folder; None without either."""
    import pandas as pd

    from hybridperf.io import read_table
    from hybridperf.serving.fit import ServingFit
    from hybridperf.serving.table import fit_of

    if fit_on and model:
        raise wrong("expected --fit-on ROWS or --model FOLDER, got both; give one of them")
    if fit_on:
        measured = pd.concat([read_table(path) for path in fit_on], ignore_index=True)
        found = fit_of(measured)
        if found.rows < len(measured):
            common.warn(
                f"fitted to {found.rows} of {len(measured)} measured rows: others have no seconds,"
                " are not understood or repeat one"
            )
        return found
    return ServingFit.load(model) if model else None


def of_shape(
    shape: str, system: str, device: str, gpus: int, isl: int, osl: int, sla: str, framework: str,
    precision: str, drafted: int, acceptance: float | None, cached_share: float,
    prices: Path | None, top: int, out: Path | None, html: Path | None,
    requests: Path | None = None, trace: str = "", fit_on: Sequence[Path] = (),
    effects: Path | None = None, why: bool = False, sessions: str = "", routing: str = "",
    lower: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> None:  # fmt: skip
    """Print all deployments, ranked; `hybridperf serve` has the arguments."""
    from hybridperf.engine.economy import economy
    from hybridperf.serving import open_loop
    from hybridperf.serving import rows as names
    from hybridperf.serving.deployment_latency import Question
    from hybridperf.serving.deployments import deployments, precisions
    from hybridperf.serving.function import deployment_elasticities
    from hybridperf.serving.machines import machine_of
    from hybridperf.serving.report import open_loop_report, serving_report, sessions_report
    from hybridperf.serving.table import unmeasured_note
    from hybridperf.workloads.serving import Deployment
    from hybridperf.workloads.transformer.zoo import load_shape

    for option, number in (("--gpus", gpus), ("--isl", isl), ("--osl", osl - 1), ("--top", top)):
        if number < 1:
            least, given = (2, number + 1) if option == "--osl" else (1, number)
            raise wrong(f"expected {option} of at least {least}, got {given}")
    files = [Path(one) for one in (shape, system, device) if one.endswith((".toml", ".json"))]
    read = Path(sessions) if sessions and "=" not in sessions else None
    common.table_ready(out, [*files, prices, requests, read, *fit_on], html=html)
    if trace and requests is None:
        raise wrong(f"expected --requests FILE with --trace {trace}, got none")
    if sessions and requests is not None:
        raise wrong("expected --requests or --sessions, got both; leave one of them out")
    recorded = _recorded(requests, trace) if requests else None
    prefixes = bool(sessions) or (recorded is not None and recorded.streams is not None)
    _check_caches(prefixes, routing, lower)
    tasks = _sessions(sessions) if sessions else None
    if why and (fit_on or effects):
        raise wrong("expected --why without --fit-on and --model, got both; leave one of them out")
    limits = _limits(sla)
    notes: list[str] = []
    machine = machine_of(system, device)
    known = names.known_framework(framework, notes)
    model, sizes = machine.load(), load_shape(names.named_model(shape)[0])
    schemes = names.schemes_of(shape, names_in(precision) or precisions(model), machine)
    common.compilation_cache()
    asked = Question(
        sizes, model, gpus, isl, osl, known, limits.get("ttft", float("inf")),
        limits.get("tpot", float("inf")), schemes, cached_share, drafted,
        names.ACCEPTANCE if acceptance is None else acceptance, machine.all_reduce,
        _fit(fit_on, effects), machine.device,
    )  # fmt: skip
    if recorded is not None:
        asked = open_loop.with_lengths_of(asked, recorded)
    if tasks is not None:
        asked = open_loop.with_sessions(asked, tasks)
    rates = economy(model.device, prices)
    found = deployments(asked, rates)
    bare = "" if model.measured.families else unmeasured_note(model.device.id)
    whose: list[str] = []  # effects, of engines that do all and of those apart
    if asked.fit:
        engine = Deployment(sizes)
        whose = [asked.fit.note_of(asked.row(engine, apart=one)) for one in (False, True)]
    notes += [one for one in (*whose, machine.note, bare, *rates.notes) if one]
    limit = f", {sla}" if sla else ""
    lengths = f"{asked.prompt} + {asked.output} tokens"
    head = f"{sizes.name}: {lengths} on {gpus} x {model.device.name}{limit}"
    drawn = max(top, _DRAWN) if html else top
    common.result(deployments=found[found["front"] | (found.index < drawn)])
    if printed():
        fitted = asked.fit.rows if asked.fit else 0
        print(serving_report(found, head, shape, top, rates.money, notes, fitted))
    if recorded is not None:
        best = found.iloc[0].to_dict()
        served = open_loop.served_openly(asked, best, recorded, routing or "prefix_aware", lower)
        common.result(open_loop=served.percentiles())
        if recorded.streams is not None:
            common.result(hits=served.hits())
        print("\n" + open_loop_report(served))
    if tasks is not None:
        done = open_loop.served_sessions(
            asked, found.iloc[0].to_dict(), tasks, routing or "prefix_aware", lower
        )
        common.result(sessions=done.summary(), turns=done.by_turn())
        print("\n" + sessions_report(done))
    if why:
        place, drives = deployment_elasticities(asked, found)
        print(f"\nof deployment {place + 1}, the best whose engines do all:")
        common.result(elasticities_of=found.iloc[[place]])
        common.say_elasticities(drives)
    common.table_written(found, out, f"\n{len(found)} deployments, the best first, in")


def _recorded(path: Path, trace: str) -> Any:
    """Requests of a table, or of lines of JSON that say which blocks prompts share."""
    from hybridperf.io import read_table
    from hybridperf.serving.hashed_requests import read_hashed
    from hybridperf.serving.open_loop import recorded

    if path.suffix != ".jsonl":
        return recorded(read_table(path), trace)
    if trace:
        raise wrong(f"expected --trace with a table of traces, got {path.name}; leave it out")
    return read_hashed(path)


def _check_caches(prefixes: bool, routing: str, lower: tuple[float, float, float]) -> None:
    """Words of caches of prefixes, where there are any."""
    from hybridperf.serving.batching import ROUTINGS

    if not prefixes and (routing or any(lower)):
        raise wrong(
            "expected --sessions, or --requests with hash_ids, with --routing, --host-cache and"
            " --nvme, got none; caches of prefixes are theirs"
        )
    if routing and routing not in ROUTINGS:
        raise wrong(f"expected --routing of {', '.join(ROUTINGS)}, got {routing!r}")
    if bool(lower[1]) != bool(lower[2]):
        raise wrong("expected --nvme and --nvme-bandwidth together, got one of them")


def _sessions(told: str) -> Any:
    """Sessions of a file or of distributions."""
    from hybridperf.serving.sessions import drawn_sessions, read_sessions, requests_of

    if "=" in told:
        words = named_in(names_in(told), "--sessions NAME=VALUE", "turns=12,rate=2", str.strip)
        return requests_of(*drawn_sessions(words))
    return requests_of(read_sessions(told))


def _limits(sla: str) -> dict[str, float]:
    """Seconds by what is limited."""
    from hybridperf.io import unknown

    found = named_in(names_in(sla), "--sla", "ttft=1s,tpot=30ms", seconds_in)
    for name in found:
        if name not in ("ttft", "tpot"):
            raise unknown("limit", name, ("ttft", "tpot"), "known are ttft, tpot")
    return found
