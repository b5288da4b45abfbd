"""`hybridperf steps`: why a row does not fit, systems that are given, measured rows that cannot be
used, odd tables.
"""

import json
import re
import subprocess
import sys

import pandas as pd
import pytest

import hybridperf as hp
import hybridperf.workloads.memory
from hybridperf.cli import common as cli_common
from hybridperf.fields import fields_of
from hybridperf.hardware import load_device
from hybridperf.hardware import machines as names
from hybridperf.io import InputError, write_table
from hybridperf.io.documents import with_checksum
from hybridperf.model import model_or_datasheet
from hybridperf.model.adapted_steps import Adaptation
from hybridperf.training.steps.batch import PriceCache
from hybridperf.training.steps.predict import COLUMNS, predict_steps
from hybridperf.training.steps.rows import resolve
from hybridperf.workloads.transformer.framework import framework_habits

ROW = dict(
    source="mine", framework="megatron_core", family="gpt", gpu="a100_sxm4_80g", n_gpus=8,
    gpus_per_node=8, hidden=1024, heads=16, layers=8, seq=1024, vocab=50304, micro_batch=1,
    grad_accum=8, tp=1, dp=2, pp=4, precision="bf16", recompute="none", sharding="zero1",
)  # fmt: skip


@pytest.fixture(scope="module")
def cache():
    """Prices once for all tests."""
    return PriceCache()


def rows(*changes):
    return pd.DataFrame([ROW | change for change in changes])


def one(cache, system=None, device=None, **changes):
    return predict_steps(rows(changes), device, system, cache=cache).frame.iloc[0]


# --- fits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"grad_accum": 2}, "accumulation 2 is less than pp - 1 = 3"),
        (
            {"pp": 8, "dp": 1, "vocab": 131072},
            "8 layers and the head leave 2 of 8 stages empty",
        ),
    ],
)
def test_a_rule_of_nanotron_is_nanotrons(cache, changes, rule):
    ours, other = (
        one(cache, **changes, framework=framework) for framework in ("nanotron", "megatron_core")
    )
    assert not ours["fits"]
    assert "does not run under nanotron: " + rule in ours["note"]
    assert other["fits"]
    assert "does not" not in other["note"]


def test_what_does_not_fit_says_how_much_it_needs_and_how_much_there_is(cache):
    found = one(cache, hidden=12288, heads=96, layers=96, tp=1)
    assert not found["fits"]
    needs = (
        f"does not fit: the fullest rank needs {found['memory_bytes'] / 1e9:.4g} GB, 75.59 GB of"
        " 85.9 GB are usable"
    )
    assert needs in found["note"]


# --- systems --------------------------------------------------------------------------------------

RACK = dict(gpu="DGX-GB200", gpus_per_node=4, n_gpus=32, tp=8, dp=4, pp=1)


@pytest.mark.parametrize("system", ["aic_gb200", "gb200_nvl72"])
def test_a_rows_own_system_given_by_name_changes_nothing(cache, system):
    assert one(cache, **RACK)["predicted_s"] == one(cache, system, **RACK)["predicted_s"]


@pytest.mark.parametrize("system", ["aic_gb200", "aic_gb300", "azure_nd_gb200_v6", "gcp_a4x_gb200"])
def test_racks_stay_racks(system):
    found = names.machine("b200", "", None, system)
    assert (found.gpus_per_node, found.switched, found.whole) == (64, True, 4)
    (row,) = resolve(rows(RACK), system=system)
    assert row.config.group("tp").nodes == 1


def test_a_rack_has_the_network_of_its_nodes():
    rack, node = names.machine("gb200", "").system, names.load_system("aic_gb200")
    assert (
        rack.node_bytes_per_s / rack.accelerators_per_node
        == node.node_bytes_per_s / node.accelerators_per_node
    )
    assert (
        rack.nics_per_node / rack.accelerators_per_node
        == node.nics_per_node / node.accelerators_per_node
    )


