"""What the closed composition chooses, by the full graph of each step; and what measured sweeps say of it. Minutes: `pytest -m slow`."""

import dataclasses

import pandas as pd
import pytest

from hybridperf.plan.confirm import confirm, full_s, neighbours
from hybridperf.plan.run import plan
from hybridperf.validate.plans import judge
from hybridperf.workloads.transformer import load_shape

WITHIN = 1.05
ONLY = {"cp": [1], "zero": [0, 1], "recompute": ["none"], "micro_batch": [1, 2], "schedule": ["1f1b", "interleaved"], "vp": [1, 2]}
CASES = [("gpt3-6.7b", 8, 8, 16, WITHIN), ("gpt3-13b", 12, 16, 32, WITHIN), ("llama2-7b", 8, 16, 32, WITHIN)]
# A vocabulary of 128,256 on the last of two interleaved stages and two micro-batches: the closed form of unlike stages is 8 % short there
KNOWN_LIMIT = ("llama3-8b", 8, 16, 16, 1.08)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layers", "gpus", "batch", "within"), [*CASES, KNOWN_LIMIT], ids=lambda x: str(x))
def test_the_choice_is_near_brute_force_by_the_graph(model, layers, gpus, batch, within):
    """Every layout of a narrowed space by its whole graph."""
    shape = dataclasses.replace(load_shape(model), layers=layers, seq=2048)
    found = plan(shape, "aic_h100_sxm" if "llama" in model else "aic_a100_sxm", gpus, batch=batch, only=ONLY)
    prices = found.setting.prices
    by_graph = [full_s(prices.model, prices.links, found.config(found.choice(rank))) for rank in range(len(found))]
    assert by_graph[0] <= within * min(by_graph)


@pytest.mark.slow
def test_neighbours_by_the_graph_confirm_the_winner_of_gpt3_on_512():
    found = plan("gpt3-175b", "aic_a100_sxm", 512, batch=512, only={"cp": [1]})
    first, *others = confirm(found, neighbours(found, 4))
    assert len(others) == 4
    assert first.graph_s <= WITHIN * min(one.graph_s for one in others)


@pytest.mark.slow
def test_measured_sweeps_confirm_what_is_ranked_first(data_dir):
    """Cases of the ultra-scale sweep, efficiencies from other models: four of five within a tenth of the best, more than any rule has."""
    rows = pd.read_csv(data_dir / "training_steps" / "train_steps_dev.csv.gz", low_memory=False)
    judged = judge(rows, fits=("other cases",))
    planned, best_rule = judged[0], judged[2]
    assert planned.close >= 0.8
    assert planned.close > best_rule.close
