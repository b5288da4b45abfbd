"""Claims by name: which there are, and what the runner refuses."""

import pytest

from benchmarks.claims import __main__ as claims


def test_every_claim_says_what_it_judges(claim) -> None:
    known = claims.claims()
    assert {"steps", "devices", "collectives", "lin", "serving", "plans"} <= {*known}
    assert all(len(words) > 26 for words in known.values())
    listed = claim()[1]
    assert all(name in listed for name in known)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stepps"], "unknown claim 'stepps' (did you mean 'steps'?)"),
        (["steps"], "expected --data FOLDER with steps"),
        (["collectives"], "expected --data with collectives"),
        (["ops"], "expected --model with ops"),
        (["plans", "--tasks", "grph"], "choice, graph"),
        (["ops", "--quick", "--model", "v100"], "expected no quick with ops"),
        (["devices", "--data", "none"], "expected a folder in --data, found none at none"),
        (["link_ablation", "--data", ".", "--rows", "5,x"], "expected numbers, such as"),
    ],
)
def test_what_cannot_be_judged_is_one_sentence(words, says, claim_refused, tmp_path) -> None:
    assert says in claim_refused(*words, "--out", tmp_path)


def test_devices_are_judged_where_there_are_tables(claim_refused, tmp_path) -> None:
    (tmp_path / "compute").mkdir()
    asked = ("devices", "--data", tmp_path, "--out", tmp_path / "out")
    assert "expected the tables" in claim_refused(*asked)
    assert "unknown split or family 'k80'" in claim_refused(*asked, "--leave", "k80")
    assert "unknown" in claim_refused(*asked, "--families", "softmux")
    assert not (tmp_path / "out" / "prior").exists()


def test_measured_rows_are_kept(claim_refused, tmp_path) -> None:
    for name in ("held_out.csv", "collectives_held_out.csv", "host.json", "model.json"):
        (tmp_path / name).write_text("{}")
    assert "which would be lost" in claim_refused(
        "collectives", "--data", tmp_path, "--out", tmp_path
    )