@pytest.mark.parametrize(
    ("gpus", "refused"), [(72, ""), (36, ""), (70, "expected whole nodes of 4 GPUs, got 70 GPUs")]
)
def test_runs_take_nodes_of_a_rack_whole_not_racks(gpus, refused):
    (row,) = resolve(rows({**RACK, "n_gpus": gpus, "tp": 1, "dp": gpus}))
    assert refused in row.refused
    assert bool(refused) == (row.config is None)


def test_what_a_row_says_of_its_network_stands_where_its_own_system_is_given():
    """vTrain's cluster has half of the network that such nodes can have."""
    own = names.machine("a100_sxm4_80g", "vtrain")
    assert names.machine("a100_sxm4_80g", "vtrain", None, own.system.id) == own
    assert (
        names.machine("a100_sxm4_80g", "vtrain", None, "aws_p4de_a100").system.node_bytes_per_s
        == 50e9
    )


def test_a_system_that_nobody_knows_is_taken_for_the_devices_own_where_that_is_known():
    (found,) = names.machine("a40", "", row_system="no such").notes
    assert found == "system no such is not known: taken for vidur_a40_pairwise_nvlink"
    with pytest.raises(InputError, match="of l4, got no such, which is not known; name it by"):
        names.machine("l4", "", row_system="no such")


def test_nodes_of_another_system_replace_the_rows_and_the_note_says_so():
    given = {"gpu": "h100", "n_gpus": 8, "gpus_per_node": 4, "tp": 8, "dp": 1, "pp": 1}
    (own,), (found,) = resolve(rows(given)), resolve(rows(given), system="aws_p5_h100")
    assert (own.config.group("tp").nodes, found.config.group("tp").nodes) == (2, 1)
    assert "gpus_per_node 8 of the system that was given, in place of the row's 4" in found.note
    (same,) = resolve(rows({**given, "gpus_per_node": 8}), system="aws_p5_h100")
    assert "gpus_per_node" not in same.note


def test_collectives_over_nodes_are_no_faster_than_their_part_inside_one(cache):
    """Eight L40S share PCIe, which was measured; their network was not."""
    apart = {"gpu": "L40S", "tp": 1, "pp": 1, "hidden": 2048, "grad_accum": 1}
    inside, over = (
        one(cache, **apart, n_gpus=gpus, dp=gpus, gpus_per_node=8)["exposed_comm_s"]
        for gpus in (8, 16)
    )
    assert over >= inside * 0.99


# --- measured rows --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(cache):
    frame = rows(
        *(
            {"layers": layers, "seq": seq, "grad_accum": m}
            for layers in (8, 16)
            for seq in (512, 1024)
            for m in (8, 16)
        )
    )
    return frame.assign(step_time_s=1.2 * predict_steps(frame, cache=cache).frame["predicted_s"])


def test_groups_of_too_few_rows_say_whose_rows_predict_them(cache, measured):
    few = rows({"framework": "torchtitan"}).assign(step_time_s=1.0)
    hopper = rows({"framework": "llm_foundry", "gpu": "h100"}).assign(step_time_s=1.0)
    asked = rows({"framework": "torchtitan"}, {}, {"framework": "llm_foundry", "gpu": "h100"})
    found = predict_steps(asked, fit_on=pd.concat([measured, few, hopper]), cache=cache)
    assert any(
        said.startswith(
            "3 measured rows of torchtitan on Ampere sm_80 are needed to fit them, got 1;"
        )
        for said in found.remarks
    )
    assert any(
        said.endswith("got 1; such rows are predicted by default efficiencies")
        for said in found.remarks
    )
    borrowed, own, alone = found.frame["note"]
    assert (
        "fitted to rows of megatron_core on Ampere sm_80, since those of torchtitan on Ampere sm_80"
        " are too few (1)" in borrowed
    )
    assert "fitted to rows" not in own
    assert (
        "measured steps of llm_foundry on Hopper sm_90 too few to fit (1): default efficiencies"
        " alone" in alone
    )


