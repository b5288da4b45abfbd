"""Stages in chunks: closed forms against the graph on random cases; loaders; what papers say."""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.evaluate import timeline
from hybridperf.engine.lower import lower
from hybridperf.io import InputError
from hybridperf.ops import Gemm, OpCall
from hybridperf.workloads.stages import Stage, stages, with_loader


def seconds(workload) -> float:
    """By the engine; all calls are given."""
    took = [call.value for call in workload.calls]
    return float(timeline(lower(workload.graph), took).end_s.max())


def pipelined_s(some, items: float, chunks: int) -> float:
    """Closed form with a stream each: sum t_i + (n - 1) max t_i."""
    took = [stage.chunk_s(items / chunks) for stage in some]
    return sum(took) + (chunks - 1) * max(took)


def bounds_s(some, items: float, chunks: int) -> tuple[float, float]:
    """Least and most seconds of any overlap: the busiest stream alone, and all in turn."""
    busy: dict[str, float] = {}
    for stage in some:
        of = stage.stream or stage.name
        busy[of] = busy.get(of, 0.0) + chunks * stage.chunk_s(items / chunks)
    return max(busy.values()), sum(busy.values())


def best_chunks(some) -> tuple[int, float]:
    """The number of chunks that ends soonest by the closed form, and its seconds."""
    found = [pipelined_s(some, 1, chunks) for chunks in range(1, 4097)]
    return int(np.argmin(found)) + 1, min(found)


def drawn(seed: int, count: int = 200):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        some = [
            Stage(f"s{at}", fixed_s=rng.uniform(0, 0.01), item_s=rng.lognormal(-6, 1))
            for at in range(rng.integers(1, 6))
        ]
        yield some, float(rng.integers(1, 500)), int(rng.integers(1, 40))


def test_two_stages_by_hand() -> None:
    some = [Stage("load", item_s=1.0), Stage("compute", item_s=2.0)]
    assert seconds(stages(some, 4, 1)) == 12
    assert seconds(stages(some, 4, 4)) == 1 + 4 * 2
    assert seconds(stages(some, 4, 4, pipelined=False)) == 12


def test_closed_form_is_the_graph_on_random_cases() -> None:
    for some, items, chunks in drawn(0):
        found = seconds(stages(some, items, chunks))
        assert pipelined_s(some, items, chunks) == pytest.approx(found, rel=1e-9)
        assert seconds(stages(some, items, chunks, buffers=2)) == pytest.approx(found, rel=1e-9)
        least, most = bounds_s(some, items, chunks)
        assert least * (1 - 1e-9) <= found <= most * (1 + 1e-9)
        assert seconds(stages(some, items, chunks, pipelined=False)) == pytest.approx(most)


def test_a_shared_stream_and_workers_lie_between_the_bounds() -> None:
    for some, items, chunks in drawn(1, 60):
        more = [
            Stage(one.name, one.fixed_s, one.item_s, stream="cpu" if at < 2 else "", workers=1)
            for at, one in enumerate(some)
        ]
        found = seconds(stages(more, items, chunks))
        least, most = bounds_s(more, items, chunks)
        assert least * (1 - 1e-9) <= found <= most * (1 + 1e-9)
        assert found >= seconds(stages(some, items, chunks)) * (1 - 1e-9)
    loader = [Stage("load", item_s=1.0, workers=4), Stage("compute", item_s=0.25)]
    assert seconds(stages(loader, 16, 16)) == pytest.approx(4 + 0.25, rel=0.2)


def test_the_best_number_of_chunks_is_the_square_root_law() -> None:
    """n = sqrt((S - M) / f) where the longest stage alone has an overhead."""
    rng = np.random.default_rng(2)
    for _ in range(50):
        rest, longest, overhead = rng.uniform(1, 5), rng.uniform(5, 9), rng.uniform(0.001, 0.1)
        some = [Stage("others", item_s=rest), Stage("longest", overhead, longest)]
        chunks, took = best_chunks(some)
        law = np.sqrt(rest / overhead)
        assert chunks == pytest.approx(law, abs=1.0)
        total = rest + longest
        by_paper = total / law + (1 - 1 / law) * longest + law * overhead
        assert took == pytest.approx(by_paper, rel=0.01)


def test_calls_of_a_stage_are_priced_by_the_machine() -> None:
    model = hp.PerfModel.datasheet(hp.load_device("a100_sxm4_80g"))
    product = OpCall(Gemm("fp16", 8192, 8192, 8192))
    some = [Stage("load", item_s=0.01), Stage("compute", calls=(product,))]
    alone = hp.predict(model, stages(some[1:], 8, 1)).time_s
    assert alone == pytest.approx(8192**3 * 2 / 312e12, rel=0.01)
    assert hp.predict(model, stages(some, 8, 8)).time_s == pytest.approx(0.08 + alone, rel=1e-3)


def test_a_loader_beside_and_before_a_step() -> None:
    model = hp.load_model("a100_sxm4_80g").with_collectives(hp.load_collectives("dgx_a100"))
    layout = hp.Layout(dp=2, pp=2, micro_batch=1, accumulation=2)
    step = hp.transformer(hp.TransformerConfig(hp.load_shape("gpt2"), layout, gpus_per_node=8))
    alone = hp.predict(model, step).time_s
    loader = [Stage("read", item_s=0.3), Stage("decode", item_s=2.0, workers=8)]

    def loaded(items: float, **how) -> float:
        return hp.predict(model, with_loader(step, loader, items, **how)).time_s

    assert loaded(1e-6) == pytest.approx(alone, rel=1e-4)
    assert loaded(4) == pytest.approx(max(alone, 4 * 0.3), rel=1e-6)
    assert loaded(4, prefetch=False) == pytest.approx(alone + 4 * 2.3, rel=0.01)


# What papers say
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: stages([], 1), "one stage or more"),
        (lambda: stages([Stage("a", -1.0)], 1), "zero or more"),
        (lambda: stages([Stage("a", "soon")], 1), "zero or more"),
        (lambda: stages([Stage("a", 1.0, workers=1.5)], 1), "one worker or more"),
        (lambda: stages([Stage("a", 1.0)], 0), "above zero"),
        (lambda: stages([Stage("a", 1.0)], 1, 10**6), "fewer chunks"),
        (lambda: stages([Stage("a", 1.0)], 1, buffers=0), "1 buffer"),
    ],
)
def test_wrong_stages_are_a_sentence(call, said) -> None:
    with pytest.raises(InputError, match=said):
        call()
