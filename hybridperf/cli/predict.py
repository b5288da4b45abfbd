"""`hybridperf predict`: one step of a program or of a trace."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from hybridperf.cli import common
from hybridperf.cli.common import named_in, times_in, wrong

if TYPE_CHECKING:
    from hybridperf.collectives.model import CollectiveModel
    from hybridperf.engine.prediction import Prediction
    from hybridperf.engine.workload import Workload
    from hybridperf.hardware import DeviceSpec
    from hybridperf.training.steps.as_graph import StepGraph
    from hybridperf.workloads.programs.torch.capture import Captured

_SLICES = 2500  # of a timeline in JSON; more are merged
_EXPLAINED = 8  # ops
_MADE = "(fn, args) or (fn, args, donate_argnums)"
_TAKES_TORCH = "--torch module:function or a SCRIPT.py"
# Transformers attends by `scaled_dot_product_attention` unless told otherwise
_HF_ATTENTION = {"attention": "fused", "attention_kernel": "sdpa"}
_MADE_TORCH = "(module or fn, args) or (module or fn, args, optimizer)"


def predict(
    row: Annotated[
        list[str] | None, Argument(metavar="[SCRIPT.py [WORD]... | NAME=VALUE...]")
    ] = None,
    jax: str = "",
    torch: str = "",
    compiled: bool = False,
    gpus: int = 1,
    program: Path | None = None,
    trace: Path | None = None,
    export: Path | None = None,
    hf: Path | None = None,
    batch: int = 1,
    seq: int | None = None,
    model: str = "here",
    system: str = "",
    ignore: str = "",
    out: Path | None = None,
    timeline: Path | None = None,
    html: Path | None = None,
    plot: Path | None = None,
    measure: bool = False,
    cores: str | None = None,
    why: bool = False,
    knob: list[str] | None = None,
) -> None:
    """Time of one step of a PyTorch or JAX program, of a training script, of one that a trace
    recorded op by op, or of a training step in words.
    """
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.engine.prediction import predict as predict_step
    from hybridperf.model import model_or_datasheet
    from hybridperf.report.prediction import prediction_report, roofline
    from hybridperf.report.text import seconds
    from hybridperf.traces import perfetto
    from hybridperf.traces.readers.graphs import recorded_step
    from hybridperf.training.steps.as_graph import step_graph
    from hybridperf.workloads.programs.jax.lowered import lower_program
    from hybridperf.workloads.programs.jax.program import (
        compile_program,
        from_program,
        load_program,
    )

    files_read = {"--export": export, "--hf": hf, "--program": program, "--trace": trace}
    script, row = (row, None) if row and row[0].endswith(".py") else (None, row)
    given = script[0] if script else next((one for one, file in files_read.items() if file), "")
    kinds = (row, script, jax, torch, *files_read.values())
    count = sum(map(bool, kinds))
    if count != 1:
        options = "SCRIPT.py, --torch or --jax module:function, --export, --hf, --program and"
        options += " --trace FILE, and a row of NAME=VALUE"
        raise wrong(f"expected one of {options}, got {count or 'none'} of them")
    for option, set_, needs in (
        ("--gpus", gpus != 1, torch or trace or script),
        ("--compiled", compiled, torch or export or hf or script),
        ("--batch", batch != 1, hf),
        ("--seq", seq is not None, hf),
        ("--knob", knob, row),
    ):
        if set_ and not needs:
            takes = "--hf CONFIG.json" if option in ("--batch", "--seq") else _TAKES_TORCH
            takes = "a row of NAME=VALUE" if option == "--knob" else takes
            raise wrong(f"expected {takes} with {option}, got another kind of step")
    if measure and given:
        needs = "--jax or --torch module:function with --measure"
        raise wrong(f"expected {needs}, got {given}: it runs the step")
    if script:
        files_read["SCRIPT.py"] = Path(script[0])
    common.table_ready(out, files_read.values(), timeline=timeline, html=html, plot=plot)
    common.compilation_cache()
    if row and (model != "here" or system or ignore or measure):
        its = "gpu=NAME, system=NAME say its machine"
        raise wrong(f"expected no --model, --system, --ignore or --measure with a row: {its}")
    step = step_graph(*row) if row else None
    loaded = step.prediction.model if step else model_or_datasheet(model)
    if system:
        loaded = loaded.with_collectives(collectives_by_name(system))
    skip = [name for name in ignore.split(",") if name]
    fabric = loaded.collectives
    node = {"gpus_per_node": fabric.system.accelerators_per_node} if fabric else {}
    if measure and loaded.device.kind != "cpu":
        raise wrong(
            f"expected a model of this machine with --measure, got {model}: it runs the step here"
        )
    captured = None
    if step:
        workload = step.prediction.workload
    elif script:
        captured, workload = script_step(
            script, loaded.device, ranks=gpus, ignore=skip, compiled=compiled, **node
        )
    elif program:
        workload = load_program(program, ignore=skip)
    elif trace:
        own = fabric or _usual_links(loaded.device)
        workload = recorded_step(
            trace, skip, system=own.system if own else None, ranks=gpus if gpus > 1 else 0
        )
        if own and not fabric:
            loaded = loaded.with_collectives(own)
            said = f"no system given (`--system`): links of {own.system.id}"
            workload = dataclasses.replace(workload, notes=(*workload.notes, said))
    elif export:
        from hybridperf.workloads.programs.torch.exported import from_exported

        workload = from_exported(export, ignore=skip, compiled=compiled, backend=loaded.device.kind)
    elif hf:
        workload = published_step(hf, batch=batch, seq=seq, compiled=compiled, device=loaded.device)
    elif torch:
        workload = torch_step(
            torch, ranks=gpus, ignore=skip, compiled=compiled, backend=loaded.device.kind, **node
        )
    else:
        measured_on = loaded.device.multiprocessors
        if loaded.device.kind == "cpu" and measured_on and hasattr(os, "sched_setaffinity"):
            # those that the model was measured on: XLA splits work by the cores that it sees
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:measured_on])
        fn, args, donate = jax_program(jax)
        with code_of(jax):
            if loaded.device.kind == "cpu":
                content = compile_program(fn, *args, donate_argnums=donate, name=jax)
            else:  # which is not here
                device = loaded.device
                content = lower_program(fn, *args, device=device, donate_argnums=donate, name=jax)
        workload = from_program(content, ignore=skip, **node)
    result = step.prediction if step else predict_step(loaded, workload)
    print(prediction_report(result))
    if captured:
        from hybridperf.workloads.programs.torch.estimate import Estimate

        estimate = Estimate((result,), captured, 0.0)
        print(f"\n{estimate.summary()}\n\n{estimate.modules_text()}")
        common.result(
            peak_bytes=estimate.peak_bytes, chance_fits=estimate.chance, modules=estimate.tree()
        )
    common.result(
        time_s=result.time_s, low_s=result.low_s, high_s=result.high_s,
        roofline_s=result.roofline_s, in_range=result.in_range, notes=result.notes,
        breakdown=result.breakdown(),
    )  # fmt: skip
    if why or html:
        _explained(result, step)
    if html:
        kinds = roofline(result)
        common.result(roofline=kinds, bandwidth_bytes_per_s=loaded.device.memory_bytes_per_s)
    if step and knob:
        option = "--knob NAME=TIMES"
        times = named_in(knob, option, "memory_bytes_per_s=1.2", times_in)
        changed_s = step.what_if(times)
        common.result(what_if={"time_s": changed_s, "times": times})
        words = ", ".join(f"{name} x {factor:g}" for name, factor in times.items())
        print(f"with {words}: {seconds(changed_s)}, {changed_s / result.time_s:.3f} of the time")
    if measure:
        from hybridperf.validate.measured_steps import StepComparison, table
        from hybridperf.validate.measured_steps import measure as measured

        both = StepComparison(
            measured(jax or torch, cores=cores, library="jax" if jax else "torch"), result
        )
        print(f"\n{table([both])}")
        common.result(measured=both.record())
    if out:
        common.table_written(result.ops(), out, "every op in")
    if timeline:
        perfetto.write_timeline(result, timeline)
        print(f"timeline in {timeline} (open it at https://ui.perfetto.dev)")
    if plot:
        from hybridperf.report.plots import step_plot

        step_plot(result, plot)
        print(f"picture in {plot}")


def _usual_links(device: "DeviceSpec") -> "CollectiveModel | None":
    """Collectives of the system that rows of tables with such a GPU are taken to be of."""
    from hybridperf.collectives.fit import collectives_by_name
    from hybridperf.hardware.machines import machine
    from hybridperf.io import InputError

    if device.kind != "gpu":
        return None
    try:
        return collectives_by_name(machine("", "", device.id).system.id)
    except InputError:  # a device of the user's own file
        return None


def _explained(result: "Prediction", step: "StepGraph | None") -> None:
    """What drives the time: elasticities; of a training step also memory and what runs when."""
    from hybridperf.engine.elasticities import elasticities
    from hybridperf.report.prediction import critical_seconds, explained, slices
    from hybridperf.report.text import seconds

    drives = step.elasticities if step else elasticities(result)
    print("\nd log time / d log of each number of the machine:")
    print(drives.head(12).to_string(index=False))
    longest = explained(result, _EXPLAINED)
    print("\nthe ops that take longest, and why one takes as long (without what a step adds):")
    for one in longest.itertuples():
        print(f"  {seconds(one.seconds)}, {one.times:,.6g} times {one.op}\n    {one.price}")
    by_group, launches_s = critical_seconds(result)
    path = sorted({**by_group, "launches": launches_s}.items(), key=lambda one: -one[1])
    critical = [{"what": what, "seconds": of} for what, of in path if of > 0]
    common.result(
        elasticities=drives, explained=longest, timeline=slices(result, _SLICES),
        critical=critical, nodes=len(result.workload.graph),
    )  # fmt: skip
    if step:
        held = step.memory()
        print(f"\nbytes on a rank of each stage:\n{held.to_string()}")
        money = step.money()
        if money["usd"] is not None:
            each = f"{money['usd_per_million_tokens']:.3g} USD per million tokens"
            print(f"\nmoney: {money['usd']:.3g} USD a step, {each} ({money['note']})")
        common.result(memory=held, memory_bytes=result.model.device.memory_bytes, layout=step.note,
                      money=money)  # fmt: skip


def torch_step(reference: str, *, ranks: int = 1, **options: Any) -> "Workload":
    """The step of `module:function`, whose tensors have no memory from the beginning.

    Args:
        reference: "module:function".
        ranks: of its process group.
        options: of `from_torch`.
    """
    from hybridperf.workloads.programs.torch.fakes import without_memory
    from hybridperf.workloads.programs.torch.program import from_torch

    with without_memory(ranks):
        fn, args, *optimizer = made_by(reference, "--torch", _MADE_TORCH)
        with code_of(reference):
            made = (*optimizer, None)[0]
            return from_torch(fn, *args, optimizer=made, name=reference, **options)


def script_step(
    words: list[str], device: Any, *, ranks: int, **options: Any
) -> "tuple[Captured, Workload]":
    """The step of a training script, a file with its own arguments.

    Args:
        words: the script and what it is given.
        device: what it is to run on.
        ranks: of its process group.
        options: of `from_torch`.
    """
    from hybridperf.workloads.programs.torch.program import workload_of
    from hybridperf.workloads.programs.torch.script import captured_script

    if device.kind != "gpu":
        raise wrong(
            f"expected --model of a GPU with a script, got {device.id}, a {device.kind}; --torch"
            " module:function is for those"
        )
    with code_of(words[0]):
        captured = captured_script(words[0], words[1:], ranks, device=device)
    return captured, workload_of(captured, **options)


def published_step(
    config: Path, *, batch: int, seq: int | None, compiled: bool, device: Any
) -> "Workload":
    """A training step of a Transformer by its sizes, on one device, as PyTorch runs it; by its own
    code where sizes do not tell.
    """
    from hybridperf.io import InputError
    from hybridperf.workloads.programs.torch.published import published_program
    from hybridperf.workloads.transformer.config import TransformerConfig
    from hybridperf.workloads.transformer.framework import framework_of_programs
    from hybridperf.workloads.transformer.layout import Layout
    from hybridperf.workloads.transformer.step import transformer
    from hybridperf.workloads.transformer.zoo import is_config_file, load_shape

    try:
        shape = load_shape(config)
    except InputError:
        if not is_config_file(config):
            raise
        return published_program(config, batch=batch, seq=seq, compiled=compiled)
    shape = shape.replace(seq=seq) if seq is not None else shape
    framework, attends = framework_of_programs(compiled), {} if compiled else _HF_ATTENTION
    layout = Layout(micro_batch=batch)
    made = transformer(TransformerConfig.run_by(framework, shape, layout, device=device, **attends))
    notes = (*made.notes, *([shape.note] if shape.note else []))
    return dataclasses.replace(made, notes=notes)


def jax_program(reference: str) -> tuple:
    """`module:function` called without arguments: (fn, args, donate_argnums)."""
    made = made_by(reference, "--jax", _MADE)
    return made if len(made) == 3 else (*made, ())


def made_by(reference: str, option: str, expected: str) -> tuple:
    """What `module:function` returns, called without arguments."""
    import importlib
    import inspect

    from hybridperf.io import InputError

    module_name, _, function_name = reference.partition(":")
    if not function_name:
        raise wrong(f"expected {option} module:function, got {reference!r}")
    sys.path.insert(0, os.getcwd())
    try:
        with code_of(reference):
            module = importlib.import_module(module_name)
    except InputError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        # the module itself, not one that it imports
        if missing and f"{module_name}.".startswith(f"{missing}."):
            failed = f"cannot import {module_name!r} for {option} ({cause})"
            raise wrong(f"{failed}; run where Python finds it") from error
        raise
    make = getattr(module, function_name, None)
    if not callable(make):
        raise wrong(
            f"{module_name} has no function {function_name!r}; {option} takes module:function"
        )
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:  # ValueError: built in, without a signature
        raise wrong(f"{reference} must take no arguments and return {expected}: {error}") from error
    with code_of(reference):
        made = make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not callable(made[0]):
        raise wrong(f"{reference} must return {expected}, got {type(made).__name__}")
    return made


@contextlib.contextmanager
def code_of(reference: str) -> Iterator[None]:
    """Turn what the user's own code raises into a sentence that names it and its line."""
    from hybridperf.io import InputError, first_line

    try:
        yield
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {first_line(error)}{_line_of(error)}"
        raise wrong(f"{reference} raised {what}; --debug shows all of it") from error


def _line_of(error: BaseException) -> str:
    """` (in FILE line N)`: the innermost line that is neither ours nor an installed package's."""
    from hybridperf.workloads.own import line_of

    where = line_of(error)
    if isinstance(error, SyntaxError):
        where = f"{error.filename} line {error.lineno}"
    return f" (in {where})" if where else ""
