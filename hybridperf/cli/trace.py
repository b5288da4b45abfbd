"""`hybridperf trace`: commands on recorded runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from hybridperf.cli import common
from hybridperf.cli.common import Out, named_in, names_in, times_in, warn, wrong

if TYPE_CHECKING:
    from hybridperf.traces.events import RankTrace
    from hybridperf.traces.replay import Replay
    from hybridperf.traces.steps import CommonStep
    from hybridperf.traces.what_if import Change

_NO_LAUNCHES = (
    "no launch is recorded: each kernel starts when it did, and what a change would save is not"
    " known; record CUDA calls, too"
)

app = typer.Typer(
    no_args_is_help=True, help="Read recorded runs (Kineto traces of PyTorch's profiler)."
)

_SLICES = 5000  # of a timeline on a page; more are merged

Files = Annotated[list[Path], Argument()]
_FROM_MODEL = "model of the device that the trace was recorded on"


def summary(
    files: Files,
    steps: Annotated[str, Option("--step", "--steps")] = "",
    out: Path | None = None,
    host: Path | None = None,
    communication: str = "",
    html: Path | None = None,
) -> None:
    """Where the time of each step and rank went: computation, communication, idle; top ops."""
    from hybridperf.hardware import HOST_FILE
    from hybridperf.io import write_table
    from hybridperf.traces import tables
    from hybridperf.traces.overheads import fit_host
    from hybridperf.traces.steps import common_steps
    from hybridperf.traces.summary import summaries, table, top_kernels, top_ops, worst

    common.keep_files(
        {"--out": out, "--html": html, **common.inside(host, [HOST_FILE], "--host")}, files
    )
    traces = _read(files, communication)
    chosen = choose_steps(common_steps(traces), steps)
    found = summaries(traces, [step.steps for step in chosen])
    notes = [
        f"rank {trace.rank}: {note}" if len(traces) > 1 and trace.rank is not None else note
        for trace in traces
        for note in trace.notes
    ]
    for step, summed in zip(chosen, found, strict=True):
        notes += [step.note, *summed.matched.notes]
    warn(*dict.fromkeys(filter(None, notes)))
    rows = table(found)
    every = [*traces] * len(chosen), [one for step in chosen for one in step.steps]
    if out:
        write_table(rows, out)
    ops, kernels = top_ops(*every), top_kernels(*every)
    common.result(steps=rows, ops=ops, kernels=kernels)
    overheads = None
    if host:
        by_trace = [[step.steps[at] for step in chosen] for at in range(len(traces))]
        overheads = fit_host(traces, by_trace)
        overheads.save(host)
    lost = tables.losses(worst(found), ranks_known=traces[0].rank is not None)
    of_ops = tables.titled("top ops by device time", ops)
    of_kernels = tables.titled("top kernels", kernels)
    _print(tables.steps(rows), tables.idle(rows), lost, of_ops, of_kernels)
    if out:
        print(f"{len(rows)} rows in {out}")
    if overheads and host:
        _print(tables.host(overheads))
        print(f"host overheads in {host / HOST_FILE}")
    if html:
        common.result(notes=notes, timeline=tables.slices(traces, chosen, _SLICES))


def _print(*tables: str) -> None:
    """Print those that have rows."""
    print(*filter(None, tables), sep="\n")


def _read(files: "Sequence[Path]", communication: str) -> "tuple[RankTrace, ...]":
    """The ranks' traces; kernels whose names match `communication` communicate, too."""
    import re

    from hybridperf.traces.readers.kineto import read_traces

    try:
        pattern = re.compile(communication)
    except re.error as error:
        expected = "expected a regular expression at --communication"
        raise wrong(f"{expected}, got {communication!r}: {error}") from error
    traces = read_traces(files)
    return tuple(one.with_communication(pattern) for one in traces) if communication else traces


def choose_steps(common: "Sequence[CommonStep]", names: str) -> "list[CommonStep]":
    """The steps with these names or numbers, separated by commas; all where none is given."""
    from hybridperf.io import unknown

    by_name = {step.name: step for step in common}
    full = [f"ProfilerStep#{name}" if name.isdecimal() else name for name in names_in(names)]
    for name in full:
        if name not in by_name:
            known = ", ".join([*list(by_name)[:8], *(["..."] if len(by_name) > 8 else [])])
            raise unknown("step", name, by_name, f"there are {known}")
    return [by_name[name] for name in full] if full else list(common)


