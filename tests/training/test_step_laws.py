"""Laws that predicted steps follow whatever the figures are: of sharding, overlap, devices and
networks.
"""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.hardware import device_names, load_device
from hybridperf.io.numbers import NINE_OF_TEN
from hybridperf.model.adapted_steps import (
    BETWEEN_SOURCES,
    WITHIN_SOURCE,
    Adaptation,
    Adapted,
    beliefs,
)
from hybridperf.model.step_effects import BELIEFS, KNOWN, NAMES
from hybridperf.training.plans.setup import training_setup
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.programs.jax.gpu_program import FRAMEWORK as XLA
from hybridperf.workloads.transformer import Layout, load_shape
from hybridperf.workloads.transformer.config import TransformerConfig
from hybridperf.workloads.transformer.framework import framework_habits
from hybridperf.workloads.transformer.parts import layer_passes
from hybridperf.workloads.transformer.update import buckets, optimizer_passes

LLAMA = dict(
    model="llama2-7b", gpu="h100", framework="megatron_core", precision="bf16", n_gpus=64,
    tp=1, pp=1, micro_batch=1, global_batch=256,
)  # fmt: skip
FSDP = LLAMA | {"framework": "torchtitan", "sharding": "fsdp"}


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


def steps(cache, *rows, **options):
    """Predictions of rows, none of them refused."""
    found = predict_steps(pd.DataFrame(rows), cache=cache, **options).frame
    assert found["predicted_s"].notna().all(), found["note"].tolist()
    return found


def seconds(cache, *rows, **options):
    return steps(cache, *rows, **options)["predicted_s"].tolist()


@pytest.mark.parametrize("pp", [1, 4])
def test_zero_1_is_no_slower_than_zero_2(cache, pp):
    rows = [LLAMA | {"pp": pp, "tp": 1, "sharding": f"zero{stage}"} for stage in (1, 2)]
    first, second = seconds(cache, *rows)
    assert first <= second * (1 + 1e-9)


def test_zero_2_in_a_pipeline_exchanges_once_a_step(cache):
    """So its communication does not grow with micro-batches, as ZeRO-3's does."""
    rows = [
        LLAMA | {"pp": 4, "tp": 1, "schedule": "1f1b", "sharding": way, "global_batch": batch}
        for way in ("zero2", "fsdp")
        for batch in (256, 512)
    ]
    found = steps(cache, *rows)["exposed_comm_s"].to_numpy()
    few, many, sharded_few, sharded_many = found
    assert many - few < 0.5 * (sharded_many - sharded_few)


def test_shards_inside_nodes_are_quicker_where_the_network_is_slow(cache):
    """Where gathers over all ranks hide anyway, the larger shards of the optimizer are left."""
    ways = [{"sharding": way, "seq": seq} for seq in (512, 4096) for way in ("fsdp", "hsdp")]
    row = FSDP | {"gpu": "a100_sxm4_80g", "global_batch": 64}
    shown, inside, hidden, inside_hidden = seconds(
        cache, *(row | one for one in ways), system="aws_p4de_a100"
    )
    assert inside < 0.95 * shown
    assert inside_hidden < 1.02 * hidden


def test_updated_weights_hide_behind_a_forward_pass(cache):
    """Megatron-Core gathers them there; a framework that does not waits for all of them."""
    row = LLAMA | {"tp": 1, "n_gpus": 512, "global_batch": 512}
    hidden, shown = steps(cache, row, row | {"framework": "megatron", "sharding": "zero1"})[
        "exposed_comm_s"
    ]
    assert hidden < shown


