"""What the closed composition chooses, by the full graph of each step; and what measured sweeps say of it. Minutes: `pytest -m slow`."""

import pandas as pd
import pytest

from hybridperf.plans.confirm import confirm, neighbours
from hybridperf.plans.run import plan
from hybridperf.validate.plan_graph import CASES, WITHIN, by_graph, slower
from hybridperf.validate.plans import judge

# Case 3: a vocabulary of 128,256 on the last of two interleaved stages and two micro-batches; the closed form is 8 % short there
KNOWN_LIMIT = {3: 1.08}


@pytest.mark.slow
@pytest.mark.parametrize("at", range(len(CASES)), ids=lambda at: CASES[at].model)
def test_the_choice_is_near_brute_force_by_the_graph(at):
    """Every layout of a narrowed space by its whole graph."""
    assert slower(by_graph(CASES[at])) <= KNOWN_LIMIT.get(at, WITHIN)


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
