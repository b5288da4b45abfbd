"""Rows of operating points, understood: which engines of which machine, under how many clients.

What published tables get wrong is mended here, and said: layouts of n x n experts that list n GPUs
as n^2, several names of one model, totals of GPUs in the place of a tensor-parallel degree (which
are refused: nothing tells how they are shared out).
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from hybridperf.fields import fields_of
from hybridperf.fields.columns import read_columns, said_in_texts
from hybridperf.fields.frameworks import release_number
from hybridperf.fields.registry import YES
from hybridperf.hardware import Host, canonical_dtype
from hybridperf.io import InputError
from hybridperf.io.errors import plain
from hybridperf.ops.frameworks import serving_framework, serving_frameworks
from hybridperf.ops.moe import BALANCED
from hybridperf.serving.admission import AT_ONCE, NO_LIMIT, Admission
from hybridperf.serving.machines import Machine, known_names, machine_of
from hybridperf.serving.published import (
    has_settings,
    nearest_point,
    points_of,
    published,
    settings_of,
)
from hybridperf.workloads.serving import Deployment
from hybridperf.workloads.transformer.zoo import file_of, load_shape

FIELDS = fields_of("serve")
CHUNK = 8192.0  # tokens of prompts in a step at most: the usual budget of vLLM's benchmarks
MOST_TP = 16  # more GPUs than any engine splits a head's products over in these tables
# of tokens over experts: nearly all of them have some, as a trained gate's distinct experts stay
# within 13 % of a uniform one's (LLMServingSim, bench/core/runner.py); the exponent is assumed.
# Where a router picks groups of experts first (`names.toml`) few have most
DISTRIBUTION = "power_law_0.6"
# workers where a row does not tell: those that published rows err least with
UNTOLD_DECODERS, UNTOLD_PREFILLERS = 3.0, 1.0
# chance that a token which a model's own further head drafts is taken, where nothing tells it: of
# published rows of DeepSeek that draft three and of such that do not, 2.5 tokens a step
ACCEPTANCE = 0.7
_TOO_WIDE = (
    "expected tp_size of 1, 2, 4, 8 or 16, GPUs that split each layer of one engine, got {}, a"
    " total of GPUs: how they are shared out is not told; give tp_size, attention_dp_size,"
    " moe_tp_size, moe_ep_size of one engine"
)
_NO_WORKERS = (
    "expected {0}, GPUs that split each layer of a worker, in a row of prefill and decode workers"
    " apart, got none; tp_size of such a row would be a total of GPUs"
)

# who shares what of an engine
LAYOUT = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
ADMISSION = (
    "scheduler_recv_interval", "attention_dp_timeout_iters", "batch_wait_timeout_iters",
    "batch_wait_max_tokens_ratio",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class ServedRow:
    """One row; `refused` says why it is not predicted."""

    refused: str = ""
    machine: Machine | None = None
    engine: Deployment | None = None  # that decodes
    prefill: Deployment | None = None  # of disaggregated rows, the other kind of worker
    clients: float = 1.0
    prompt: float = 1.0
    output: float = 1.0
    workers: float = 1.0  # that decode
    prefill_workers: float = 1.0
    workers_known: bool = True
    workers_told: bool = True  # by the row itself
    drafts_known: bool = True
    requests: float = 0.0  # of each client; 0: not told
    view: str = ""  # engine, server, client: who takes the time of first tokens; "": a client
    at_once: bool = False  # all clients begin together, as in a published benchmark
    launch_host: Host | None = None  # of the machine, if it is known
    chunk: float = CHUNK  # tokens of prompts in a step at most
    admission: Admission = AT_ONCE
    model: str = ""
    system: str = ""
    framework: str = ""
    version: str = ""
    release: str | None = None  # of the framework's, as `ServingFramework.release` has it
    as_deployed: bool = False  # engines apart as a benchmark deploys them
    settings: tuple[tuple[str, Any], ...] = ()  # columns that a benchmark's scripts set
    notes: tuple[str, ...] = ()

    @property
    def held(self) -> float:
        """Tokens that a running sequence holds in the cache, in the mean."""
        return self.prompt + serving_framework(self.framework).reserved * self.output

    @property
    def eager(self) -> bool:
        """Whether all kernels are launched one by one."""
        return self.engine is not None and self.engine.launches == "eager"

    @property
    def memory_bytes(self) -> float:
        """Memory of each GPU in bytes; infinite where nobody says it."""
        assert self.machine is not None
        if self.machine.steps is not None:
            return self.machine.steps.memory_bytes
        return self.machine.spec.memory_bytes or math.inf

    @property
    def fitted_on(self) -> bool:
        """Whether a measurement of the row says something of engines."""
        return self.workers_known and self.drafts_known

    @property
    def gpus(self) -> float:
        assert self.engine is not None
        prefill = self.prefill.gpus * self.prefill_workers if self.prefill else 0.0
        return self.engine.gpus * self.workers + prefill

    def having(self, **changed: Any) -> ServedRow:
        """`dataclasses.replace` in a tenth of its time: tables have many rows alike."""
        found = copy.copy(self)
        found.__dict__.update(changed)
        return found


def understood(frame: pd.DataFrame) -> list[ServedRow]:
    """The rows of a table of operating points, each with what it means.

    Rows that differ in sizes alone are understood once, but where a benchmark's scripts set
    something by them.
    """
    read = read_columns(frame, "serve")
    kinds, sizes = _kinds(read.frame), _plain_sizes(read.frame)
    plain = np.isfinite(sizes).all(1)
    plain &= ~np.array([has_settings(*lengths) for lengths in sizes[:, 1:].tolist()], bool)
    plain[[*read.refused]] = False
    firsts = np.flatnonzero(plain)[np.unique(kinds[plain], return_index=True)[1]]
    alike: dict[int, tuple[ServedRow, float]] = {}  # and the longest sequence, by kind
    for at, values in zip(firsts.tolist(), _said(read.frame.iloc[firsts]), strict=True):
        row = _understood(values)
        if not row.refused and row.prefill is None:
            alike[int(kinds[at])] = row, _number(values, "max_model_len", math.inf)
    plain &= np.isin(kinds, [*alike])
    longest = np.array([alike[kind][1] if kind in alike else 0.0 for kind in kinds.tolist()])
    plain &= sizes[:, 1] + sizes[:, 2] <= longest
    others = np.flatnonzero(~plain)
    seen: dict[tuple, ServedRow] = {}
    out = [ServedRow()] * len(frame)
    for at in np.flatnonzero(plain).tolist():
        clients, prompt, output = sizes[at].tolist()
        row, _ = alike[int(kinds[at])]
        out[at] = row.having(clients=clients, prompt=prompt, output=output)
    for at, values in zip(others.tolist(), _said(read.frame.iloc[others]), strict=True):
        told = tuple((name, values[name]) for name in _TOLD if name in values)
        if told not in seen:
            seen[told] = _understood(values)
        out[at] = ServedRow(refused=read.refused[at]) if at in read.refused else seen[told]
    return out


def said_values(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """What each row of a table says, by column."""
    return _said(read_columns(frame, "serve").frame)


_USED = FIELDS.of("words", "layout")
_TOLD = (*_USED, "batch_size")
_SIZES = ("concurrency", "isl", "osl")
_LARGEST_PLAIN = 1e9


def _said(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """What rows say under the names of fields, in columns or in texts."""
    found = []
    for record in frame.to_dict("records"):
        values = {str(name): value for name, value in record.items() if not _empty(value)}
        found.append(said_in_texts(values, FIELDS) | values)
    return found


def _kinds(frame: pd.DataFrame) -> np.ndarray:
    """A number of each row that those share which say the same but for their sizes [R]."""
    used = [name for name in frame if name in _USED and name not in _SIZES]
    texts = [name for name in frame if name not in _USED and frame[name].dtype.kind not in "biuf"]
    used += [name for name in texts if frame[name].astype(str).str.contains("=").any()]
    found = np.zeros(len(frame), int)
    for name in used:
        codes = pd.factorize(frame[name])[0]
        found = np.unique(found * (codes.max(initial=0) + 2) + codes + 1, return_inverse=True)[1]
    return found


def _plain_sizes(frame: pd.DataFrame) -> np.ndarray:
    """Sizes of rows that are usual numbers [R, 3], NaN where one is missing or anything else."""
    found = np.full((len(frame), len(_SIZES)), np.nan)
    for at, name in enumerate(_SIZES):
        if name in frame and frame[name].dtype.kind in "iuf":
            found[:, at] = frame[name].to_numpy(float, na_value=math.nan)
    with np.errstate(invalid="ignore"):
        return np.where((found >= 1.0) & (found <= _LARGEST_PLAIN), found, np.nan)


def _understood(said: Mapping[str, Any]) -> ServedRow:
    measured = str(said.get("measured", ""))[: len("2026-01-14")]
    values = {"concurrency": said.get("batch_size", math.nan), **said, "measured": measured}
    try:
        return _row(values)
    except InputError as error:
        return ServedRow(refused=str(error))


def _empty(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _row(values: Mapping[str, Any]) -> ServedRow:
    notes: list[str] = []
    at_once = _at_once(values)  # by the row's own words, not by a benchmark's scripts
    name = _text(values, "model_path")
    if _empty(values["concurrency"]):
        raise InputError(
            "expected clients in a column concurrency, silicon_concurrency or batch_size, got none"
        )
    shape_name, habits = named_model(name)
    machine = machine_of(_text(values, "system"))
    framework = known_framework(str(values.get("backend", "")), notes)
    shape = load_shape(shape_name)
    common: dict[str, Any] = {
        "shape": shape, "framework": framework,
        **_schemes(values, name, habits, machine, notes),
        "lora_rank": _count(values, "lora_rank"),
        "two_batches": _word(values, "two_batches") == YES,
        "moe_backend": str(values.get("moe_backend", "")).lower(),
        "shares_cache": serving_framework(framework).reads_cache_once(
            str(values.get("backend_version", "")), shape.heads / shape.key_heads, shape.dim
        ),
    }  # fmt: skip
    drafted, acceptance = _count(values, "drafted"), _number(values, "acceptance", ACCEPTANCE)
    common |= {"drafted": drafted, "acceptance": acceptance if drafted else 0.0,
               "cached_share": _number(values, "cached_share")}  # fmt: skip
    found: dict[str, Any] = {
        "machine": machine, "clients": _number(values, "concurrency"),
        "prompt": _number(values, "isl"), "output": _number(values, "osl"),
        "model": shape_name, "system": machine.device, "framework": framework,
        "release": (release := _release(values, framework, notes)),
        "version": str(values.get("backend_version", release)),
    }  # fmt: skip
    sizes = found["clients"], found["prompt"], found["output"]
    if min(sizes) < 1:
        given = ", ".join(f"{one:g}" for one in sizes)
        raise InputError(
            f"expected concurrency, isl and osl of at least 1 in a row of serving, got {given}"
        )
    longest = _number(values, "max_model_len", math.inf)
    if found["prompt"] + found["output"] > longest:
        raise InputError(
            f"expected isl + osl of max_model_len, {longest:g}, or fewer, got"
            f" {found['prompt']:g} + {found['output']:g}"
        )
    # of experts, more GPUs than an engine splits a layer over are a total of engines apart
    if _word(values, "mode") == "disagg" or (shape.experts and _total(values, "")):
        engine, more = _apart(values, common, found, notes)
        found |= more
    else:
        engine = Deployment(**common, **_layout(values, "", notes))
        settings = _as_published(found, engine, values, notes)
        values, found["settings"] = {**settings, **values}, tuple(settings.items())
    engine = dataclasses.replace(
        engine, max_sequences=_count(values, "max_num_seqs", engine.max_sequences),
        moe_backend=str(values.get("moe_backend", "")).lower(),
        kv_dtype=canonical_dtype(_word(values, "kv_dtype") or engine.kv_dtype),
    )  # fmt: skip
    if not _word(values, "kv_dtype"):
        notes.append(f"kv_dtype not given: {engine.kv_dtype} assumed")
    if values.get("may_draft") and "drafted" not in values:
        found["drafts_known"] = False
    if not engine.drafted and (drafted := _count(values, "drafted")):
        engine = dataclasses.replace(engine, drafted=drafted, acceptance=acceptance)
    if engine.drafted and "acceptance" not in values:
        notes.append(f"acceptance of drafted tokens not given: {ACCEPTANCE:g} assumed")
    elif not engine.drafted and _number(values, "acceptance", 0.0):
        raise InputError(
            "expected drafted, tokens that a draft proposes, with acceptance, got none of them"
        )
    if {"cached_share", "enforce_eager"} & {*values}:  # of the row, or of a benchmark's scripts
        engine = dataclasses.replace(
            engine, cached_share=_number(values, "cached_share"),
            launches="eager" if _word(values, "enforce_eager") == YES else "graph",
        )  # fmt: skip
    chunk = float(_count(values, "max_num_batched_tokens", _usual_chunk(values, framework, notes)))
    found |= {
        "requests": _number(values, "requests_per_client", 0.0),
        "at_once": at_once and _word(values, "view") != "server",
        "view": _word(values, "view"),
        "chunk": chunk, "admission": admission_by(values, engine, chunk),
    }  # fmt: skip
    if machine.note:
        notes.append(machine.note)
    if unread := _unread(values, apart="prefill" in found, experts=bool(shape.experts)):
        notes.append(f"not read in such a row: {', '.join(unread)}")
    return ServedRow(engine=engine, notes=tuple(notes), **found)


def _usual_chunk(values: Mapping[str, Any], framework: str, notes: list[str]) -> int:
    """Tokens of prompts in a step at most where a row does not tell."""
    longest = _number(values, "max_model_len", math.inf)
    version = str(values.get("backend_version", ""))
    whole = int(serving_framework(framework).tokens_of_a_step(version, longest))
    if whole and "max_num_batched_tokens" not in values:
        notes.append(
            f"max_num_batched_tokens not given: {whole} assumed, prompts are computed whole"
        )
    return whole or int(CHUNK)


def _unread(values: Mapping[str, Any], *, apart: bool, experts: bool) -> list[str]:
    """What a row says that changes nothing: of workers where one engine does all, of experts where
    there are none, a second number of clients.
    """
    found = [one for one in values if not apart and one.startswith(("prefill_", "decode_"))]
    if not experts:
        found += [one for one in values if one.startswith("moe_") and values[one] not in (0, 1)]
    if values.get("batch_size", values["concurrency"]) != values["concurrency"]:
        found.append("batch_size")
    return found


def _release(values: Mapping[str, Any], framework: str, notes: list[str]) -> str:
    """Of those with which a framework changed a default; by the row's version, else its day."""
    habits, version = serving_framework(framework), str(values.get("backend_version", ""))
    date = values["measured"]
    release = habits.release(version, date)
    if habits.releases and not release_number(version):
        said = f"{release} or later" if release else f"one before {habits.releases[0].version}"
        by = f"as it was measured on {date}" if date else "the newest"
        notes.append(f"backend_version of {framework} not given: {said} assumed, {by}")
    return release