def test_a_ring_of_context_parallel_ranks_hides_beside_attention(cache):
    """Within a node of long sequences nearly all of it; across nodes, of short ones, less."""
    row = LLAMA | {"model": "llama3-8b", "n_gpus": 32, "global_batch": 32, "sharding": "zero1"}
    ring, gathered, alone = steps(
        cache, *(
            row | {"seq": 65536} | one
            for one in ({"cp": 8}, {"cp": 8, "context_messages": "gather"}, {"cp": 1})
        ),
    )["exposed_comm_s"]  # fmt: skip
    assert ring - alone < 0.5 * (gathered - alone)
    shown = [
        steps(cache, row | {"cp": cp, "seq": seq, "tp": 4}).iloc[0]
        for cp, seq in ((2, 131072), (8, 8192))
    ]
    shares = [one["exposed_comm_s"] / one["predicted_s"] for one in shown]
    assert shares[0] < 0.5 * shares[1]
    for name in ("ring", "gather"):
        (one,) = resolve(pd.DataFrame([row | {"cp": 8, "tp": 4, "context_messages": name}])).rows
        found = seconds(cache, row | {"cp": 8, "tp": 4, "context_messages": name})[0]
        graph = hp.predict(cache.prices(one.machine).model, hp.transformer(one.config)).time_s
        assert graph == pytest.approx(found, rel=0.01)


def test_an_h100_is_about_two_and_a_half_a100s(cache):
    """Measured products alone say 2.65; 2.59 here, as sustained clocks of both are believed."""
    row = LLAMA | {"n_gpus": 8, "global_batch": 32}
    one, other = seconds(cache, row | {"gpu": "a100_sxm4_80g"}, row)
    assert 1.8 < one / other < 2.6


def test_what_no_row_tells_of_is_as_unsure_as_published_sources_differ(cache):
    """A step that computes alone: no less than sources and their rows scatter, no twice of it."""
    row = LLAMA | {"tp": 1, "n_gpus": 8, "global_batch": 32}
    found = steps(cache, row, row | {"precision": "fp8"})
    deviation = np.log(found["high_s"] / found["low_s"]) / 2 / NINE_OF_TEN
    scatter = np.hypot(BETWEEN_SOURCES, WITHIN_SOURCE)
    assert (deviation > scatter).all()
    assert (deviation < 2 * scatter).all()


def test_eager_is_slower_than_compiled_and_async_tensor_parallelism_quicker(cache):
    row = FSDP | {"tp": 8}
    ways = ("torchtitan", "torchtitan_async_tp", "torchtitan_eager")
    plain, beside, eager = seconds(cache, *(row | {"framework": way} for way in ways))
    assert beside < plain < eager


def test_rows_scaled_one_by_one_multiply_no_faster_than_bf16(cache):
    tensors, rows, plain = steps(
        cache, *(FSDP | {"precision": one} for one in ("fp8-tensorwise", "fp8-rowwise", "bf16"))
    ).itertuples()
    assert tensors.predicted_s < rows.predicted_s
    assert rows.predicted_s == plain.predicted_s
    assert "no faster than in bf16" in rows.note


def test_pytorch_repeats_less_than_megatron(cache):
    """`full`: not a block's last product; `selective`: every second product, no attention."""
    small = {"n_gpus": 8, "tp": 1, "global_batch": 64, "micro_batch": 2}
    base, full, selective = steps(
        cache, *(FSDP | small | {"recompute": mode} for mode in ("none", "full", "selective"))
    )["compute_s"]
    blocks, repeated = steps(
        cache, *(LLAMA | small | {"recompute": mode} for mode in ("none", "full"))
    )["compute_s"]
    assert base < selective < full
    assert full / base < repeated / blocks < 1.34


def test_two_systems_give_two_answers(cache):
    quick, slow = (
        seconds(cache, LLAMA | {"tp": 1}, system=name)[0]
        for name in ("dgx_h100", "gcp_a3mega_h100")
    )
    assert quick < slow


def test_what_is_not_surely_too_large_is_not_called_so(cache):
    """Counts of bytes may be 30 % off; a recompute mode that a row leaves open can make it fit."""
    row = FSDP | {"n_gpus": 8, "tp": 1, "dp": 8, "global_batch": 8}
    tried = steps(
        cache, *(row | {"micro_batch": n, "global_batch": 8 * n} for n in (1, 2, 4)),
        row | {"micro_batch": 4, "global_batch": 32, "recompute": "none"},
        row | {"micro_batch": 8, "global_batch": 64, "recompute": "none"},
        row | {"micro_batch": 4, "global_batch": 32, "recompute": "full"},
    )  # fmt: skip
    small, *_, open_, near, none, full = tried.itertuples()
    assert pd.isna(near.fits)
    assert "a chance of 27% to fit" in near.note
    assert small.fits
    assert full.fits
    assert pd.isna(open_.fits)
    assert "leaves that open" in open_.note
    assert not pd.isna(none.fits)
    assert not none.fits


