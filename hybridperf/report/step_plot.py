"""A predicted step as a picture: each stream of the first rank over time, coloured by group of
ops.
"""

import os

import numpy as np

from hybridperf.engine.prediction import Prediction
from hybridperf.report import text
from hybridperf.report.plots import new_figure, save_figure

_MOST_GROUPS = 9  # that have a colour of their own
_HEIGHT = 0.8


def step_plot(prediction: Prediction, path: str | os.PathLike) -> None:
    """Draw when a step's ops run, and which share of the time each group of ops takes.

    Args:
        prediction: what `hp.predict` returned.
        path: the PNG file to write.
    """
    graph, times = prediction.workload.graph, prediction.timeline
    shares = prediction.breakdown().set_index("group")["share"].sort_values(ascending=False)
    groups = prediction.ops()["group"].to_numpy()
    mine = graph.rank == graph.rank.min()
    streams = [int(one) for one in np.unique(graph.stream[mine])]
    figure, axes = new_figure(9, 1.4 + 0.5 * len(streams))
    named = list(shares.index[:_MOST_GROUPS])
    scale, unit = next((one for one in text.TIMES if prediction.time_s >= one[0]), text.TIMES[-1])
    for number, group in enumerate([*named, ""]):
        of_group = groups == group if group else ~np.isin(groups, named)
        label = f"{group}, {text.whole_percent(shares[group])}" if group else "others"
        for line, stream in enumerate(streams):
            here = mine & of_group & (graph.stream == stream)
            start_s, end_s = times.start_s[here], times.end_s[here]
            bars = np.stack([start_s, end_s - start_s], 1) / scale
            if not len(bars):
                continue
            colour = f"C{number}" if group else "0.75"
            axes.broken_barh(bars, (line - _HEIGHT / 2, _HEIGHT), color=colour, lw=0, label=label)
            label = ""  # once
    axes.set_yticks(range(len(streams)), [graph.stream_names[one] for one in streams])
    axes.set(xlabel=unit, xlim=(0, prediction.time_s / scale))
    took = text.seconds(prediction.time_s) + text.within(prediction.low_s, prediction.high_s)
    where = f"{prediction.workload.name} on {prediction.model.device.name}"
    axes.set_title(f"{text.short(where)}: {took}", fontsize=9)
    figure.legend(fontsize=7, loc="outside right upper")
    save_figure(figure, path)