def _at_once(values: Mapping[str, Any]) -> bool:
    """Whether all clients begin together: as the row says, else where it is of a run."""
    if said := _word(values, "opening_burst"):
        return said == YES
    return bool(values.get("requests_per_client") or values.get("measured"))


def _apart(
    values: Mapping[str, Any], common: Mapping[str, Any], found: Mapping[str, Any],
    notes: list[str],
) -> tuple[Deployment, dict[str, Any]]:  # fmt: skip
    """(an engine that decodes, the other fields of a row whose prompts are computed apart)."""
    sizes = {kind: [_count(values, f"{kind}_{one}_size") for one in
                    ("tp", "attention_dp")] for kind in ("prefill", "decode")}  # fmt: skip
    names = ("prefill_num_workers", "decode_num_workers")
    given = [_count(values, name) if name in values else None for name in names]
    told, workers_of = None not in given, (given[0], given[1])
    words = {name: found[name] for name in ("framework", "model", "system", "prompt", "output")}
    words |= {"clients": found["clients"], "scheme": common["expert_quant"] or common["quant"]}
    prefilling, decoding = ((tp * ranks, ranks) for tp, ranks in sizes.values())
    total = _total(values, "" if "decode_tp_size" not in values else "decode_")
    if total:
        prefilling = decoding = (total, 1)
    points = points_of(words, prefilling, decoding, workers_of)
    fits = bool(points)
    if not points and not told:
        near = nearest_point(words, total)
        points = (near,) if near else ()
    if not points and total:
        values, told = {**values, **_shared_out(total)}, False
    if not points:
        engine = Deployment(**common, **_layout(values, "decode_", notes))
        prefill = Deployment(**common, **_layout(values, "prefill_", notes))
        untold = 1.0 if total else UNTOLD_DECODERS
        prefilling_workers, workers = given[0] or UNTOLD_PREFILLERS, given[1] or untold
        if not told:
            notes.append(
                f"numbers of workers are not told: {workers:g} that decode and"
                f" {prefilling_workers:g} that prefill assumed, of 1 to 16"
            )
        more = {"prefill_workers": prefilling_workers, "workers": workers, "workers_known": told}
        return engine, {"prefill": prefill, "workers_told": told, **more}
    point, own = points[0], dict(common)
    if point.sequences and "max_num_seqs" not in values:
        own["max_sequences"] = point.sequences
    drafts = dict[str, Any]()  # of both: a draft's keys are sent with the prompt's
    if point.drafted and "drafted" not in values:
        acceptance = _number(values, "acceptance", ACCEPTANCE)
        drafts = {"drafted": point.drafted, "acceptance": acceptance}
    if point.balanced:
        own["distribution"] = BALANCED
    said = "as InferenceX deploys: " if fits else "the likest that InferenceX deploys is taken: "
    notes.append(said + "; or ".join(map(str, points)))
    prefill, engine = (
        Deployment(
            **fields, tp=one.gpus // one.ranks, attention_dp=one.ranks, expert_ep=one.expert_ep
        )
        for fields, one in (({**common, **drafts}, point.prefill), (own | drafts, point.decode))
    )
    more = {"prefill_workers": point.prefill.workers, "workers": point.decode.workers,
            "as_deployed": True,
            "workers_known": fits and len({(one.prefill, one.decode) for one in points}) == 1,
            "drafts_known": len({one.drafted for one in points}) == 1}  # fmt: skip
    return engine, {"prefill": prefill, "workers_told": told, **more}


