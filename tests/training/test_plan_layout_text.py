"""What a plan says in words and values: power and money, names of fields, notes, tables of fronts
and comparisons.
"""

import numpy as np
import pytest

import hybridperf as hp
from hybridperf.engine.economy import economy
from hybridperf.engine.step_features import StepParts
from hybridperf.io import InputError
from hybridperf.training.plans.explain import NAIVE, compared, differences
from hybridperf.training.plans.layout_text import counted, layout_words
from hybridperf.training.plans.ranked import plan_front
from hybridperf.training.plans.report import dollars
from hybridperf.training.plans.setup import training_setup
from hybridperf.workloads.transformer import Layout, load_shape
from hybridperf.workloads.transformer.zoo import HABITS, shape_names

PRICE = """schema = "hybridperf/prices"
schema_version = 1
"""
OWN = """[{}]
value = {}
unit = "any"
date = "2026-01"
source = "ours"
"""


@pytest.fixture(scope="module")
def found():
    return hp.plan("gpt3-125m", "dgx_h100", 8, batch=16, tokens=1e9, only={"cp": [1]})


@pytest.fixture(scope="module")
def report(found):
    return hp.plan_report(found)


def prices(folder, **values):
    file = folder / "mine.toml"
    file.write_text(PRICE + "".join(OWN.format(name, value) for name, value in values.items()))
    return file


def test_messages_draw_between_idle_and_full_clock(found):
    """A second of messages takes more than one of idleness and less than one of arithmetic."""
    rates = found.economy
    taken = [
        rates.energy_j(1, StepParts(1.0, work, messages, 1.0, 0.0, 0.0))
        for work, messages in ((0, 0), (0, 1), (1, 0))
    ]
    assert taken[0] < taken[1] < taken[2]
    assert any("gpu_message_share 0.4" in said for said in rates.notes)


def test_an_owner_pays_the_meter(found, tmp_path):
    """With a rent of 0 money is electricity, so its price per kWh is in every figure."""
    rates = economy(found.setup.device, prices(tmp_path, gpu_usd_per_hour=0.0, usd_per_kwh=0.5))
    parts = StepParts(3600.0, 1800.0, 0.0, 0.0, 1800.0, 0.0)
    assert rates.money == "electricity"
    assert rates.usd(4, parts) == pytest.approx(rates.energy_j(4, parts) / 3.6e6 * 0.5)
    owned = hp.plan(
        "gpt3-125m",
        "dgx_h100",
        8,
        batch=16,
        objective="cost",
        only={"cp": [1]},
        prices=tmp_path / "mine.toml",
    )
    energy = owned.top(len(owned))["energy_j"]
    assert (np.diff(energy) >= -1e-9 * energy.iloc[0]).all(), "ranked by electricity"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("gpu_message_share", 1.5, "from 0 to 1"), ("pue", 0.5, "1 or more"), ("host_w", -1, "0 or")],
)
def test_rates_that_cannot_be_are_refused(found, tmp_path, name, value, says):
    with pytest.raises(InputError, match=says):
        economy(found.setup.device, prices(tmp_path, **{name: value}))


def test_a_date_is_said_once(found):
    assert all(said.count("2026-11") <= 1 for said in found.prices)


def test_money_tells_ten_ranks_apart():
    assert [dollars(value) for value in (0.023456, 0.023466, 12.3456, 123456.0, float("nan"))] == [
        "0.02346 USD", "0.02347 USD", "12.35 USD", "123,456 USD", "-",
    ]  # fmt: skip


def test_money_that_nobody_knows_says_why():
    shape = load_shape("gpt3-125m")
    rates = economy(training_setup(shape, "alcf_polaris", device="mi210").device)
    assert "give mi210_usd_per_hour" in rates.unknown
    assert economy(training_setup(shape, "aic_gb200").device).usd_per_hour