def test_products_in_8_bits_keep_less(cache):
    wide, narrow = steps(cache, *(LLAMA | {"precision": one} for one in ("bf16", "fp8")))[
        "memory_bytes"
    ]
    assert 0.8 * wide < narrow < wide


def test_what_is_known_of_a_framework_moves_with_rows_of_another() -> None:
    """Rows of A100s tell of a framework; what an H100 differs by is added to what they told."""
    theta = beliefs(None, "megatron_core on Ampere sm_80")[0] + 0.1
    fitted = replace(Adapted.before(group="megatron_core on Ampere sm_80"), theta=theta)
    known = Adaptation({"megatron_core on Ampere sm_80": fitted})
    found, whose = known.of("megatron_core on Hopper sm_90")
    assert whose == "megatron_core on Ampere sm_80"
    moved = found.theta - beliefs(None, "megatron_core on Hopper sm_90")[0]
    assert moved == pytest.approx(0.1)


def test_each_known_effect_has_its_source_and_moves_its_median() -> None:
    for one in KNOWN:
        assert one.source
        for effect, framework, arch in itertools.product(
            one.effects, one.frameworks or ("eager_pytorch",), one.archs or ("Volta sm_70",)
        ):
            median = np.exp(beliefs(None, f"{framework} on {arch}")[0][NAMES.index(effect)])
            assert median != pytest.approx(BELIEFS[effect].median)


def test_what_is_known_is_of_frameworks_and_architectures_that_there_are() -> None:
    archs = {load_device(name).arch for name in device_names()}
    there = {*framework_habits(), XLA}
    assert {name for one in KNOWN for name in one.frameworks} <= there
    assert {name for one in KNOWN for name in one.archs} <= archs


def test_a_source_takes_its_bias_with_it_and_hands_little_of_it_on(cache) -> None:
    """Published rows of one source that are a quarter slower tell of that source."""
    rows = pd.DataFrame([
        LLAMA | {"n_gpus": 8, "global_batch": 32 * n, "source": source, "tp": tp}
        for source in ("one", "another", "third")
        for tp in (1, 2, 4)
        for n in (1, 2)
    ])  # fmt: skip
    expected_s = predict_steps(rows, cache=cache).frame["predicted_s"]
    slow = np.where(rows["source"] == "one", 1.25, 1.0)
    fitted = predict_steps(rows, fit_on=rows.assign(step_time_s=expected_s * slow), cache=cache)
    assert (fitted.frame["predicted_s"] / expected_s).to_numpy() == pytest.approx(slow, rel=0.05)
    new = predict_steps(rows.assign(source="new"), knobs=fitted.adaptation, cache=cache).frame
    assert (new["predicted_s"] / expected_s).between(0.97, 1.1).all()
    width = np.log(new["high_s"] / new["low_s"])
    assert (width > np.log(fitted.frame["high_s"] / fitted.frame["low_s"])).all()


def test_biases_of_sources_are_saved_and_read(cache, tmp_path) -> None:
    row = pd.DataFrame([LLAMA | {"n_gpus": 8, "global_batch": 32 * n} for n in (1, 2, 3, 4)])
    rows = row.assign(source="one", step_time_s=2.0 + row.index)
    fitted = predict_steps(rows, fit_on=rows, cache=cache).adaptation
    fitted.save(tmp_path / "knobs.json")
    (group,) = fitted.groups
    read = Adaptation.load(tmp_path / "knobs.json").groups[group]
    assert read.sources == fitted.groups[group].sources
    assert set(read.sources) == {"one"}