def test_too_few_rows_are_remembered_by_saved_knobs(cache, measured, tmp_path):
    few = rows({"framework": "torchtitan"}).assign(step_time_s=1.0)
    found = predict_steps(few, fit_on=pd.concat([measured, few]), cache=cache)
    found.adaptation.save(tmp_path / "k.json")
    again = predict_steps(few, knobs=Adaptation.load(tmp_path / "k.json"), cache=cache)
    assert again.frame["note"][0] == found.frame["note"][0]


def test_rows_that_no_machine_explains_are_refused(cache, measured):
    wrong = measured.assign(step_time_s=1000 * measured["step_time_s"])
    with pytest.raises(
        InputError,
        match=(
            r"^expected step_time_s of whole steps in seconds, got 8 rows of megatron_core on"
            r" Ampere"
        ),
    ):
        predict_steps(rows({}), fit_on=wrong, cache=cache)


def test_the_command_says_it_of_wrong_units_and_writes_nothing(measured, refused, tmp_path):
    measured.assign(step_time_s=1e3 * measured["step_time_s"]).to_csv(
        tmp_path / "ms.csv", index=False
    )
    sentence = refused(
        "steps", tmp_path / "ms.csv", "--fit-on", tmp_path / "ms.csv", "--out", tmp_path / "o.csv"
    )
    assert "step_time_s of whole steps in seconds" in sentence
    assert not (tmp_path / "o.csv").exists()


def test_measured_rows_that_are_left_out_say_why(cache, measured):
    odd = measured.astype({"step_time_s": object}).assign(id=list("abcdefgh"))
    for at, value in enumerate(("1.2s", 0, True)):
        odd.loc[at, "step_time_s"] = value
    (said,) = (
        one for one in predict_steps(rows({}), fit_on=odd, cache=cache).remarks if "left out" in one
    )
    assert (
        said
        == "3 of 8 rows to fit on left out; the first, row 1 (a): expected seconds above zero in"
        " step_time_s, got '1.2s'"
    )
    with pytest.raises(
        InputError,
        match=(
            r"got at most 2, of .*; 6 of 8 rows to fit on left out; the first, row 1 \(a\): its"
            r" status is oom"
        ),
    ):
        predict_steps(
            rows({}),
            fit_on=odd.assign(step_time_s=1.0, status=["OOM"] * 6 + ["ok"] * 2),
            cache=cache,
        )
    with pytest.raises(
        InputError,
        match=(
            r"found none that ran and can be priced; the first, row 1 \(a\): expected seconds above"
            r" zero .* nan"
        ),
    ):
        predict_steps(rows({}), fit_on=odd.assign(step_time_s=float("nan")), cache=cache)


# --- odd tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"micro_batch": 10**18}, "micro_batch must be a billion or less, got 1000000000000000000"),
        ({"grad_accum": 1e30}, "accumulation must be a billion or less"),
        ({"tp": "8 GPUs"}, "expected a whole number of 1 or more in tp, got '8 GPUs'"),
        ({"n_gpus": "1,024"}, "expected a whole number of 1 or more in n_gpus, got '1,024'"),
        ({"tp": True}, "expected a whole number of 1 or more in tp, got 'True'"),
        ({"tp": 10**9, "dp": 10**9, "pp": 1, "n_gpus": None}, "must be a billion or less"),
    ],
)
def test_odd_values_refuse_their_row_and_no_other(cache, changes, says):
    bad, good = predict_steps(rows(changes, {}), cache=cache).frame.itertuples()
    assert says in bad.note
    assert bad.note.startswith("row 1: ")
    assert good.predicted_s > 0


@pytest.mark.parametrize(
    ("said", "same"),
    [
        ({"sharding": "ZeRO-1"}, {}),
        ({"recompute": "No"}, {}),
        ({"recompute": " NONE "}, {}),
        ({"precision": "BF16 "}, {}),
        ({"gpu": "A100 🚀"}, {}),
        ({"framework": "Megatron-Core"}, {}),
        ({"recompute": "yes"}, {"recompute": "full"}),
        ({"schedule": "1F1B"}, {}),
        ({"offload": "FALSE"}, {}),
        ({"tp": "1.0"}, {}),
    ],
)
def test_words_as_people_write_them(said, same):
    (one,), (other,) = resolve(rows(said)), resolve(rows(same))
    assert one.config == other.config


