"""The shipped example searches against random search with a hundred times their evaluations:
`python benchmarks/bench_search.py [NAME ...]`.

Random points are uniform in the logs of the knobs, whole numbers where asked, priced by the same
exact functions; the best that meets all constraints counts.
"""

import sys
import time

import numpy as np

from hybridperf.explore.searches.run import search
from hybridperf.explore.searches.spec import SHIPPED, SearchSpec, read_search

TIMES = 100
CHUNK = 16384


def random_search(spec: SearchSpec, points: int, seed: int = 0) -> float:
    """The best objective of so many random points."""
    rng, best = np.random.default_rng(seed), -np.inf
    sign = 1 if spec.maximise else -1
    for start in range(0, points, CHUNK):
        rows = min(CHUNK, points - start)
        columns = {name: np.full(rows, value) for name, value in spec.constants.items()}
        for knob in spec.knobs:
            value = np.exp(rng.uniform(np.log(knob.least), np.log(knob.most), rows))
            columns[knob.name] = np.rint(value) if knob.integer else value
        for name, formula in spec.before.items():
            columns[name] = formula(columns, rows)
        if spec.target is not None:
            columns |= spec.target.evaluate(columns)
        for name, formula in spec.after.items():
            columns[name] = formula(columns, rows)
        met = np.ones(rows, bool)
        for one in spec.constraints:
            less, more = one.sides.less(columns, rows), one.sides.more(columns, rows)
            met &= np.isclose(less, more, rtol=1e-6) if one.sides.equal else less <= more
        if met.any():
            best = max(best, float((sign * spec.objective(columns, rows))[met].max()))
    return sign * best


def main(names: list[str]) -> None:
    """Print both optima and their ratio for each example."""
    for name in names or sorted(path.stem for path in SHIPPED.glob("*.toml")):
        spec = read_search(name)
        before_s = time.process_time()
        found = search(spec)
        between_s = time.process_time()
        other = random_search(spec, TIMES * found.evaluations)
        ahead = found.objective / other - 1 if spec.maximise else other / found.objective - 1
        print(
            f"{name}: search {found.objective:.6g} ({found.evaluations:,} evaluations,"
            f" {between_s - before_s:.0f} s), random {other:.6g} ({TIMES * found.evaluations:,},"
            f" {time.process_time() - between_s:.0f} s), ahead by {ahead:.3%}",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
