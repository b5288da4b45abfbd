"""Pictures of sweeps: what is drawn is the best of each cell and line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import hybridperf as hp
from hybridperf.io import InputError

GRID = pd.DataFrame([
    {"gpus": gpus, "tp": tp, "gpu": gpu, "batch": batch, "seconds": gpus / tp + batch + len(gpu)}
    for gpus in (8, 16, 32, 64) for tp in (1, 2, 4) for gpu in ("a", "bb") for batch in (0, 5)
])  # fmt: skip


def drawn(axes: object) -> np.ndarray:
    (mesh,) = axes.collections  # type: ignore[attr-defined]
    return np.asarray(mesh.get_array()).reshape(3, 4)


@pytest.mark.parametrize(("best", "batch"), [("least", 0), ("most", 5)])
def test_cells_hold_the_best_of_their_rows(best: str, batch: int) -> None:
    figure = hp.plot_grid(GRID, "gpus", "tp", "seconds", "gpu", best=best)  # type: ignore[arg-type]
    panels = figure.axes[:2]
    for axes, gpu in zip(panels, ("a", "bb"), strict=True):
        expected = [[gpus / tp + batch + len(gpu) for gpus in (8, 16, 32, 64)] for tp in (1, 2, 4)]
        np.testing.assert_allclose(drawn(axes), expected)
        assert [one.get_text() for one in axes.get_xticklabels()] == ["8", "16", "32", "64"]
    first, second = (one.collections[0].norm for one in panels)
    assert (first.vmin, first.vmax) == (second.vmin, second.vmax), "one scale for all panels"


def test_lines_are_the_best_of_each_hue() -> None:
    figure = hp.plot_grid(GRID, "gpus", "seconds", "gpu")
    (axes,) = figure.axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert {*lines} == {"a", "bb"}
    np.testing.assert_allclose(lines["a"], [gpus / 4 + 1 for gpus in (8, 16, 32, 64)])


def test_a_sweep_and_its_file_are_drawn_alike(tmp_path: Path) -> None:
    fields = {"op": "gemm", "dtype": "bf16", "m": "256..2048", "n": [512, 1024], "k": 512}
    done = hp.sweep("ops", tmp_path / "g.parquet", fields=fields, model="h100_sxm", quiet=True)
    for at, given in enumerate((done, done.out, done.frame())):
        hp.plot_grid(given, "m", "n", "predicted_s", path=tmp_path / f"{at}.png")
    first, *others = ((tmp_path / f"{at}.png").read_bytes() for at in range(3))
    assert all(one == first for one in others)
    assert hp.plot_grid(done, "m", "predicted_s")._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"x": "gpuss", "y": "tp"}, "did you mean 'gpus'|gpus"),
        ({"x": "gpus", "y": "tp", "best": "fastest"}, "there are least, most"),
        ({"x": "gpus", "y": "tp", "path": "q.xyz"}, r"expected a .png file .* got .xyz of q.xyz"),
        ({"x": "gpus", "y": "nothing"}, "expected rows"),
        ({"x": "gpus", "y": "tp", "facet": "seconds"}, "facet of up to 12"),
        ({"x": "seconds", "y": "tp", "hue": "name"}, "up to 10 words"),
    ],
)
def test_what_cannot_be_drawn_is_said(asked: dict, says: str) -> None:
    frame = pd.concat([GRID, GRID]).reset_index(drop=True)
    frame = frame.assign(nothing=np.nan, name=[f"n{at}" for at in range(len(frame))])
    with pytest.raises(InputError, match=says):
        hp.plot_grid(frame, **asked)