def test_a_framework_that_nobody_knows_is_said():
    (row,) = resolve(rows({"framework": "PyTorch Lightning"}))
    assert "framework pytorch_lightning is not known, only eager_pytorch, " in row.note
    assert "priced as the mean over others" in row.note


@pytest.mark.parametrize(("missing", "value"), [("tp", 1), ("pp", 4)])
def test_a_degree_that_the_others_leave_no_choice_of_follows(missing, value):
    (row,) = resolve(rows({missing: None}))
    assert getattr(row.config.layout, missing) == value
    assert f"{missing} {value}" in row.note


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "gpu,tp\na100,8\n",
            (
                "expected a column model, or hidden, heads, layers, seq, vocab, in a table of"
                " training steps, got 'gpu'"
            ),
        ),
        ("model;gpu\ngpt3-13b;a100\n", "; separate cells by commas, not semicolons"),
        ("model\tgpu\ngpt3-13b\ta100\n", "; separate cells by commas, not tabs"),
        ("", "is empty; expected a header line and at least one row"),
        ("model,gpu\n", "has a header but no rows"),
    ],
)
def test_tables_without_a_model_are_refused_whole(refused, tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    assert says in refused("steps", tmp_path / "t.csv", "--out", tmp_path / "o.csv")


def test_a_misspelt_column_is_refused_by_name_and_others_pass(run, refused, tmp_path):
    mine = rows({"note_of_mine": "x", "url": "y"})
    mine.rename(columns={"micro_batch": "micro_bacth", "sharding": "shardng"}).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert (
        "got 'micro_bacth' (did you mean 'micro_batch'?), 'shardng' (did you mean 'sharding'?);"
        " rename or drop them" in refused("steps", tmp_path / "t.csv", "--out", tmp_path / "o.csv")
    )
    mine.rename(columns={"micro_batch": "MicroBatch", "sharding": "zero_stage"}).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert run("steps", tmp_path / "t.csv", "--out", tmp_path / "o.csv")[0] == 0
    found = pd.read_csv(tmp_path / "o.csv")
    assert {"MicroBatch", "zero_stage", "url"} <= {*found}
    assert found["predicted_s"][0] == predict_steps(rows({})).frame["predicted_s"][0]


def test_a_name_of_no_format_is_refused_before_any_work(refused, tmp_path):
    assert "expected an output name ending in .csv, .csv.gz or .parquet, got o.txt" in refused(
        "steps", tmp_path / "nosuch.csv", "--out", tmp_path / "o.txt"
    )


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_formats_in_and_out_say_the_same(cache, run, tmp_path, ending):
    from hybridperf.io import read_table

    write_table(rows({"id": "x"}), tmp_path / f"in{ending}")
    assert run("steps", tmp_path / f"in{ending}", "--out", tmp_path / f"out{ending}")[0] == 0
    assert read_table(tmp_path / f"out{ending}")["predicted_s"][0] == pytest.approx(
        one(cache)["predicted_s"]
    )


# --- accelerators that are given ------------------------------------------------------------------

_NAMED = sorted({entry["device"] for entry in names.aliases()["gpu"]})


@pytest.mark.parametrize("device", _NAMED)
def test_an_accelerator_is_the_same_by_option_and_in_the_table(device):
    found = names.machine("", "", device)
    assert found == names.machine(device, "")
    assert found.device == device


@pytest.mark.parametrize(
    ("device", "system"),
    [("h100_sxm", "aic_h100_sxm"), ("h200_sxm", "aic_h200_sxm"), ("a100_pcie_80g", "8x_a100_pcie")],
)
def test_a_device_that_is_given_has_its_own_nodes(device, system):
    assert names.machine("", "", device).system.id == system


def test_what_options_replace_is_said():
    (row,) = resolve(rows({}), device="h100_sxm", system="dgx_h100")
    assert "device h100_sxm was given, in place of the row's gpu a100_sxm4_80g" in row.note
    (links,) = resolve(rows({}), system="dgx_h100")
    assert (
        "links of aic_h100_sxm, whose accelerator is a H100-SXM5-80GB, for a a100_sxm4_80g"
        in links.note
    )
    (mixed,) = resolve(rows({"system": "dgx_b200"}))
    assert "links of aic_b200_sxm, whose accelerator is a" in mixed.note
    for options in ({}, {"device": "a100_sxm4_80g"}, {"system": "aws_p4de_a100"}):
        (same,) = resolve(rows({}), **options)
        assert "links of" not in same.note
        assert "was given, in place" not in same.note


def test_an_unknown_accelerator_is_told_the_names_near_it():
    with pytest.raises(
        InputError,
        match=r"^unknown gpu 'A101': name one of a100_pcie_80g, .* in gpu or by --device$",
    ):
        names.machine("A101", "")
    for told in (("MI250", ""), ("", "", "mi210")):
        (note,) = [one for one in names.machine(*told).notes if "no system" in one]
        assert note.endswith("is known: links of 8x_a100_pcie assumed")
    with pytest.raises(InputError, match="got nowhere, which is not known"):
        names.machine("MI250", "", row_system="nowhere")
    assert "system 8x_a10_pcie assumed" in names.machine("NVIDIA A10", "").notes


def device_file(path, gb_per_s=2039, name="mine"):
    """An A100 with another memory."""
    spec = load_device("a100_sxm4_80g").model_dump(
        exclude_none=True, exclude={"id", "peak_flops_per_s"}
    )
    lines = [
        f"{field} = {json.dumps(value)}"
        for field, value in {**spec, "memory_bytes_per_s": gb_per_s * 1e9}.items()
    ]
    path.write_text(
        f"[{name}]\n"
        + "\n".join(lines)
        + f"\n[{name}.peak_flops_per_s]\nbf16 = 312e12\nfp32 = 19.5e12\n"
    )
    return str(path)


def test_a_file_of_a_device_is_a_device_everywhere(run, tmp_path):
    """In tables of steps, of ops and in plans; it may change between two calls."""
    mine = device_file(tmp_path / "h100.toml")
    asked = {"system": "aic_a100_sxm", "cache": PriceCache()}
    full = predict_steps(rows({"gpu": None}), mine, **asked).frame.iloc[0]
    assert "no products in bf16 of mine were measured" in full["note"]
    assert "in place of" not in full["note"]
    device_file(tmp_path / "h100.toml", 200)
    slow = predict_steps(rows({"gpu": None}), mine, **asked).frame.iloc[0]
    assert slow["predicted_s"] > 1.2 * full["predicted_s"]
    found = hp.plan(
        "gpt3-125m", "aic_a100_sxm", 8, batch=16, device=mine, only={"cp": 1, "recompute": "none"}
    )
    assert found.setup.device.id == "mine"
    assert not any("in place of" in note for note in found.notes)
    assert model_or_datasheet(mine).device.id == "mine"
    write_table(
        pd.DataFrame([{"op": "gemm", "dtype": "bf16", "m": 64, "n": 64, "k": 64}]),
        tmp_path / "ops.csv",
    )
    assert run("ops", tmp_path / "ops.csv", "--model", mine, "--out", tmp_path / "out.csv")[0] == 0


# --- files that are kept --------------------------------------------------------------------------


def test_no_file_that_is_read_is_written_over(measured, refused, tmp_path):
    table, train, link = tmp_path / "rows.csv", tmp_path / "train.csv", tmp_path / "link.csv"
    rows({}).to_csv(table, index=False)
    measured.to_csv(train, index=False)
    link.symlink_to(table)
    before = table.read_bytes(), train.read_bytes()
    for arguments in (
        ("--out", table),
        ("--out", link),
        ("--out", tmp_path / "sub" / ".." / "rows.csv"),
        ("--fit-on", train, "--out", train),
    ):
        assert "which would be lost; give a new name" in refused("steps", table, *arguments)
    fitting = ("steps", table, "--fit-on", train, "--out", tmp_path / "o.csv", "--save-knobs")
    assert "a name ending in .json in --save-knobs" in refused(*fitting, table)
    assert "a name ending in .json in --save-knobs" in refused(*fitting, tmp_path / "kk.txt")
    assert "which would be lost" in refused("ops", table, "--model", "h100_sxm", "--out", table)
    assert (table.read_bytes(), train.read_bytes()) == before


def test_two_outputs_are_two_files(tmp_path):
    one = {"--out": tmp_path / "a", "--html": tmp_path / "b", "--timeline": None}
    cli_common.keep_files(one, [tmp_path / "c", None])
    with pytest.raises(InputError, match=r"^expected different files in --out and --html"):
        cli_common.keep_files({**one, "--html": tmp_path / "a"}, [])


# --- models and sizes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"family": "moe"},
            "expected experts and topk of a family moe given by its sizes, got nothing",
        ),
        ({"family": "moe", "experts": 8}, "expected topk of a family moe"),
        (
            {"family": "t5"},
            "expected decoder_layers of a family t5 given by its sizes, got nothing",
        ),
    ],
)
def test_families_that_need_more_sizes_ask_for_them(changes, says):
    (row,) = resolve(rows(changes))
    assert says in row.refused


