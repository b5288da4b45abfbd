"""What a recorded kernel is priced by on another device."""

import dataclasses
import json

import numpy as np
import pytest
from support.made_traces import made_trace

from benchmarks.claims import traces
from hybridperf.hardware import load_device
from hybridperf.io import read_json
from hybridperf.model import PerfModel
from hybridperf.ops.embedding_bag import EmbeddingBagBackward
from hybridperf.traces.other_device import DATASHEET, NAME, other_device
from hybridperf.traces.replay import replay_step
from hybridperf.traces.row_ops import our_ops, recorded_calls
from hybridperf.traces.steps import steps
from hybridperf.validate.harness import SCHEMA, SCHEMA_VERSION

LOOKUP = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
GRADIENT = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"
SAMPLES, TABLES, WIDTH, INDICES = 64, 3, 16, 5000


def lookup_dims(tables: int, samples: int) -> list[list[int]]:
    """Arguments of a pooled lookup: weights, widths and offsets stand where FBGEMM has them."""
    dims: list[list[int]] = [[] for _ in range(20)]
    dims[1], dims[6] = [9000 * WIDTH * tables], [tables + 1]
    dims[11], dims[12] = [INDICES], [samples * tables + 1]
    return dims


def with_lookups(*tables: int, samples=SAMPLES):
    """Lookups in so many tables each, then the gradient of one in TABLES."""
    host = [("mark", "ProfilerStep#1", 0, 900)]
    dims = [lookup_dims(one, samples) for one in tables] + [[[SAMPLES, TABLES * WIDTH]]]
    device = []
    for at, name in enumerate([LOOKUP] * len(tables) + [GRADIENT]):
        begin = 10 + 100 * at
        host += [("op", name, begin, begin + 50), ("call", f"c{at}", begin + 5, begin + 9)]
        kernel = "lookup_kernel" if name == LOOKUP else "backward_kernel"
        device.append((kernel, 7, begin + 10, begin + 80, f"c{at}"))
    types = ["float"] * 11 + ["long", "long"] + ["float"] * 7
    trace = made_trace(host, device, shapes=tuple(map(json.dumps, dims)))
    named = np.isin(trace.host.name, [trace.names.index(one) for one in (LOOKUP, GRADIENT)])
    shapes = np.where(named, np.cumsum(named) - 1, -1).astype(np.int32)
    host_events = dataclasses.replace(trace.host, shapes=shapes)
    kinds = tuple(json.dumps(types[: len(one)]) for one in dims)
    trace = dataclasses.replace(trace, host=host_events, types=kinds)
    return replay_step([trace], [steps(trace)[0]])


def test_a_lookups_gradient_updates_what_the_lookup_read():
    """Of two lookups the last: gradients run in reverse."""
    found = with_lookups(TABLES + 4, TABLES)
    (call,) = (one for one in recorded_calls(found).values() if one.lookup)
    (update,) = (one.op for one in our_ops(call))
    assert isinstance(update, EmbeddingBagBackward)
    assert (update.batch, update.lookups(), update.dim) == (SAMPLES, INDICES, WIDTH)
    assert update.optimizer == "rowwise_adagrad"


def test_a_gradient_whose_lookup_was_not_recorded_goes_by_its_kernel():
    models = [PerfModel.datasheet(load_device(name)) for name in ("v100_sxm2", "h100_sxm")]
    found = with_lookups(TABLES, samples=SAMPLES + 1)
    assert not any(one.lookup for one in recorded_calls(found).values())
    # without its gradient, nothing tells how wide the lookup's rows are
    assert other_device(found, *models).by[NAME] == pytest.approx(140e-6)
    assert other_device(with_lookups(TABLES), *models).by[DATASHEET] == pytest.approx(70e-6)


def test_the_claim_prices_98_percent(data_dir, tmp_path):
    traces.run(data_dir, tmp_path, quick=True, say=lambda said: None)
    (line,) = read_json(tmp_path / "results.json", SCHEMA, SCHEMA_VERSION)["lines"]
    assert line["ours"] >= 0.98