def test_the_peak_of_mfu_is_that_of_the_products(found):
    narrow = training_setup(found.setup.shape, "dgx_h100", quant="fp8")
    assert narrow.mfu_format == "fp8"
    assert narrow.mfu_flops_per_s == pytest.approx(2 * found.setup.mfu_flops_per_s, rel=0.01)
    assert any(
        "MFU is of the bf16 peak" in note and "counted in full" in note for note in found.notes
    )


def test_notes_are_of_the_machine_that_was_asked_for(found):
    shape = found.setup.shape
    assert not any("PCIe" in note or "96 GB" in note for note in found.notes)
    assert not any("GH200" in note for note in training_setup(shape, "aws_p5e_h200").notes)
    assert any(
        "calibration of a B200" in note for note in training_setup(shape, "aic_gb200").notes
    ), "what matters still stands"


def test_words_are_the_same_everywhere():
    a = Layout(tp=2, dp=4, micro_batch=2, accumulation=4, zero=1, sequence_parallel=True)
    b = Layout(tp=2, dp=4, micro_batch=4, accumulation=2, zero=0)
    assert differences(a, b) == "sequence parallel off, no ZeRO, micro-batch 4, 2 micro-batches"
    assert [counted(1, "GPU"), counted(4110, "layout")] == ["1 GPU", "4,110 layouts"]


def test_the_report_defines_what_it_says(found, report):
    assert NAIVE in report
    assert "rank order: which ranks are neighbours" in report
    assert "of rent" in report
    assert "by the meter" in report
    assert "micro_batch" not in report


def test_a_plan_is_short_and_gives_tables(found):
    assert len(repr(found)) < 200
    assert "gpt3-125m on 8 x h100_sxm" in repr(found)
    front = found.front("time", "memory")
    assert front.index.tolist() == plan_front(found, "time", "memory").tolist()
    assert (np.diff(front["time_s"]) > 0).all()
    assert (np.diff(front["memory_bytes"]) < 0).all()
    beside = found.compared()
    assert beside.index.tolist() == [one.what for one in compared(found)]
    assert beside.loc["winner", "time_s"] == found.step_s(found.choice(0))
    assert beside.loc["winner", "differs"] == "nothing"
    with pytest.raises(InputError, match="memory"):
        found.front("time", "memry")


def test_a_family_brings_its_habits(tmp_path):
    sizes = "hidden = 4096\nheads = 32\nlayers = 32\nffn = 11008\nvocab = 32000\nseq = 2048\n"
    (tmp_path / "mine.toml").write_text(f'[mine]\nfamily = "llama"\n{sizes}')
    mine = load_shape(tmp_path / "mine.toml")
    assert mine.parameters == load_shape("llama-7b").parameters
    assert mine.note.startswith(HABITS)
    assert mine.note in training_setup(mine, "dgx_h100").notes
    (tmp_path / "said.toml").write_text(f'[mine]\nfamily = "llama"\n{sizes}gated = false\n')
    assert not load_shape(tmp_path / "said.toml").gated, "what the file says stands"


@pytest.mark.parametrize(
    "name", ["llama-7b", "mixtral-8x7b", "t5-base", "bert-large", "vit-b-16", "gpt2"]
)
def test_habits_are_those_of_published_models(name, tmp_path):
    from hybridperf.workloads.transformer.zoo import _HABITS

    shape = load_shape(name)
    for field, value in _HABITS.get(shape.family, {}).items():
        assert getattr(shape, field) == value
    assert name in shape_names()


def test_a_schedule_that_chunks_do_not_tell_is_named():
    folded = {"pp": 2, "vp": 2, "dp": 4, "accumulation": 8}
    names = ("interleaved", "zb_v", "dualpipe_v")
    words = [layout_words(Layout(**folded, schedule=one)) for one in names]
    assert words[0] == "pp 2, vp 2, dp 4, 8 x micro-batch 1"
    assert words[1] == "pp 2, vp 2, dp 4, schedule zb_v, 8 x micro-batch 1"
    assert len(set(words)) == 3