def test_families_by_sizes_are_what_they_say():
    experts, encoder = resolve(
        rows(
            {"family": "moe", "experts": 8, "topk": 2},
            {"family": "t5", "decoder_layers": 8, "pp": 1, "dp": 8},
        )
    )
    assert (experts.config.shape.experts, experts.config.shape.topk) == (8, 2)
    assert (encoder.config.shape.decoder_layers, encoder.config.shape.positions) == (8, "relative")


NAMED = dict.fromkeys(("hidden", "heads", "layers", "vocab", "family"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "gpt3-13b", "layers": 80}, "layers 80 given, gpt3-13b has 40"),
        ({"model": "llama3-8b", "hidden": 1024}, "hidden 1024 given, llama3-8b has 4096"),
        (
            {"model": "gpt3-13b", "family": "llama"},
            "family llama given, gpt3-13b is a gpt: predicted as that",
        ),
        ({"model": "gpt3-13b", "experts": 8, "topk": 2}, "experts 8 given, gpt3-13b has none"),
        (
            {"model": "bert-large", "seq": 65536},
            "seq 65536 given, bert-large has 512 learned positions",
        ),
        (
            {"model": "gpt2", "seq": 4096, "pp": 1, "dp": 8},
            "seq 4096 given, gpt2 has 1024 learned positions",
        ),
    ],
)
def test_a_name_and_sizes_that_differ_are_said(changes, says):
    (row,) = resolve(rows(NAMED | changes))
    assert row.config is not None
    assert says in row.note