def _total(values: Mapping[str, Any], kind: str) -> int:
    """GPUs of a whole deployment that stand in the place of tp_size; 0: those of one engine, or of
    one whose n GPUs are listed as n x n experts.
    """
    tp, moe_tp, moe_ep = (_count(values, f"{kind}{one}_size") for one in ("tp", "moe_tp", "moe_ep"))
    squared = moe_tp == moe_ep > 1 and moe_tp * moe_ep == tp
    return tp if not squared and (tp > MOST_TP or tp & (tp - 1)) else 0


def _shared_out(gpus: int) -> dict[str, Any]:
    """Columns of engines apart of which a total of GPUs is told: most of them decode, a power of
    two, each an attention rank with its share of experts; the others prefill.
    """
    decode = 2 ** int(math.log2(max(gpus - 1, 1)))
    sizes = {"prefill_": 2 ** int(math.log2(max(gpus - decode, 1))), "decode_": decode}
    return {
        f"{kind}{name}_size": count if name in ("attention_dp", "moe_ep") else 1
        for kind, count in sizes.items()
        for name in ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")
    }


def _as_published(
    found: Mapping[str, Any], engine: Deployment, values: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Settings that a row does not tell, as the benchmark of its lengths sets them where one engine
    does all.
    """
    names = ("model", "system", "clients", "prompt", "output")
    told = {name: found[name] for name in names} | {"measured": values["measured"]}
    settings = settings_of(
        engine, **told, version=str(values.get("backend_version", "")),
        source_file=str(values.get("source_file", "")),
    )  # fmt: skip
    assumed = {name: value for name, value in settings.items() if name not in values}
    if assumed.pop("may_draft", 0) and "drafted" not in values:
        notes.append("published with drafted tokens and without: none assumed")
    if assumed:
        said = ", ".join(f"{name} {value}" for name, value in assumed.items())
        ours = published(found["prompt"], found["output"])
        notes.append(f"as {'InferenceX' if ours else 'aiconfigurator'}'s scripts set: {said}")
    return settings


def admission_by(values: Mapping[str, Any], engine: Deployment, chunk: float) -> Admission:
    """When prompts are taken, by the settings of frameworks (`ADMISSION`); `chunk`: tokens of a
    step at most.
    """
    ranks = _number(values, "attention_dp_timeout_iters")
    if engine.attention_dp == 1:
        ranks = 1.0
    share = _number(values, "batch_wait_max_tokens_ratio")
    return Admission(
        max(_number(values, "scheduler_recv_interval"), ranks, 1.0),
        _number(values, "batch_wait_timeout_iters"), share * chunk if share else NO_LIMIT,
    )  # fmt: skip


def _layout(values: Mapping[str, Any], kind: str, notes: list[str]) -> dict[str, Any]:
    """Who shares what of an engine, by its five columns."""
    if not {f"{kind}{one}" for one in LAYOUT} & {*values}:
        if kind:
            raise InputError(_NO_WORKERS.format(f"{kind}tp_size"))
        notes.append("layout not given: tp_size 1 assumed")
    tp, pp, dp, moe_tp, moe_ep = (_count(values, f"{kind}{one}") for one in LAYOUT)
    if moe_tp == moe_ep > 1 and moe_tp * moe_ep in (tp, dp) and min(tp, dp) == 1:
        notes.append(f"{moe_tp} x {moe_ep} experts on {tp * dp} are {moe_ep} GPUs")
        tp, dp = (moe_ep, 1) if tp > 1 else (1, moe_ep)
    elif dp > 1 and tp > 1 and moe_ep > dp:
        notes.append(f"tp {tp} with {dp} attention ranks: taken as {dp} GPUs, a rank each")
        tp, moe_ep = 1, dp
    elif dp > 1 and tp * dp != moe_tp * moe_ep:  # tp that is meant of experts
        tp = 1
    if dp > MOST_TP and moe_ep == 1:  # a layer is cut into no more pieces than a head's products
        notes.append(f"{moe_tp} pieces of each expert on {dp} attention ranks: taken as shared out")
        moe_ep = dp
    if tp > MOST_TP or tp & (tp - 1):
        raise InputError(_TOO_WIDE.format(tp))
    return {"tp": tp, "pp": pp, "attention_dp": dp, "expert_ep": math.gcd(moe_ep, tp * dp)}


def _schemes(
    values: Mapping[str, Any], model: str, habits: Mapping[str, Any], machine: Machine,
    notes: list[str],
) -> dict[str, str]:  # fmt: skip
    precision, gemm, experts = precision_words(values, model)
    if precision:
        notes.append(f"precision not given: {precision} assumed")
    words = FIELDS["precision"]
    gemm, experts = words.meant(gemm) or "bfloat16", words.meant(experts) or "bfloat16"
    attention = ""
    # a name that says 16 bits is of other weights than those that are published in MXFP4
    named = {words.meant(one) for one in plain(model).split("_") if one in words.spellings}
    if habits.get("mxfp4") and "bfloat16" not in named:
        gemm, experts = (
            "bfloat16",
            "w4a8_mxfp4_mxfp8" if machine.spec.tensor_memory else "w4a16_mxfp4",
        )
    else:
        own = habits.get("schemes", {})
        gemm, experts = own.get(gemm, gemm), own.get(experts, experts)
        if gemm in habits.get("experts_alone", ()):
            attention = "bfloat16"
            gemm = "bfloat16"
    if gemm != "bfloat16" and model.startswith(tuple(habits.get("wide_attention", ()))):
        attention = "bfloat16"
    return {"quant": gemm, "expert_quant": experts, "attention_quant": attention,
            "kv_dtype": _word(values, "kv_dtype"),
            "distribution": habits.get("distribution", DISTRIBUTION)}  # fmt: skip


def precision_words(values: Mapping[str, Any], model: str) -> tuple[str, str, str]:
    """(the precision that is assumed by a model's name, "": none is; of products; of experts), in
    the words of rows.
    """
    words, assumed = FIELDS["precision"], ""
    precision = _word(values, "precision")
    if not precision and "gemm_quant_mode" not in values:
        parts = plain(model).split("_")
        precision = assumed = next((one for one in parts if words.spellings.get(one)), "bf16")
    gemm = str(values.get("gemm_quant_mode", precision)).lower()
    return assumed, gemm, str(values.get("moe_quant_mode", gemm)).lower()


def schemes_of(
    model: str, precisions: Sequence[str], machine: Machine
) -> tuple[dict[str, str], ...]:
    """How a published model's weights and cache are kept in each precision, each way once."""
    habits = named_model(model)[1]
    each = (_schemes({"precision": one}, model, habits, machine, []) for one in precisions)
    return tuple({tuple(one.items()): one for one in each}.values())


def named_model(name: str) -> tuple[str, Mapping[str, Any]]:
    """(what we call a model of a published name, habits of its weights); a file of sizes as it is,
    and a name that nobody knows without who published it, for the message that refuses it.
    """
    if file_of(name) is not None:
        return name, {}
    try:
        ours = load_shape(name).name
    except InputError:
        return name.rsplit("/", 1)[-1], {}
    return ours, known_names()["model"].get(ours, {})


def known_framework(name: str, notes: list[str]) -> str:
    letters = "".join(filter(str.isalnum, name.lower()))
    for ours, habits in serving_frameworks().items():
        if any(word in letters for word in habits.says):
            return ours
    notes.append(f"framework {name or 'not given'}: nothing of it is known, usual effects assumed")
    return ""


def _text(values: Mapping[str, Any], name: str) -> str:
    if name in values:
        return str(values[name])
    raise InputError(f"expected a column {name} in a row of serving, got none")


def _word(values: Mapping[str, Any], name: str) -> str:
    """One of a field's words, "" for nothing."""
    return FIELDS[name].word(str(values.get(name, "")).lower())


def _count(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A whole number; the field's default where a row has none and nothing else is said."""
    usual = FIELDS[name].default if default is None else default
    return FIELDS[name].count(values.get(name, usual))


def _number(values: Mapping[str, Any], name: str, default: float | None = None) -> float:
    if name not in values:
        usual = FIELDS[name].default if default is None else default
        if usual is not None:
            return float(usual)
        raise InputError(
            f"expected a number in the column {name}, got none; `hybridperf serve --help` lists"
            " the columns"
        )
    return FIELDS[name].number(values[name])