def test_a_pipeline_of_unequal_chunks_is_priced_between_equal_ones(cache) -> None:
    """61 layers on 16 stages of two chunks lie between 48 and 64."""
    row = LLAMA | {"pp": 16, "vp": 2, "n_gpus": 128, "micro_batch": 1, "global_batch": 256}
    own = dict(model="", family="llama", hidden=4096, heads=32, ffn=11008, vocab=32000, seq=4096)
    few, some, more = seconds(cache, *(row | own | {"layers": n} for n in (32, 61, 64)))
    assert few < some <= more * (1 + 1e-9)


def test_a_step_that_may_stall_reaches_to_that_branch(cache) -> None:
    """Of nanotron's pipelines over nodes one in eight takes a second or more for a micro-batch."""
    row = LLAMA | {"framework": "nanotron", "pp": 4, "tp": 4, "sharding": "zero1"}
    steady, stalling = steps(cache, row | {"dp": 1, "n_gpus": 16}, row | {"dp": 4}).itertuples()
    up, usual = (one.high_s / one.predicted_s for one in (stalling, steady))
    assert up > 1.3 * usual
    assert "stalls and takes far longer" in stalling.note


def test_cards_of_one_chip_differ_by_what_was_cut(cache) -> None:
    """An H800 is an H100 with slower NVLinks, an H20 one with a seventh of its arithmetic."""
    row = LLAMA | {"n_gpus": 8, "tp": 8, "global_batch": 32}
    full, links, arithmetic = steps(
        cache, *(row | {"gpu": gpu} for gpu in ("h100", "h800", "h20"))
    ).itertuples()
    assert links.compute_s == pytest.approx(full.compute_s)
    assert links.exposed_comm_s > 1.3 * full.exposed_comm_s
    assert 4 < arithmetic.compute_s / full.compute_s < 7


@pytest.mark.parametrize("gpu", ["mi300x", "gaudi3", "rtx 4090"])
def test_an_accelerator_without_any_measurement_has_a_wide_interval(cache, gpu) -> None:
    row = LLAMA | {"n_gpus": 8, "tp": 8, "global_batch": 32}
    known, new = steps(cache, row, row | {"gpu": gpu}).itertuples()
    assert new.high_s / new.low_s > 1.5 * known.high_s / known.low_s
    assert " assumed" in new.note


TITAN = {
    "model": "llama3-8b", "gpu": "H100-SXM5-80GB", "n_gpus": 8, "tp": 8, "micro_batch": 2,
    "global_batch": 8, "precision": "bf16", "framework": "torchtitan", "recompute": "none",
}  # fmt: skip
MIXTURE = {
    "model": "qwen3-30b-a3b", "gpu": "H100-SXM5-80GB", "tp": 1, "pp": 1, "dp": 16, "ep": 16,
    "micro_batch": 1, "global_batch": 256, "precision": "bf16", "framework": "megatron_core",
}  # fmt: skip


def test_torch_gathers_again_what_selective_checkpoints_do_not_keep(cache):
    """Its policy keeps products, attention and what was scattered: gathered tokens are not."""
    rows = [TITAN | {"recompute": mode} for mode in ("none", "selective")]
    exposed = steps(cache, *rows)["exposed_comm_s"]
    assert exposed[1] > exposed[0] * 1.1


def test_torch_copies_what_tensor_parallel_ranks_exchange():
    shape, layout = load_shape("llama3-8b"), Layout(tp=8, sequence_parallel=True)
    copies = {
        name: sum("put in order" in step.name for step in layer_passes(config).forward)
        for name in ("torchtitan", "megatron_core")
        for config in [TransformerConfig.run_by(name, shape, layout)]
    }
    assert copies == {"torchtitan": 4, "megatron_core": 0}  # of two gathers and two scatters


def test_a_release_is_read_and_counts_for_experts_alone(cache):
    said = ("26.04.01", "26.06", "26.08 NeMo Container")
    before, after, in_words = seconds(
        cache, *(MIXTURE | {"gpu": "B200", "release": one} for one in said)
    )
    assert before > after * 1.1
    assert in_words == after
    hopper = seconds(cache, *(MIXTURE | {"release": one} for one in ("26.04.01", "26.06")))
    assert len(set(hopper)) == 1  # the quicker kernels are Blackwell's
    dense = [TITAN | {"framework": "megatron_core", "release": one} for one in ("26.04", "26.06")]
    assert len(set(seconds(cache, *dense))) == 1