def test_a_name_and_sizes_that_agree_are_not():
    same = {
        "model": "gpt3-13b",
        "family": "GPT",
        "layers": 40,
        "heads": 40,
        "kv_heads": 40,
        "head_dim": 128,
        "vocab": 50304,
        "seq": 1024,
    }
    (row,) = resolve(rows(NAMED | same))
    assert "given" not in row.note
    (rotary,) = resolve(
        rows(
            NAMED
            | {"model": "llama3-8b", "seq": 131072, "framework": "torchtitan", "pp": 1, "dp": 8}
        )
    )
    assert "given" not in rotary.note


def test_heads_too_wide_for_fused_attention_are_said():
    wide, usual = resolve(rows({"heads": 2}, {"heads": 4}))
    assert (
        "fused attention assumed for heads of 512, which kernels of up to 256 do not take"
        in wide.note
    )
    assert "fused attention" not in usual.note


def test_links_that_stand_for_others_are_said_only_where_they_do():
    assert "nodes of T4s are priced with PCIe 4 links" in names.machine("t4", "").notes
    assert (
        "nodes of T4s are priced with PCIe 4 links"
        not in names.machine("t4", "", None, "deepbench_nv_t4").notes
    )


# --- what is assumed, and refused -----------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 0, 1.5, "nan.", "1e400"])
def test_a_number_that_is_none_is_told_one_rule(value):
    (row,) = resolve(rows({"micro_batch": value}))
    assert (
        f"expected a whole number of 1 or more in micro_batch, got {value!r}".replace(
            "'1e400'", "1e400"
        )
        in row.refused
    )