def replay(
    files: Files,
    step: str = "",
    device: str = "",
    model: str = "",
    from_model: str = "",
    links: str = "",
    from_links: str = "",
    faster: list[str] | None = None,
    overlap_slowdown: float = 1.0,
    ranks: Annotated[int, Option(min=0)] = 0,
    scaling: str = "",
    communication: str = "",
    out: Path | None = None,
) -> None:
    """A recorded step replayed: does its time match, what limits it, what if something changed. Of
    ops without times (an execution trace, a Chakra graph): what the step takes on `--model`.
    """
    if model and not from_model and _without_times(files):
        others = {
            "--step": step, "--device": device, "--from-links": from_links, "--faster": faster,
            "--overlap-slowdown": overlap_slowdown != 1.0, "--scaling": scaling,
            "--communication": communication,
        }  # fmt: skip
        if set_ := [option for option, value in others.items() if value]:
            has = "it has no times of its own"
            raise wrong(
                f"expected {files[0]} with --model, --links and --ranks, got {set_[0]}: {has}"
            )
        from hybridperf.cli.predict import predict

        predict(trace=files[0], model=model, system=links, gpus=ranks or 1, timeline=out)
        return
    from hybridperf.traces import perfetto, tables, what_if
    from hybridperf.traces import replay as replays
    from hybridperf.traces.steps import common_steps

    _checked_options(device, model, from_model, links, from_links, ranks, scaling)
    if out:
        _checked_timeline(out, files)
    wanted = [*named_in(faster or [], "--faster OP=TIMES", "'aten::addmm=2'", times_in).items()]
    traces = _read(files, communication)
    names = [one.name for one in choose_steps(common_steps(traces), step)] if step else [None]
    if out and len(names) > 1:
        of_one = "a file holds the timeline of one"
        raise wrong(f"expected one step with --out, got {len(names)}: {of_one}")

    def changed(before: "Replay") -> what_if.WhatIf:
        changes = [what_if.faster(before, pattern, times) for pattern, times in wanted]
        if ranks:
            from hybridperf.collectives.model import collectives_of
            from hybridperf.traces.other_device import recorded_on
            from hybridperf.traces.other_ranks import other_ranks

            old = collectives_of(from_links)
            new = collectives_of(links) if links else old
            changes += [
                other_ranks(before, ranks, scaling, (old, new), recorded_on(before, from_model))
            ]
        elif links:
            changes += _other_links(before, links, from_links)
        changes += _other_device(before, device, model, from_model) if device or model else []
        return what_if.what_if(before, changes, overlap_slowdown)

    measured = [replays.replay(traces, name) for name in names]
    # where work of the step before is in the measured time, what the step itself takes is told by
    # several in a row
    alone = [replays.in_a_row(one) if replays.has_backlog(one) else one for one in measured]
    results = list(map(changed, alone))
    off = [note for both in zip(measured, alone, strict=True) for note in replays.off_notes(*both)]
    notes = [note for one in results for note in (*one.before.notes, *one.notes)]
    notes += [replays.backlog_note(one) for one in measured if replays.has_backlog(one)]
    notes += [_NO_LAUNCHES for one in measured if not one.launched]
    warn(*dict.fromkeys([*notes, *off]))
    what = [change.description for change in results[0].changes]
    what += [f"x{overlap_slowdown:g} under collectives"] if overlap_slowdown != 1.0 else []
    common.result(steps=what_if.step_table(results, measured), changes=what)
    _print(tables.replayed(results, ", ".join(what), measured))
    for one, result in zip(measured, results, strict=True):
        of = f" in {one.steps[0].name}" if len(results) > 1 else ""
        if one.meetings:
            _print(tables.waits(one, of))
        after = what_if.critical_by_op(result.after) if what else None
        _print(tables.critical(what_if.critical_by_op(result.before), after, of))
        if one.launched:
            savings = what_if.best_savings(result.after)
            common.result(**{f"savings of {one.steps[0].name}": savings})
            _print(tables.savings(savings, of))
        if any(change.unknown for change in result.changes):
            _print(tables.unknown(result.changes, result.before.device_s, of))
    if out:
        one = measured[0]
        perfetto.write_replay((changed(one) if replays.has_backlog(one) else results[0]).after, out)
        print(f"timeline of {one.steps[0].name} in {out} (open it at https://ui.perfetto.dev)")