def test_rows_say_how_their_step_is_run(cache):
    """Columns for what a framework settles else, each of which makes the step longer here."""
    plain = LLAMA | {"pp": 4, "tp": 2, "framework": "megatron_core", "precision": "bf16"}
    plain |= {"fused_loss": "yes"}
    slower = (
        {"attention": "unfused"}, {"attention": "flash1"}, {"overlap_gradients": "no"},
        {"overlap_weights": "no"}, {"overlap_sends": "no"}, {"gradient_bytes": 4},
        {"dropout": "yes"}, {"fused_loss": "no"},
    )  # fmt: skip
    usual, *others = seconds(cache, plain, *(plain | one for one in slower))
    for one, step_s in zip(slower, others, strict=True):
        assert step_s > usual * (1 + 1e-6), one


def test_weights_of_products_in_8_bits_may_travel_so(cache):
    """Half of the bytes of a gather that nothing hides; in 16 bits the switch changes nothing."""
    row = LLAMA | {"framework": "megatron_core", "overlap_weights": "no", "precision": "fp8"}
    row |= {"fp8_param_gather": "no"}
    wide, narrow = seconds(cache, row, row | {"fp8_param_gather": "yes"})
    assert narrow < wide
    plain = row | {"precision": "bf16"}
    assert len(set(seconds(cache, plain, plain | {"fp8_param_gather": "yes"}))) == 1
    shards = row | {"sharding": "zero3", "overlap_shards": "no"}
    wide, narrow = seconds(cache, shards, shards | {"fp8_param_gather": "yes"})
    assert narrow < wide


def test_programs_and_recipes_fuse_their_loss(cache):
    """llm.c and FlashAttention's scripts do, Megatron-Core by default does not; recipes of
    Megatron-Bridge, which a source names, ask for it.
    """
    row = LLAMA | {"framework": "megatron_core", "precision": "bf16"}
    fused, own, llm_c, bridge, dao = seconds(
        cache, row | {"fused_loss": "yes"}, row, row | {"framework": "llm_c"},
        row | {"source": "nemo_megatron_bridge"}, row | {"framework": "flash_attention_1"},
    )  # fmt: skip
    assert own > fused * 1.001
    assert llm_c == pytest.approx(fused)
    assert bridge == pytest.approx(fused)
    assert dao > fused  # FlashAttention 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"attention": "linear"}, "attention"),
        ({"overlap_sends": "perhaps"}, "expected yes or no in overlap_sends, got 'perhaps'"),
        ({"gradient_bytes": "two"}, "expected a whole number of 1 or more in gradient_bytes"),
    ],
)
def test_a_switch_that_is_none_is_refused(cache, said, why):
    found = predict_steps(pd.DataFrame([LLAMA | said]), cache=cache).frame
    assert found["predicted_s"].isna().all()
    assert why in found["note"][0]


def test_long_idle_stages_are_taken_for_interleaved(cache):
    """Where nothing is said of chunks: 16 stages and as few micro-batches would idle half the time,
    and with many micro-batches nobody needs chunks.
    """
    row = {key: value for key, value in LLAMA.items() if key != "vp"}
    row |= {"pp": 8, "tp": 1, "framework": "megatron_core", "n_gpus": 8}
    few, many = steps(cache, row | {"global_batch": 8}, row | {"global_batch": 256})["note"]
    assert "vp 2 assumed: without, stages would idle" in few
    assert "vp 1 assumed" in many


def test_gpt_neox_is_known_by_its_name(cache):
    row = LLAMA | {"framework": "megatron_core", "gpu": "A100-SXM4-40GB", "precision": "fp16"}
    named, spelt, other = seconds(
        cache, row | {"framework": "gpt_neox"}, row | {"framework": "GPT-NeoX"}, row
    )
    assert named == spelt > other * 1.1