def test_nodes_that_are_assumed_are_not_broken_nor_refuse_a_row():
    (assumed,) = resolve(rows({"gpus_per_node": None, "n_gpus": 12, "dp": 3}))
    assert not assumed.refused
    assert assumed.config.gpus_per_node == 6
    assert "gpus_per_node 6 assumed: no whole nodes of 8" in assumed.note
    (given,) = resolve(rows({"n_gpus": 12, "dp": 3}))
    assert "expected whole nodes of 8 GPUs, got 12 GPUs" in given.refused


def test_an_assumed_framework_says_what_it_implies():
    (row,) = resolve(rows({"framework": None}))
    assert (
        "framework megatron_core assumed (where the row does not say: ZeRO 1, fused attention, "
        in row.note
    )
    habits = framework_habits()["megatron_core"]
    assert (
        habits["zero"],
        habits["attention"],
        habits["sequence_parallel"],
        habits["overlap_gradients"],
    ) == (1, "fused", True, True)
    assert habits["recompute"] == "none"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("zb", "zero_bubble"),
        ("ZB-H1", "zero_bubble"),
        ("interleaved-1F1B", "interleaved"),
        ("1f1b", "1f1b"),
        ("ZBV", "zb_v"),
        ("ZBVZeroBubble", "zb_v"),
        ("DualPipeV", "dualpipe_v"),
    ],
)
def test_schedules_by_other_names(said, meant):
    one = {"schedule": said, "pp": 2, "dp": 4, "grad_accum": 8}
    (row,) = resolve(rows(one | {"vp": 2 if meant == "interleaved" else None}))
    assert row.config.layout.schedule == meant


def test_chunks_without_a_schedule_are_said_to_interleave():
    (row,) = resolve(rows({"vp": 2}))
    assert row.config.layout.schedule == "interleaved"
    assert "schedule interleaved (vp 2) assumed" in row.note
    (said,) = resolve(rows({"vp": 2, "schedule": "interleaved"}))
    assert "schedule" not in said.note


def test_a_short_chimera_is_not_told_the_rule_of_one_way_pipelines():
    short = {"pp": 8, "dp": 1, "layers": 16, "grad_accum": 4, "sharding": None}
    two_ways, one_way = resolve(
        rows({**short, "schedule": "chimera"}, {**short, "schedule": "1f1b"})
    )
    assert "a pipeline needs pp - 1 micro-batches" in one_way.note
    assert two_ways.config is not None
    assert "a pipeline needs pp - 1 micro-batches" not in two_ways.note


@pytest.mark.parametrize("seq", [512, 1000, 1024, 2048, 4096])
def test_one_gpu_exposes_no_communication(cache, seq):
    assert one(cache, n_gpus=1, gpus_per_node=1, tp=1, pp=1, dp=1, seq=seq)["exposed_comm_s"] == 0.0


# --- files ----------------------------------------------------------------------------------------


def test_words_of_ones_own_columns_are_kept(run, tmp_path):
    text = "id,tag,mine,count,model,gpu,n_gpus,global_batch,pp,tp,recompute\n"
    text += "007,NA,x,,llama3-8b,H100,8,8,1,8,NA\n1e5,null,nan,2,llama3-8b,H100,8,8,1,8,\n"
    text += "8,,,,llama3-8b,H100,8,8,1,8,none\n"
    (tmp_path / "t.csv").write_text(text)
    asked = ["steps", tmp_path / "t.csv", "--keep", "mine,count", "--out"]
    assert run(*asked, tmp_path / "o.csv")[0] == 0
    found = pd.read_csv(tmp_path / "o.csv", dtype=str, keep_default_na=False)
    assert found["id"].tolist() == ["007", "1e5", "8"]
    assert found["tag"].tolist() == ["NA", "null", ""]
    assert found["mine"].tolist() == ["x", "nan", ""]
    assert run(*asked, tmp_path / "o.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "o.parquet")["tag"].tolist()[:2] == ["NA", "null"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda knobs: knobs.update(gem=1.0), "'gem' is no knob (did you mean 'gemm'?)"),
        (lambda knobs: knobs.update(gemm="1.0"), "gemm is no number but '1.0'"),
        (lambda knobs: knobs.pop("gemm"), "knob gemm is missing"),
    ],
)
def test_knobs_that_are_no_knobs_are_named(cache, measured, tmp_path, change, says):
    path = tmp_path / "k.json"
    predict_steps(measured, fit_on=measured, cache=cache).adaptation.save(path)
    document = json.loads(path.read_text())
    (group,) = document["groups"].values()
    change(group["knobs"])
    path.write_text(json.dumps(with_checksum(document)))
    with pytest.raises(InputError) as error:
        Adaptation.load(path)
    assert str(error.value) == f"{path} is damaged ({says}); fit the rows again"
    del document["groups"]
    path.write_text(json.dumps(with_checksum(document)))
    with pytest.raises(InputError, match="'groups' is missing"):
        Adaptation.load(path)


