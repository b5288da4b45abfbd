"""Commands around plans: smaller choices, refusals in one sentence, the library calls."""

import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.cli.app import main
from hybridperf.io import InputError
from hybridperf.validate import plans
from hybridperf.workloads.transformer.zoo import shape_names


def said(capsys, *words: str, status: int = 0) -> str:
    """What a command prints; on standard error where it refuses."""
    with pytest.raises(SystemExit) as done:
        main(list(words))
    out, err = capsys.readouterr()
    assert done.value.code == status, err
    return err if status else out


def test_strategies_of_dlrm_a_come_with_what_was_published(capsys, tmp_path) -> None:
    text = said(
        capsys,
        "choose",
        "strategies",
        "--shape",
        "dlrm-a",
        "--gpus",
        "128",
        "--out",
        str(tmp_path / "all.csv"),
    )
    assert "54 ms" in text
    assert "75.50 %" in text
    frame = pd.read_csv(tmp_path / "all.csv")
    assert len(frame) == 81
    assert f"{frame['fits'].sum()} fit" in text
    assert "all-to-all +5.4" in text, "what the difference is made of"
    assert "ours is +14.2 ms off the measured sum" in text


def test_strategies_of_a_transformer_on_a_system(capsys) -> None:
    text = said(
        capsys,
        "choose",
        "strategies",
        "--shape",
        "gpt3-1.3b",
        "--gpus",
        "16",
        "--system",
        "aic_a100_sxm",
        "--batch",
        "64",
        "--top",
        "2",
    )
    assert "ways fit" in text
    assert ["ddp,", "ddp", "none", "4", "1"] in [line.split()[:5] for line in text.split("\n")]
    asked = ["--model", "gpt3-1.3b", "--gpus", "16", "--system", "aic_a100_sxm", "--batch", "64"]
    assert "729 strategies" in said(capsys, "choose", "strategies", *asked, "--law", "mad-max")
    one = said(capsys, "choose", "strategies", *asked, "--by", "layer", status=2)
    assert "expected --by kind" in one


def test_chimera_stands_beside_1f1b(capsys) -> None:
    text = said(
        capsys,
        "choose",
        "chimera",
        "--shape",
        "bert-large",
        "--system",
        "aic_a100_sxm",
        "--gpus",
        "16",
        "--batch",
        "64",
        "--seq",
        "128",
    )
    assert "the best of chimera takes" in text
    lines = [line for line in text.splitlines() if line.startswith(("chimera", "1f1b"))]
    assert len(lines) == 8  # 2, 4, 8 and 16 stages each
    assert "fastest of those that fit" in text
    assert "bf16" in text, "as plans are"
    assert "like with like, W" in text


def test_nothing_that_fits_is_an_error_with_a_way_out(capsys, tmp_path) -> None:
    asked = ["choose", "strategies", "--shape", "dlrm-a", "--top", "1"]
    sentence = said(capsys, *asked, "--gpus", "8", "--out", str(tmp_path / "all.csv"), status=2)
    assert "embedding" in sentence
    gpus = sentence.split("take ")[1].split()[0]
    said(capsys, *asked, "--gpus", gpus)  # which works
    assert (tmp_path / "all.csv").exists()
    large = [
        "choose",
        "strategies",
        "--shape",
        "gpt3-175b",
        "--gpus",
        "64",
        "--batch",
        "64",
        "--system",
        "dgx_h100",
    ]
    text = said(capsys, *large, "--law", "mad-max", status=2)
    assert "`hybridperf plan` has them" in text
    assert "ways fit" in said(capsys, *large), "as plans do, by micro-batches and recomputation"


def test_kaisa_looks_at_memory_and_at_the_device(capsys) -> None:
    asked = ["choose", "kaisa", "--shape", "bert-large", "--gpus", "4"]
    assert "65.1 ms" in said(capsys, *asked, "--system", "dgx_a100")  # 80.8 x 15.7 / 19.5
    assert "on h100_sxm" in said(capsys, *asked, "--system", "dgx_h100")
    assert "are left" in said(
        capsys, *asked, "--system", "dgx_a100", "--memory-bytes", "8e9", status=2
    )


