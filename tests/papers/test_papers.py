"""The papers' notebooks run, and their modules give what was published."""

import re

import nbformat
import pytest
from papers import chimera, fusion_ai, mad_max, mapa, zero_infinity
from support.notebooks import PAPERS, executed, shown

import hybridperf as hp

SLOW = ("chimera", "kaisa", "mad_max")  # over ten seconds each


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(one, marks=[pytest.mark.slow] * (one.stem in SLOW), id=one.stem)
        for one in PAPERS
    ],
)
def test_a_paper_s_notebook_shows_what_is_committed(path) -> None:
    ran, committed = executed(path, path.parent), nbformat.read(path, as_version=4)
    assert shown(ran) == shown(committed), f"python tests/support/notebooks.py {path.stem}"


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_papers_ask_by_public_names(path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    for text in (code, path.with_suffix(".py").read_text()):
        assert not re.findall(r"^[ \t]*(?:from hybridperf|import hybridperf\.).*$", text, re.M)
        assert {*re.findall(r"\bhp\.(\w+)", text)} <= {*hp.__all__}


@pytest.mark.parametrize(
    ("gpus", "parts_ms", "iteration_ms", "share"),
    [
        (128, (8.91, 9.10, 26.40, 21.27), 54.00, 0.7550),
        (8, (8.91, 9.10, 14.78, 6.38), 28.86, 0.5124),
    ],
)
def test_dlrm_a_as_mad_max_s_artifact_prints_it(gpus, parts_ms, iteration_ms, share) -> None:
    found = mad_max.published(gpus)
    assert [1e3 * s for s in found.parts.values()] == pytest.approx(parts_ms, rel=1e-3)
    assert 1e3 * found.iteration == pytest.approx(iteration_ms, rel=1e-3)
    assert found.exposed_share == pytest.approx(share, rel=1e-3)


def test_our_dlrm_a_is_near_the_measured_sum_and_differs_by_what_travels() -> None:
    """67.4 ms of calls were measured; pooled rows are 4.27 times the paper's bytes."""
    ours, theirs = mad_max.priced(128), mad_max.published(128)
    for part in ("matrices", "lookups"):
        assert theirs.parts[part] < ours.parts[part] < 1.5 * theirs.parts[part]
    as_theirs = 2 * mad_max.LOOKED_UP_BYTES / 128
    assert pytest.approx(4.27 * as_theirs, rel=1e-2) == mad_max.POOLED_BYTES
    assert 1.15 < sum(ours.parts.values()) / 67.4e-3 < 1.25
    assert ours.iteration < sum(ours.parts.values())


def test_chimera_beats_1f1b_where_bubbles_matter() -> None:
    found = chimera.layouts("bert-large", "aic_a100_sxm", 16, 64, seq=128, precision="bf16")
    both = found.pivot_table(
        index=["pp", "micro_batch", "recompute"], columns="schedule", values="predicted_s"
    )
    assert {*found["pp"]} == {2, 4, 8, 16}
    assert (found["dp"] * found["micro_batch"] * found["grad_accum"] == 64).all()
    few = both.loc[(4, 4, "none")]  # as many micro-batches as stages
    assert few["chimera"] < few["1f1b"]
    best = chimera.chosen(found)
    assert best["predicted_s"].is_monotonic_increasing


@pytest.mark.parametrize("vector", mapa.VECTORS)
def test_mapa_s_eight_published_vectors(vector) -> None:
    *links, gb_s = vector
    assert mapa.effective_bytes_per_s(*map(int, links)) == pytest.approx(gb_s * 1e9, rel=1e-3)


def test_cards_over_slow_links_are_fewer_h100_than_by_peaks() -> None:
    """Tang et al., 2023: 50 RTX 3080 as 4 H100. By peaks so; by what their kernels reach not, over
    any link; over 1 Gb/s links take most of the step.
    """
    assert 2.5 < fusion_ai.by_peaks() < 4.5
    slow, usual, fast = (fusion_ai.cards(gb_per_s).predicted_s for gb_per_s in (1, 10, 100))
    assert slow > 3 * usual > 3 * fast
    assert 4 * fusion_ai.h100().high_s < 4 * fusion_ai.cards(100).low_s
    # which is why larger micro-batches, that a card's memory does not hold, would not help
    assert "does not fit" in fusion_ai.cards(10, 8).note


def test_a_trillion_parameters_train_on_one_node_by_its_drives() -> None:
    """Rajbhandari et al., SC21: 1T on one DGX-2; over 25 PFLOP/s on 512 V100, ours more."""
    one, many = zero_infinity.trained(16, 7), zero_infinity.trained(512, 5)
    with pytest.raises(hp.InputError):
        zero_infinity.trained(16, 7, nvme_bytes=0.0)
    assert 0.15 < one.of_peak < 0.4
    assert one.of_peak < many.of_peak
    assert 25e15 < many.flops_per_s < 2 * 25e15