def test_blackwells_in_the_order_of_their_power(cache):
    """A GB200 has more of it than the B200 whose calibration prices both, a GB300 more than that:
    published dense steps take 1.19 to 1.28 times longer on a GB200 (Megatron-Bridge's tables); none
    is faster by more than its watts.
    """
    row = {"model": "llama3-8b", "tp": 1, "pp": 1, "dp": 8, "micro_batch": 2, "global_batch": 128}
    said = {"framework": "megatron_core", "precision": "bf16"}
    b200, gb200, gb300 = (
        seconds(cache, row | said | {"gpu": gpu})[0] for gpu in ("B200", "GB200", "GB300")
    )
    assert b200 > gb200 * 1.02
    assert 1.15 < gb200 / gb300 < 1.28
    assert b200 < gb300 * 1400 / 1000


def test_uneven_routing_takes_longer_for_products_and_messages(cache):
    """All ranks wait for the one whose experts get most tokens."""
    rows = [MIXTURE | {"routing": how} for how in ("balanced", "power_law_0.5", "power_law_1.2")]
    found = steps(cache, *rows, MIXTURE)
    assert (found["predicted_s"].iloc[:3].diff().iloc[1:] > 0).all()
    assert (found["exposed_comm_s"].iloc[:3].diff().iloc[1:] > 0).all()
    assert found["predicted_s"][3] == found["predicted_s"][0]
    wrong = predict_steps(pd.DataFrame([MIXTURE | {"routing": "fair"}]), cache=cache).frame
    assert "unknown distribution 'fair'" in wrong["note"][0]


def test_a_graph_of_launches_leaves_nothing_to_wait_for(cache):
    """A small model on a fast GPU waits for its host, unless its step is launched as one graph."""
    row = {"model": "gpt2", "gpu": "H100-SXM5-80GB", "n_gpus": 1, "tp": 1, "pp": 1}
    row |= {"micro_batch": 1, "global_batch": 1, "framework": "megatron_core"}
    said = steps(cache, row, row | {"framework": "megatron_core_graphs"})
    waiting, graph = said["host_s"]
    assert graph < 0.3 * waiting
    assert said["compute_s"][1] == pytest.approx(said["compute_s"][0], rel=0.05)


def test_mlperfs_bert_is_understood_without_a_layout(cache):
    """Its rules say data parallel; the note says what was taken for granted."""
    row = {"model": "bert", "gpu": "dgxh100_ngc23.04_pytorch", "n_gpus": 8, "global_batch": 768}
    row |= {"grad_accum": 1, "precision": "submission"}
    found = steps(cache, row | {"source": "mlperf_training_v3.0"})
    assert "without padding (256 of 512 tokens)" in found["note"][0]
    assert found["memory_bytes"][0] > 0
    other = predict_steps(pd.DataFrame([row | {"source": "somebody"}]), cache=cache).frame
    assert "expected a layout" in other["note"][0]


BERT = load_shape("mlperf-bert")


def bert(framework: str = "mlperf_bert", **own) -> TransformerConfig:
    layout = Layout(micro_batch=96, dp=16, zero=1, shard_ranks=8)
    return TransformerConfig.run_by(framework, BERT, layout, device=load_device("h100_sxm"), **own)


def test_epilogues_of_products_hold_what_loops_did():
    """Of MLPerf's BERT GELU and sums of biases; in 8 bits the gradient's loop narrows it, too."""

    def names(config):
        passes = layer_passes(config)
        return [step.name for step in (*passes.forward, *passes.backward)]

    others, own, wide = (
        names(one)
        for one in (bert("megatron_core", quant="fp8"), bert(), bert(quant="", dtype="bf16"))
    )
    assert {"mlp inner gelu", "mlp bias gradient", "qkv gradients joined"} <= {*others}
    assert not {"mlp inner gelu", "mlp bias gradient", "qkv gradients joined"} & {*own, *wide}
    assert "mlp inner gelu gradient" in own
    assert "mlp in gradient narrowed" not in own
    assert {"qkv weight narrowed", "qkv narrowed", "qkv gradient transposed"} <= {*own}
    assert not any("gelu" in name or "narrowed" in name or "bias" in name for name in wide)