def test_kaisa_trades_memory_against_messages(capsys) -> None:
    text = said(
        capsys,
        "choose",
        "kaisa",
        "--shape",
        "bert-large",
        "--gpus",
        "4",
        "--system",
        "alcf_polaris",
    )
    rows = [line.split() for line in text.splitlines() if " %  " in line]
    assert [row[0] for row in rows] == ["25.0", "50.0", "100.0"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["choose", "strategies", "--shape", "dlrm-a", "--gpus", "12"], "8 or 16 would do"),
        (["choose", "strategies", "--shape", "gpt3-1.3b", "--gpus", "8"], "expected --system"),
        (
            [
                "choose",
                "strategies",
                "--shape",
                "gpt3-1.3b",
                "--gpus",
                "8",
                "--system",
                "aic_a100_sxm",
            ],
            "expected --batch",
        ),
        (
            ["choose", "strategies", "--shape", "dlrm-a", "--gpus", "8", "--law", "mine"],
            "known are priced, mad-max",
        ),
        (
            [
                "choose",
                "kaisa",
                "--shape",
                "mixtral-8x7b",
                "--gpus",
                "8",
                "--system",
                "aic_a100_sxm",
            ],
            "not of experts",
        ),
        (
            [
                "choose",
                "chimera",
                "--shape",
                "bert-larg",
                "--gpus",
                "8",
                "--batch",
                "8",
                "--system",
                "aic_a100_sxm",
            ],
            "bert-large",
        ),
        (["validate", "plans"], "--data FOLDER"),
        (["validate", "plans", "--tasks", "grph"], "choice, graph"),
    ],
)
def test_what_cannot_be_chosen_is_one_sentence(capsys, words, sentence) -> None:
    text = said(capsys, *words, status=2)
    assert sentence in text
    assert len(text.strip().splitlines()) == 1


def test_the_library_plans_in_five_lines(tmp_path) -> None:
    import hybridperf.training.plans.run  # noqa: F401  (a loaded package of that name must not hide the function)

    found = hp.plan(
        "gpt3-125m",
        "aic_a100_sxm",
        8,
        batch=16,
        tokens=1e9,
        only={"cp": [1], "recompute": ["none"]},
    )
    assert isinstance(found.best, hp.Layout)
    assert found.top(3)["time_s"].iloc[0] == found.step_s(found.choice(0))
    assert found.write(tmp_path / "plan.parquet") == found.legal
    assert "best:" in hp.plan_report(found)
    with pytest.raises(InputError, match="would do"):
        hp.plan("gpt3-125m", "aic_a100_sxm", 7)


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
def test_brute_force_is_a_command(capsys, tmp_path) -> None:
    text = said(
        capsys, "validate", "plans", "--tasks", "graph", "--quick", "--folder", str(tmp_path)
    )
    assert "gpt3-6.7b" in text
    frame = pd.read_csv(tmp_path / "plans_graph_layouts.csv")
    assert (frame["plan_s"].diff().dropna() >= 0).all()


def test_models_can_be_listed_and_shown(capsys) -> None:
    listed = said(capsys, "models")
    assert len(listed.splitlines()) == len(shape_names()) + 3
    assert "gpt3-175b" in listed
    shown = said(capsys, "show", "gpt3-175b")
    assert "12288" in shown
    assert "174" in shown or "175" in shown
    assert "gpt3-175b" in said(capsys, "show", "gpt3-175c", status=2), "a misspelt one is told of"


def test_systems_say_their_other_names(capsys) -> None:
    listed = said(capsys, "systems")
    assert "dgx_h100" in listed
    assert "dgx_a100" in listed


def test_a_plan_says_before_its_work_what_cannot_be_written(capsys, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    asked = [
        "plan",
        "--shape",
        "gpt3-125m",
        "--system",
        "dgx_h100",
        "--gpus",
        "8",
        "--batch",
        "8",
        "--only",
        "cp=1",
        "--only",
        "pp=1",
    ]
    for option, place in (
        ("--html", "/proc/nowhere/plan.html"),
        ("--html", str(tmp_path / "file" / "plan.html")),
        ("--html", str(tmp_path)),
    ):
        text = said(capsys, *asked, "--out", str(tmp_path / "plan.csv"), option, place, status=2)
        assert option in text
        assert not (tmp_path / "plan.csv").exists(), "nothing was done"
    text = said(capsys, *asked, "--out", str(tmp_path / "new" / "plan.csv"))
    assert f"folder {tmp_path / 'new'} made for --out" in text
