"""What is mutated: every file that people give us, arguments, and saved models, each with what
reads it. `benchmarks/fuzz.py` runs them, `tests/fuzz` a slice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import functools
import io
import json
import os
import random
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support import mutations
from support.damaged_traces import documents, trimmed

import hybridperf as hp
from hybridperf.io import InputError, read_table

ROOT = Path(__file__).parent.parent.parent

OPS = """op,dtype,m,n,k,batch,rows,cols,note,time_s,device
gemm,fp16,128,4096,4096,,,,,3.1e-5,v100_sxm2
gemm,fp32,512,1024,1024,,,,,1.2e-4,v100_sxm2
bmm,fp16,128,128,64,96,,,,2.2e-5,v100_sxm2
softmax,fp16,,,,,4096,1024,,3e-5,v100_sxm2
layernorm,fp16,,,,,4096,1024,,2e-5,v100_sxm2
add,fp16,,,,,1048576,1,,1e-5,v100_sxm2
"""
COLLECTIVES = """collective,bytes,n_gpus,n_nodes,time_s,lib,lib_version,dtype,in_place
all_reduce,1048576,8,1,4.1e-5,nccl,2.18.3,float,0
all_gather,1e6,16,2,9e-5,nccl,,half,1
alltoall,65536,8,1,3e-5,nccl,2.18.3,float,0
broadcast,4096,4,1,2e-5,,,,
"""
STEPS = """id,model,framework,gpu,n_gpus,tp,pp,dp,micro_batch,global_batch,seq,precision,recompute,step_time_s
a,llama2-7b,megatron_core,A100-80GB,8,2,1,4,1,64,4096,bf16,none,9.1
b,gpt3-175b,megatron_core,A100-80GB,64,8,8,1,1,64,2048,bf16,full,31
c,llama2-7b,fsdp,A100-80GB,16,1,1,16,2,64,2048,bf16,selective,4.4
"""
TABLES = """name,rows,dim,pooling,dtype,exponent,shift
users,1000000,64,1,fp32,1.05,2.7
items,20000000,128,20,fp16,,
words,50000,32,4.5,fp32,0.8,
"""
CONFIG = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "intermediate_size": 11008, "vocab_size": 32000, "torch_dtype": "bfloat16",
    "num_key_value_heads": 8, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
}  # fmt: skip
SHAPE = """
[llama2-7b]
family = "llama"
hidden = 4096
heads = 32
layers = 32
ffn = 11008
vocab = 32000
seq = 4096
gated = true
tied = false
positions = "rotary"
norm = "rmsnorm"
biases = false
published = "6738415616"
source = "Llama 2 (2307.09288); weights on the Hugging Face hub"
aliases = ["llama-2-7b"]
"""
SYSTEM = """
[dgx2]
description = "DGX-2: 16x V100 on 12 NVSwitches + 8x EDR"
accelerator = "V100-SXM3-32GB"
accelerators_per_node = 16
intra_link = "NVLink2+NVSwitch"
intra_bytes_per_s = 150e9  # 150 GB/s
in_network_reduction = false
host_link = "PCIe3 x16"
host_link_bytes_per_s = 16e9
nic = "IB EDR 100Gb/s"
nics_per_node = 8
nic_bytes_per_s = 12.5e9
node_bytes_per_s = 100e9
latency_s = 1e-05  # a prior: aiconfigurator p2p_latency (b60 2us measured; others 10us placeholder)
source = "pcper.com 2018/03 on the DGX-2 (16 GPUs on NVSwitch at 300 GB/s both directions, eight EDR NICs)"
confidence = "news page read; PCIe RECALLED not fetched"
"""
NCCL_LOG = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
# Using devices
#  Rank  0 Group  0 Pid   4000 on      node1 device  0 [0x00] NVIDIA H100
#  Rank  1 Group  0 Pid   4001 on      node1 device  1 [0x01] NVIDIA H100
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    40.50   25.89   25.89      0    41.50   25.27   25.27      0
     2097152        524288     float     sum      -1    60.50   34.66   34.66      0    61.50   34.10   34.10      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 12.3
"""
PARAM_LOG = """\t MPI environment: {'world_size': 16, 'local_size': 8, 'global_rank': 0, 'local_rank': 0}
\t backend: nccl nw-stack: pytorch-dist mode: comms args.dtype: torch.float32 args.b: 8 args.e: 64 args.f: 2

\tCOMMS-RES          size (B)  nElementsPerRank    Latency(us):p50               p75               p95               Min               Max       AlgBW(GB/s)       BusBW(GB/s)
\tCOMMS-RES-all_reduce           1048576            262144        40.5        41.0        42.5        39.5        43.0         25.891      48.545
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """Something that reads: `make` writes a mutation into a folder, or without a generator what is
    whole; `read` reads it and raises.
    """

    make: Callable[[Path, random.Random | None], Any]
    read: Callable[[Any], Any]


def of_files(
    texts: dict[str, str], mutate: Callable[[str, random.Random], str], read: Callable[[Path], Any]
) -> Target:
    """A target of one file, any of some by name."""

    def make(folder: Path, rng: random.Random | None) -> Path:
        name = rng.choice(sorted(texts)) if rng else min(texts)
        text = mutate(texts[name], rng) if rng else texts[name]
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
        return folder / name

    return Target(make, read)


def of_tables(text: str, read: Callable[[Path], Any]) -> Target:
    """A target of a table, as CSV or packed."""

    def make(folder: Path, rng: random.Random | None) -> Path:
        path = folder / "rows.csv"
        changed = mutations.mutated_csv(text, rng) if rng else text
        path.write_bytes(changed.encode("utf-8", "surrogatepass"))
        if rng is None or (kind := rng.randrange(8)) > 1:
            return path
        packed = folder / ("rows.csv.gz", "rows.parquet")[kind]
        try:
            frame = read_table(path)
            frame.to_csv(packed, index=False) if kind == 0 else frame.to_parquet(packed)
        except (ValueError, TypeError, OverflowError):  # of pandas and pyarrow
            return path
        if rng.random() < 0.7:
            packed.write_bytes(mutations.mutated_bytes(packed.read_bytes(), rng))
        return packed

    return Target(make, read)


def of_model(saved: Callable[[Path], None], read: Callable[[Path], str]) -> Target:
    """A target of a saved folder, of which `read` tells a fingerprint."""
    home = Path(tempfile.mkdtemp(prefix="hybridperf-fuzz-"))
    saved(home)
    known = read(home)

    def make(folder: Path, rng: random.Random | None) -> Path:
        model = folder / "model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(home, model)
        if rng is None:
            return model
        path = rng.choice(sorted(model.iterdir()))
        if path.suffix == ".json":
            text = mutations.mutated_json(path.read_text(), rng)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        elif rng.random() < 0.5:
            path.write_bytes(mutations.mutated_bytes(path.read_bytes(), rng))
        else:
            arrays = dict(np.load(path))
            name = rng.choice(sorted(arrays))
            arrays[name] = _changed(arrays[name], rng)
            np.savez(path, **arrays)
        return model

    def check(model: Path) -> None:
        if read(model) != known:
            raise ChangedNumber("another fingerprint")

    return Target(make, check)


class ChangedNumber(Exception):
    """A file that has a checksum was read with other numbers."""


def _changed(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """Another type over the same bytes, another order, another number, or another shape."""
    kind = rng.randrange(4)
    if kind == 0 and array.dtype.itemsize in (4, 8) and array.ndim:
        return array.view({4: np.int32, 8: np.int64}[array.dtype.itemsize])
    if kind == 1 and array.ndim > 1:
        return array.T
    if kind == 2 and array.size:
        other = array.copy()
        other.flat[rng.randrange(array.size)] += 1
        return other
    return array.reshape(-1)[: max(array.size - 1, 0)]


def of_arguments(commands: list[list[str]]) -> Target:
    """A target of command lines: an argument replaced, dropped or doubled."""
    from hybridperf.cli import app

    tables = {"ops": OPS, "coll": COLLECTIVES, "steps": STEPS, "tables": TABLES}

    def make(folder: Path, rng: random.Random | None) -> list[str]:
        for name, text in tables.items():
            (folder / f"{name}.csv").write_text(text)
        command = list(rng.choice(commands) if rng else commands[0])
        at = rng.randrange(len(command) > 1, len(command)) if rng else 0
        kind = rng.randrange(6) if rng else None
        if kind == 0:
            del command[at]
        elif rng and kind == 1:
            command[at:at] = [command[at]] * rng.choice([1, 2])
        elif rng:
            odd = mutations.written(rng.choice(mutations.ODD)).replace("\x00", "")
            command[at] = mutations.mutated_text(command[at], rng) if kind == 2 else odd
        named = [one.replace("HERE", str(folder)) for one in command]
        return [one.encode(errors="replace").decode().replace("\x00", "") for one in named]

    def read(command: list[str]) -> None:
        said = io.StringIO()
        home = os.getcwd()
        os.chdir(tempfile.gettempdir())
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                app.main(command)
        except SystemExit as ended:
            if ended.code not in (0, 2, 3):
                raise AssertionError(
                    f"exit status {ended.code}: {said.getvalue()[-300:]}"
                ) from None
        finally:
            os.chdir(home)
        for mark in ("hybridperf: unexpected ", "Traceback"):
            if mark in said.getvalue():
                raise AssertionError(said.getvalue()[-400:])

    return Target(make, read)


COMMANDS = [
    "ops HERE/ops.csv --model v100 --out HERE/out.csv",
    "collectives HERE/coll.csv --model dgx2 --out HERE/out.csv",
    "collectives HERE/coll.csv --out HERE/out.csv --collective all_reduce --gpus 8 --nodes 1",
    "steps HERE/steps.csv --out HERE/out.csv --device a100 --system dgx2",
    "shard HERE/tables.csv --gpus 2 --batch 4096 --model v100 --system dgx2 --nodes 1"
    " --memory-bytes 16e9 --method size --split items=row --seed 1",
    "plan --shape llama2-7b --system dgx2 --gpus 8 --batch 64 --out HERE/plan.csv --top 2"
    " --only tp=1,2 --only pp=1",
    "show v100", "devices", "systems", "models",
    "fit HERE/ops.csv --device v100_sxm2 --prior none --folder HERE/model",
    "trace summary HERE/none.json --step 1 --out HERE/out.csv",
]  # fmt: skip


SERVED = """model_path,system,backend,tp_size,isl,osl,concurrency,precision,ttft_s,tpot_s,id
Llama-2-7b,h100_sxm,vllm,1,1024,128,16,bfloat16,0.05,0.012,a
Qwen3-32B,h200,sglang,4,4096,512,64,fp8,0.2,0.02,b
"""
INPUTS = {
    "gemm.csv": "op,dtype,m,n,k\ngemm,fp16,128,4096,4096\ngemm,fp32,512,1024,1024\n",
    "ops.csv": OPS, "coll.csv": COLLECTIVES, "steps.csv": STEPS, "tables.csv": TABLES,
    "points.csv": SERVED, "config.json": json.dumps(CONFIG), "shape.toml": SHAPE,
    "system.toml": SYSTEM, "nccl.log": NCCL_LOG,
    "workers.csv": "device,slower\nh100_sxm,1\na100_sxm4_80g,1.5\n",
    "times.csv": "iteration,worker,time_s\n1,a,0.5\n1,b,0.6\n2,a,0.5\n2,b,0.7\n",
    "jobs.csv": "name,model,arrival_s,batch,steps,gpus\na,gpt3-125m,0,8,100,1\nb,gpt3-125m,5,8,50,2\n",
    "placed.csv": "name,arrival_s,gpus,steps,compute_s,all_reduce_bytes\na,0,2,100,0.1,1e8\nb,1,1,9,0.1,1e8\n",
    "types.csv": "name,usd_per_hour,latency_s,per_size_s\nquick,3.5,0.01,1e-3\nslow,1,0.02,4e-3\n",
    "pooled.csv": "arrival_s,size\n0,10\n0.1,20\n0.2,5\n",
    "requests.csv": "arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.5,300,10\n1,50,5\n",
    "runs.csv": "step_time_s,steps,n_gpus,device,state_bytes\n5,90000,1024,h100_sxm,5e11\n2,1000,8,a100_sxm4_80g,1e10\n",
    "plans.csv": "model,system,n_gpus,global_batch\ngpt2-medium,dgx_h100,2,8\n",
}  # fmt: skip
# what mutations make of INPUTS is asked of these; the files that a command names are changed
ASKED = [
    "ops ops.csv --model v100", "ops ops.csv --model v100 --explain", "collectives coll.csv --model dgx2",
    "collectives nccl.log --model dgx2", "steps steps.csv", "steps steps.csv --fit-on steps.csv",
    "serve points.csv", "serve points.csv --fit-on points.csv",
    "serve --shape llama2-7b --system h200 --gpus 1 --isl 512 --osl 64 --sla ttft=1s,tpot=30ms"
    " --requests requests.csv",
    "workers workers.csv --shape gpt2-medium --system dgx_h100 --batch 8 --times times.csv",
    "jobs jobs.csv --system dgx_h100 --gpus 2", "place dgx_h100 --jobs placed.csv",
    "pool types.csv pooled.csv --limit 100ms", "run runs.csv",
    "shard tables.csv --gpus 2 --batch 4096 --model v100 --system dgx2",
    "plan --shape config.json --system dgx_h100 --gpus 2 --batch 4 --only zero=0",
    "plan --shape shape.toml --system system.toml --device h100_sxm --gpus 4 --batch 4 --only zero=0",
    "sweep ops --rows gemm.csv --out out.parquet --restart --model v100",
    "show system.toml", "show config.json",
]  # fmt: skip
MODEL = {"model": "aic_h100_sxm"}
SWEPT = """{"collective": "all_reduce", "n_gpus": [2, 8], "n_nodes": 1, "bytes":
 {"min": 1e3, "max": 1e6, "integer": true, "scale": "log"}, "dtype": "bf16"}"""
HOSTILE: list[Any] = [
    [1, 2], [], {"a": 1}, {}, b"\xff\x00", [[{"a": [1]}]], np.arange(3), "x" * 100_000, -1, 0, 2**63 - 1,
    float("inf"), float("nan"), 1e308, -0.0, True, None, "", " ", "nan", "1e999", "١٢", "1,5",
    "\u202e", "\ud800", "=1+1", "../../etc/passwd", "%s%n", "\x00", datetime.datetime(2026, 1, 1),
    datetime.date(2026, 1, 1), datetime.timedelta(seconds=1), decimal.Decimal("1.5"), 1 + 2j,
]  # fmt: skip


def hostile_table(path: Path, rng: random.Random) -> Path:
    """The rows of a CSV with cells of any kind, as Parquet where that holds them."""
    frame = read_table(path).astype(object)
    for _ in range(rng.choice([1, 1, 2, 4])):
        name, value = rng.choice(list(frame.columns)), rng.choice(HOSTILE)
        rows = range(len(frame)) if rng.random() < 0.5 else [rng.randrange(len(frame))]
        column = frame[name].tolist()
        for at in rows:
            column[at] = value
        frame[name] = pd.Series(column, frame.index, dtype=object)
    if rng.random() < 0.1:
        frame.columns = [*frame.columns[1:], rng.choice(["", " ", "a b", "\n", frame.columns[-1]])]
    packed = path.with_suffix(".parquet")
    try:
        frame.to_parquet(packed)
    except Exception:  # kinds that differ within a column: pyarrow's own errors
        lines = [frame.columns, *frame.itertuples(index=False)]
        text = "\n".join(",".join(f'"{cell}"' for cell in line) for line in lines)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return path
    return packed


def of_commands(asked: list[str]) -> Target:
    """A target of whole commands: one of the files that they name is damaged, or a word."""

    def make(folder: Path, rng: random.Random | None) -> tuple[Path, list[str]]:
        for left in folder.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        for name, text in INPUTS.items():
            (folder / name).write_text(text, "utf-8")
        words = (rng.choice(asked) if rng else asked[0]).split()
        named = [at for at, word in enumerate(words) if word in INPUTS]
        if rng and (rng.random() < 0.15 or not named):
            at = rng.randrange(1, len(words))
            odd = mutations.written(rng.choice(mutations.ODD)).replace("\x00", "")
            words[at] = rng.choice([odd, mutations.mutated_text(words[at], rng)])
            words = [one.encode(errors="replace").decode().replace("\x00", "") for one in words]
        elif rng:
            at = rng.choice(named)
            path = folder / words[at]
            text = path.read_text("utf-8")
            if path.suffix == ".csv" and rng.random() < 0.6:
                words[at] = hostile_table(path, rng).name
            else:
                how = {".csv": mutations.mutated_csv, ".json": mutations.mutated_json}
                changed = how.get(path.suffix, mutations.mutated_text)(text, rng)
                path.write_bytes(changed.encode("utf-8", "surrogatepass"))
        return folder, words

    def read(made: tuple[Path, list[str]]) -> None:
        from hybridperf.cli import app

        said, home = io.StringIO(), os.getcwd()
        os.chdir(made[0])
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                app.main(made[1])
        except SystemExit as ended:
            if ended.code not in (0, 2, 3):
                raise AssertionError(
                    f"exit status {ended.code}: {said.getvalue()[-300:]}"
                ) from None
        finally:
            os.chdir(home)
        if found := re.search(r"unexpected [A-Z]\w+: .*|Traceback", said.getvalue()):
            raise AssertionError(f"{made[1]}: {found[0][:300]}")

    return Target(make, read)


def kineto() -> dict:
    """A small trace of one rank: two steps of an op that launches a kernel."""
    events: list[dict] = []
    for step in range(2):
        at = 1000.0 * step
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1,
             "tid": 1, "ts": at, "dur": 900.0},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at + 10,
             "dur": 50.0, "args": {"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"],
                                   "External id": step + 1}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
             "ts": at + 20, "dur": 5.0, "args": {"correlation": step + 1}},
            {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 40,
             "dur": 100.0, "args": {"correlation": step + 1, "stream": 7, "device": 0}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "pid": 0,
             "tid": 9, "ts": at + 150, "dur": 50.0, "args": {"correlation": 99, "stream": 9,
             "In msg nelems": 1024, "dtype": "Float", "Group size": 2}},
        ]  # fmt: skip
    return {"traceEvents": events, "distributedInfo": {"rank": 0, "world_size": 2},
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]}  # fmt: skip


def recorded() -> dict:
    """A small execution trace: two ops, one within the other."""

    def node(number: int, parent: int, name: str, **more: Any) -> dict:
        ports = {"values": [[1, 0, 32, 4, "cpu"]] * 2, "shapes": [[4, 8], [8, 2]],
                 "types": ["Tensor(float)"] * 2}  # fmt: skip
        return {"id": number, "name": name, "ctrl_deps": parent, "inputs": ports,
                "outputs": {**ports, "shapes": [[4, 2]], "values": [[2, 0, 8, 4, "cpu"]],
                            "types": ["Tensor(float)"]},
                "attrs": [{"name": "rf_id", "type": "uint64", "value": number},
                          {"name": "op_schema", "type": "string", "value": ""}], **more}  # fmt: skip

    return {"schema": "1.0.3-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 0,
            "nodes": [node(1, 1, "[pytorch|profiler|execution_trace|process]"),
                      node(2, 1, "[pytorch|profiler|execution_trace|thread]"),
                      node(3, 2, "aten::linear"), node(4, 3, "aten::mm")]}  # fmt: skip


@functools.cache
def traces() -> list[str]:
    """Traces as JSON: small ones, and real ones cut down where the data folder is."""
    folder = Path(os.environ.get("HYBRIDPERF_DATA", ROOT.parent / "shared" / "data")) / "traces"
    real = [trimmed(one) for _, one in documents(folder)] if folder.is_dir() else []
    return [json.dumps(one) for one in (kineto(), recorded(), *real)]


def section(path: Path, name: str) -> str:
    """One section of a TOML file, as text."""
    text = path.read_text()
    start = text.index(f"[{name}]")
    end = text.find("\n[", start)
    found = text[start : end if end > 0 else None]
    tomllib.loads(found)
    return found


def targets() -> dict[str, Callable[[], Target]]:
    """All targets by name, each made when it is asked for."""
    package = ROOT / "hybridperf"
    device = section(package / "hardware" / "devices.toml", "v100_pcie_32g")

    def read_trace(path: Path) -> None:
        from hybridperf.traces.readers.graphs import recorded_step
        from hybridperf.traces.readers.kineto import read_traces
        from hybridperf.traces.steps import common_steps
        from hybridperf.traces.summary import summaries

        with contextlib.suppress(InputError):
            recorded_step(path)
            return
        found = read_traces([path])
        summaries(found, [step.steps for step in common_steps(found)])

    def read_steps(path: Path) -> None:
        from hybridperf.training.steps.predict import predict_steps

        predict_steps(read_table(path))

    def read_collectives(path: Path) -> None:
        from hybridperf.collectives.model import CollectiveModel
        from hybridperf.traces.collective_logs.files import read_collectives

        frame, _ = read_collectives([path])
        CollectiveModel.datasheet(hp.load_system("dgx2")).predict(frame)

    def read_log(path: Path) -> None:
        from hybridperf.traces.collective_logs.files import read_collectives

        read_collectives([path])

    def read_sweep(path: Path) -> None:
        from hybridperf.explore.sweeps.spec import document, read_spec
        from hybridperf.io.documents import parse_json, read_text

        fields = read_text(path, "fields as JSON", parse_json)
        read_spec(document("collectives", fields, folder=path.parent, settings=MODEL, sample=4))

    def program() -> Target:
        import jax
        import jax.numpy as jnp

        from hybridperf.io import write_json
        from hybridperf.workloads.programs.jax import program as programs

        def step(x: Any, w: Any) -> Any:
            return jax.nn.softmax(x @ w, axis=-1).sum(0)

        content = programs.compile_program(step, jnp.ones((8, 16)), jnp.ones((16, 32)))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.json"
            write_json(path, "program", programs.PROGRAM_SCHEMA_VERSION, content)
            text = path.read_text()

        def without_checksum(text: str, rng: random.Random) -> str:
            document = json.loads(text)
            if rng.random() < 0.9:
                del document["sha256"]
            return mutations.mutated_json(json.dumps(document), rng)

        return of_files({"program.json": text}, without_checksum, programs.load_program)

    return {
        "device": lambda: of_files({"one.toml": device}, mutations.mutated_text, hp.load_device),
        "system": lambda: of_files({"one.toml": SYSTEM}, mutations.mutated_text, hp.load_system),
        "shape": lambda: of_files({"one.toml": SHAPE}, mutations.mutated_text, _load_shape),
        "config": lambda: of_files(
            {"config.json": json.dumps(CONFIG)}, mutations.mutated_json, _load_shape
        ),
        "sweep": lambda: of_files({"fields.json": SWEPT}, mutations.mutated_json, read_sweep),
        "ops": lambda: of_tables(
            OPS, lambda path: hp.load_model("v100_sxm2").predict_ops(read_table(path))
        ),
        "collectives": lambda: of_tables(COLLECTIVES, read_collectives),
        "steps": lambda: of_tables(STEPS, read_steps),
        "shard": lambda: of_tables(TABLES, _shard),
        "fit": lambda: of_tables("".join(OPS.splitlines(keepends=True)[:3]), _fit),
        "logs": lambda: of_files(
            {"nccl.log": NCCL_LOG, "param.log": PARAM_LOG}, mutations.mutated_text, read_log
        ),
        "traces": lambda: of_files(
            {f"{at}.json": text for at, text in enumerate(traces())},
            mutations.mutated_json, read_trace,
        ),
        "program": program,
        "model": lambda: of_model(_save_model, lambda path: hp.load_model(path).fingerprint()),
        "collective_model": lambda: of_model(_save_collectives, _collectives_fingerprint),
        "prior": lambda: of_model(_save_prior, _prior_fingerprint),
        "commands": lambda: of_commands(ASKED),
        "arguments": lambda: of_arguments([one.split() for one in COMMANDS]),
    }  # fmt: skip


def _load_shape(path: Path) -> Any:
    from hybridperf.workloads.transformer import load_shape

    return load_shape(str(path))


def _shard(path: Path) -> Any:
    from hybridperf.explore.sharding.run import shard

    return shard(path, 2, model="v100", system="dgx2", batch=4096, method="size")


def _fit(path: Path) -> Any:
    from hybridperf.model.fit.device import fit

    return fit(read_table(path), "v100_sxm2", prior="none")


def _shipped(name: str) -> Path:
    return ROOT / "calibration" / "hardware" / name


def _save_model(folder: Path) -> None:
    from hybridperf.hardware import Host
    from hybridperf.model.adapted_steps import Adaptation, Adapted

    one = {"mean_s": 1e-5, "std_s": 1e-6, "median_s": 1e-5, "count": 9}
    each = {"shared": one, "by_kind": {"aten::mm": one}}
    names = ("before_launch_s", "after_launch_s", "launch_call_s", "between_launches_s",
             "without_launch_s")  # fmt: skip
    host = Host(source="made", profiler_s=0.0, between_ops_s=one, **dict.fromkeys(names, each))
    group = "megatron_core on ampere"
    steps = Adaptation({group: Adapted.before(host, group)}, host=host)
    model = hp.load_model(_shipped("p100_sxm2"))
    dataclasses.replace(model, host=host, steps=steps).save(folder)


def _save_collectives(folder: Path) -> None:
    from hybridperf.collectives.model import load_collectives

    load_collectives(_shipped("aws_p4de_a100")).save(folder)


def _collectives_fingerprint(folder: Path) -> str:
    from hybridperf.collectives.model import load_collectives

    return load_collectives(folder).fingerprint()


def _save_prior(folder: Path) -> None:
    from hybridperf.learning.prior.shipped import load_prior

    load_prior(_shipped("collectives_prior")).save(folder)


def _prior_fingerprint(folder: Path) -> str:
    from hybridperf.io import hash_of
    from hybridperf.learning.prior.shipped import load_prior

    families = load_prior(folder).families.items()
    return repr([(name, one.document(), hash_of(one.arrays())) for name, one in families])