def test_attention_in_8_bits_reads_and_multiplies_so():
    """And each token attends to as many as samples of its length have, not to the mean."""
    ops = {
        config.quant: next(s.op for s in layer_passes(config).forward if s.part == "attention")
        for config in (bert(), bert(quant="", dtype="bf16"))
    }
    assert (ops["fp8"].dtype, ops[""].dtype) == ("fp8", "bf16")
    for op in ops.values():
        assert op.q_len == BERT.attended > BERT.seq
        assert op.batch * op.q_len == pytest.approx(96 * BERT.seq)
    even = replace(BERT, attended=0)
    flops = [shape.forward_flops(1) for shape in (BERT, even)]
    core = 4 * BERT.layers * BERT.seq * BERT.hidden  # for each token attended to
    assert flops[0] - flops[1] == pytest.approx(core * (BERT.attended - BERT.seq))


def test_lamb_moves_three_numbers_more_than_adam():
    """Its update is written and read, and the weight read again: 40 bytes in place of 28."""
    sizes = [
        optimizer_passes(bert(optimizer=name))[-1].op.work().bytes for name in ("adam", "lamb")
    ]
    assert sizes[1] / sizes[0] == pytest.approx(40 / 28)


def test_switches_sum_in_a_time_that_more_nodes_do_not_change(cache):
    """Of MLPerf's small batches a GPU; ranks that sum by themselves take longer on more nodes."""
    row = {"source": "mlperf_training_v3.0", "model": "bert", "gpu": "h100", "precision": "bf16"}
    rows = [row | {"n_gpus": nodes * 8, "global_batch": nodes * 8 * 4} for nodes in (16, 256)]
    few, many = steps(cache, *rows)["exposed_comm_s"]
    assert many == pytest.approx(few, rel=0.02)
    alone = [one | {"framework": "mlperf_bert"} | {"source": "", "tp": 1, "pp": 1} for one in rows]
    few, many = steps(cache, *(one | {"model": "mlperf-bert"} for one in alone))["exposed_comm_s"]
    assert many > 1.1 * few


def test_mlperfs_bert_of_few_samples_runs_another_program():
    """Up to 6 a GPU in 16 bits, with logits of all tokens; else in 8."""
    row = {"source": "mlperf_training_v3.1", "model": "bert", "gpu": "h100", "n_gpus": 64}
    few, many = resolve(pd.DataFrame([row | {"global_batch": 64 * each} for each in (6, 7)])).rows
    assert (few.framework, few.config.quant) == ("mlperf_bert_few", "")
    assert (many.framework, many.config.quant) == ("mlperf_bert", "fp8")
    assert few.config.layout.shard_ranks == many.config.layout.shard_ranks == 8
    assert "without padding" in few.note


def test_heads_wider_than_a_kernel_takes_are_attended_to_unfused(cache):
    """FlashAttention 1 takes up to 128: Pythia 1B's 256 ran without it, its siblings' with it."""
    said = {"gpu": "a100_sxm4_80g", "n_gpus": 8, "tp": 1, "pp": 1, "micro_batch": 4}
    rows = [
        said | {"model": "gpt2", "framework": name, "heads": heads, "hidden": 2048, "layers": 8}
        for name, heads in (("gpt_neox", 8), ("gpt_neox", 16), ("nanotron", 8))
    ]
    wide, narrow, other = resolve(pd.DataFrame([row | {"global_batch": 32} for row in rows])).rows
    found = [row.config.attention for row in (wide, narrow, other)]
    assert found == ["unfused", "fused", "fused"]
    assert "flash1 takes no heads of 256" in wide.note
    setup = training_setup(wide.config.shape, "aws_p4de_a100", framework="gpt_neox")
    assert setup.config(wide.config.layout) == wide.config


ADAPTED = {
    "model": "llama2-70b", "gpu": "H100-SXM5-80GB", "tp": 4, "pp": 1, "dp": 2, "micro_batch": 1,
    "global_batch": 8, "precision": "bf16", "framework": "megatron_core",
}  # fmt: skip


