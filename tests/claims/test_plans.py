"""Does a plan choose well: tables and refusals of the claim."""

import pandas as pd
import pytest

from benchmarks.claims import plans


def test_tables_of_plans_say_cases_and_goals() -> None:
    judged = [
        plans.Choice("plan, other cases", pd.Series({"a on 8": 1.0, "b on 8": 1.2})),
        plans.Choice(
            "any layout at random: chance of one within 10 %",
            pd.Series({"a on 8": 0.25, "b on 8": 0.5}),
        ),
    ]
    plan, chance = plans.choice_table(judged).to_dict("records")
    assert (plan["close_share"], plan["worst_share"]) == pytest.approx((0.5, 0.2))
    assert chance["close_share"] == pytest.approx(0.375)
    layouts = pd.DataFrame({"graph_s": [1.1, 1.0, 2.0]})
    assert plans.slower(layouts) == pytest.approx(1.1)


@pytest.mark.slow
def test_brute_force_is_a_claim(claim, tmp_path) -> None:
    status, text, err = claim("plans", "--tasks", "graph", "--quick", "--out", tmp_path)
    assert status == 0, err
    assert "gpt3-6.7b" in text
    frame = pd.read_csv(tmp_path / "plans_graph_layouts.csv")
    assert (frame["plan_s"].diff().dropna() >= 0).all()