# --- help and names -------------------------------------------------------------------------------


def test_help_names_every_column(run):
    status, printed, _ = run("steps", "--help")
    assert status == 0
    words = set(re.findall(r"\w+", printed))
    fields = fields_of("steps")
    assert not {*fields.by_name, *COLUMNS, *framework_habits()} - words
    legal = {word for one in fields for word in one.words if word}
    assert legal <= words
    assert "whole square, not its causal half" in printed


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("hybridperf.workloads.memory", "memory"),
        ("hybridperf.engine.elasticities", "elasticities"),
    ],
)
def test_a_public_function_is_found_whatever_was_imported_before(module, name):
    """A submodule of the same name, imported first, must not stand in for the function."""
    checks = (
        f"import inspect; import {module}; import hybridperf as hp",
        f"assert inspect.isfunction(hp.{name}), hp.{name}",
        f"assert hp.{name}.__name__ == '{name}'",
    )
    subprocess.run([sys.executable, "-c", "\n".join(checks)], check=True)


def test_memory_and_its_knobs_are_public():
    shape, layout = hp.load_shape("llama3-8b"), hp.Layout(tp=8)
    use = hp.memory(shape, layout, knobs=hp.MemoryKnobs())
    assert use.peak_bytes == hybridperf.workloads.memory.memory(shape, layout).peak_bytes
    assert hp.MemoryKnobs is hybridperf.workloads.memory.MemoryKnobs


# --- one bad measurement --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "kept"), [(1000.0, "left out"), (1e-3, "left out"), (10.0, "kept")]
)
def test_a_measured_row_far_from_the_others_is_named(cache, measured, factor, kept):
    bad = measured.assign(id=list("abcdefgh"))
    bad.loc[2, "step_time_s"] *= factor
    found = predict_steps(measured, fit_on=bad, cache=cache)
    (said,) = (one for one in found.remarks if "far longer or shorter" in one)
    assert said.startswith(
        "1 rows to fit on took far longer or shorter than others of their group let expect, and"
        f" are {kept}; the worst,"
    )
    assert f"row 3 (c): {factor:.3g} times"[:12] in said
    if kept == "left out":
        clean = predict_steps(measured, fit_on=measured.drop(index=2), cache=cache).frame
        assert found.frame["predicted_s"].to_numpy() == pytest.approx(
            clean["predicted_s"].to_numpy()
        )


def test_rows_that_agree_are_not_named(cache, measured):
    assert not any(
        "far longer" in one for one in predict_steps(measured, fit_on=measured, cache=cache).remarks
    )


@pytest.mark.parametrize(
    "changes",
    [{"seq": 10**9}, {"seq": 1}, {"n_gpus": 10**8, "dp": 10**8 // 4}, {"micro_batch": 4096}],
)
def test_sizes_far_from_all_that_was_measured_are_said(changes):
    name, value = next(iter(changes.items()))
    far, usual = resolve(rows(changes, {}))
    assert far.config is not None
    assert f"{name} {value} is far outside measured steps (" in far.note
    assert "far outside" not in usual.note