def test_adapters_leave_out_gradients_of_frozen_weights(cache):
    """A third of the products, nearly all that is exchanged and updated, and 14 of 16 bytes."""
    whole, adapted, wider = (
        steps(cache, ADAPTED | one).iloc[0] for one in ({}, {"adapters": 16}, {"adapters": 512})
    )
    assert 0.6 < adapted["compute_s"] / whole["compute_s"] < 0.75
    assert adapted["compute_s"] < wider["compute_s"] < whole["compute_s"]
    assert adapted["memory_bytes"] < 0.6 * whole["memory_bytes"]
    row = resolve(pd.DataFrame([ADAPTED | {"adapters": 16}])).rows[0]
    config = row.config
    # 16 x (8192 + 8192 + 2 x 1024 of queries, keys and values + 2 x 8192) a layer
    assert config.trained_share * config.shape.parameters == 16 * (8192 * 4 + 2048) * 80
    graph = hp.predict(cache.prices(row.machine).model, hp.transformer(config)).time_s
    assert graph == pytest.approx(adapted["predicted_s"], rel=0.03)


def test_adapters_of_latent_attention_are_refused(cache):
    row = ADAPTED | {"model": "deepseek-v3", "adapters": 16, "dp": 8, "ep": 8}
    found = predict_steps(pd.DataFrame([row]), cache=cache).frame
    assert "adapters of latent attention are not modelled" in found["note"][0]


def test_messages_of_gradients_are_as_large_as_their_framework_has_them():
    """Megatron-Core's bucket is 40 million numbers by default: what takes many of PyTorch's 25 MB
    takes fewer of it, and no gradient is left out or sent twice.
    """
    layout = Layout(dp=64, micro_batch=1, accumulation=1, zero=1)
    large = TransformerConfig.run_by("megatron_core", load_shape("gpt2-medium"), layout)
    assert large.bucket_bytes == 40e6 * large.gradient_bytes
    sent = [buckets(one, 0) for one in (large, large.replace(bucket_bytes=25e6))]
    assert len(sent[0]) < len(sent[1])
    moved = [sum(step.call.bytes for one in found for step in one.steps) for found in sent]
    assert moved[0] == pytest.approx(moved[1])


def test_mlperf_rounds_run_as_their_submissions_say():
    """NVIDIA's GPT-3 recomputed attention in v3.0 alone; its attention is of the library of its
    day, its chunks of as many layers as its settings have. BERT's kernels are its own.
    """
    row = dict(
        model="gpt3-175b", gpu="h100", n_gpus=512, tp=4, pp=8, micro_batch=1, global_batch=2048
    )
    rounds = [row | {"source": f"mlperf_training_v{number}"} for number in ("3.0", "3.1", "4.0")]
    found = [one.config for one in resolve(pd.DataFrame(rounds))]
    assert [one.layout.recompute for one in found] == ["selective", "none", "none"]
    assert [one.attention_kernel for one in found] == ["flash1", "flash2", ""]
    assert [one.layout.vp for one in found] == [6, 12, 6]
    bert = {"model": "bert", "gpu": "h100", "n_gpus": 8, "global_batch": 768}
    (own,) = resolve(pd.DataFrame([bert | {"source": "mlperf_training_v3.0"}]))
    assert (own.config.attention_kernel, own.config.layout.recompute) == ("", "none")


def test_a_row_that_counts_two_thirds_of_the_flops_says_that_it_trained_adapters():
    row = LLAMA | {"step_time_s": 1.0, "tokens_per_s_gpu": 1e4}
    shape = load_shape("llama2-7b")
    whole = shape.model_flops(1e4, causal=True) / 1e12
    given = [row | {"tflops_gpu": share * whole} for share in (1.0, 4 / 3, 2 / 3)]
    flags = [one.flags for one in resolve(pd.DataFrame([*given, given[2] | {"adapters": 16}]))]
    assert ["adapters" in " ".join(one) for one in flags] == [False, False, True, False]