def export(
    files: Files,
    out: Out,
    step: str = "",
    communication: str = "",
) -> None:
    """A timeline of all ranks with arrows and critical path, for https://ui.perfetto.dev."""
    from hybridperf.io import InputError
    from hybridperf.traces import perfetto
    from hybridperf.traces.replay import replay_step
    from hybridperf.traces.steps import common_steps

    _checked_timeline(out, files)
    traces = _read(files, communication)
    replays = []
    for one in choose_steps(common_steps(traces), step):
        try:
            replays.append(replay_step(traces, one.steps))
        except InputError as error:  # a step without device work has no critical path to mark
            warn(str(error))
    perfetto.write_traces(traces, out, replays)
    events = sum(len(trace.host) + len(trace.device_events) for trace in traces)
    ranks = "1 rank" if len(traces) == 1 else f"{len(traces)} ranks"
    print(f"{events:,} events of {ranks} in {out} (open it at https://ui.perfetto.dev)")


def _checked_timeline(out: Path, files: list[Path]) -> None:
    if not out.name.lower().endswith((".json", ".json.gz")):
        expected = "expected a file ending in .json or .json.gz at --out"
        raise wrong(f"{expected}, got {out}; a timeline is JSON")
    common.keep_files({"--out": out}, files)


def _without_times(files: "Sequence[Path]") -> bool:
    """Whether a single file holds ops with their shapes and no times."""
    from hybridperf.io import InputError
    from hybridperf.traces.readers.files import trace_files
    from hybridperf.traces.readers.graphs import ENDINGS, recorded_graph

    if len(files) != 1:
        return False
    try:
        recorded_graph(next(trace_files(files[0], ENDINGS)))
    except InputError:  # who reads traces with times says what is wrong
        return False
    return True


def _checked_options(
    device: str, model: str, from_model: str, links: str, from_links: str, ranks: int, scaling: str
) -> None:
    if device and model:
        by = "--device NAME goes by datasheets, --model by calibrations"
        raise wrong(f"expected one of --device and --model, got both; {by}")
    if model and not from_model:
        raise wrong(f"expected --from-model with --model: the {_FROM_MODEL}")
    if from_model and not (device or model or ranks):
        raise wrong("expected --model with --from-model: the model of the device to ask about")
    if from_links and not (links or ranks):
        raise wrong("expected --links with --from-links: the system to ask about")
    if ranks and not (scaling and from_links):
        missing = "--from-links SYSTEM, where the trace was recorded"
        missing = missing if scaling else "--scaling weak (a batch each) or strong (one batch)"
        raise wrong(f"expected {missing}, with --ranks {ranks}")
    if scaling and not ranks:
        raise wrong(f"expected --ranks N with --scaling {scaling}: how many to scale to")


def _other_links(before: "Replay", links: str, from_links: str) -> "list[Change]":
    from hybridperf.collectives.model import collectives_of
    from hybridperf.traces.what_if import links_scaled, other_links

    try:
        times = float(links.removesuffix("x"))
    except ValueError:
        times = None
    if times is not None:
        if from_links:
            got = f"got {links}; a factor needs no system"
            raise wrong(f"expected --links SYSTEM with --from-links, {got}")
        return [links_scaled(before, times)]
    if not from_links:
        where = "where the trace was recorded; or a factor, such as 2x"
        raise wrong(f"expected --from-links SYSTEM with --links {links}: {where}")

    return [other_links(before, collectives_of(from_links), collectives_of(links))]


def _other_device(before: "Replay", device: str, model: str, from_model: str) -> "list[Change]":
    from hybridperf.hardware import load_device
    from hybridperf.model import PerfModel, model_or_datasheet
    from hybridperf.traces.other_device import other_device, recorded_on

    new = PerfModel.datasheet(load_device(device)) if device else model_or_datasheet(model)
    return [other_device(before, recorded_on(before, from_model), new)]


common.add_commands(app, summary, replay, export)
