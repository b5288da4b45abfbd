"""Searches of six problems of 3 to 12 knobs against others that get the same functions:
`python benchmarks/bench_search.py [NAME ...]`.

Each problem is a function that JAX traces, with bounds and conditions, as `hp.search` takes it.
Random search is uniform in the logs of the knobs, whole numbers where asked, with a hundred times
the evaluations. SciPy's SLSQP from many starts (with our gradients, whole numbers rounded), its
differential evolution and simplicial homology (`shgo`), and Optuna's default sampler where it is
installed, get as many evaluations as the search took (those that ask point by point 2,000 at most,
`shgo` up to 5 knobs). All but SLSQP add what a condition misses a thousandfold to the log of the
objective. The best point that meets all conditions to a millionth counts.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import differential_evolution, minimize, shgo

import hybridperf as hp
from hybridperf.explore.searches.functions import FunctionSearch, of_function
from hybridperf.explore.searches.problem import FREE, PointSlopes, SearchProblem

TIMES = 100
CHUNK = 4096
MET = 1e-6
FAR = 1e3  # of what is missed
MOST_ALONE = 2000  # evaluations of those that ask for one point at a time
MOST_TRIANGULATED = 5  # knobs: the triangulation of shgo takes hours beyond


class Problem(NamedTuple):
    """A search as `hp.search` takes it."""

    function: Callable[[Any], Any]
    bounds: Mapping[str, Any]
    constraints: Sequence[str] = ()
    minimise: str = ""
    maximise: str = ""


def _machine() -> tuple[hp.PerfModel, Any]:
    device, system = hp.load_device("h100_sxm"), hp.load_system("dgx_h100")
    fabric = hp.CollectiveModel.datasheet(system)
    model = hp.PerfModel.datasheet(device).with_collectives(fabric)
    layout = hp.Layout(tp=2, dp=8, accumulation=2)
    config = hp.TransformerConfig.run_by("megatron_core", hp.load_shape("llama2-7b"), layout)
    return model, hp.transformer(config)


def _chip_usd(knobs: Mapping[str, Any]) -> Any:
    memory, peak = knobs["memory_bytes_per_s"], knobs["peak_flops_scale"]
    return 5e3 + 3e3 * memory / 1e12 + 12e3 * peak + 0.2e3 * (memory / 1e12) * peak


def _links_usd(links: Mapping[str, Any]) -> Any:
    return 8e-9 * links["intra_bytes_per_s"] + 10e-9 * links["node_bytes_per_s"]


RATES = {"memory_bytes_per_s": (0.5e12, 16e12), "peak_flops_scale": (0.1, 8.0)}
LINKS = {"intra_bytes_per_s": (2e10, 2e12), "node_bytes_per_s": (2e10, 2e12)}


def machine_for_money() -> Problem:
    """100 M USD: which bandwidths? 4 knobs."""
    f = hp.step_function(*_machine())

    def fleet(knobs: Any) -> dict[str, Any]:
        links = knobs["links"] | {"rank_bytes_per_s": knobs["links"]["node_bytes_per_s"] / 8}
        usd = 2048 * (_chip_usd(knobs) + _links_usd(knobs["links"]))
        return {"time_s": f(knobs | {"links": links}), "usd": usd}

    return Problem(fleet, {**RATES, "links": LINKS}, ["usd <= 1e8"], minimise="time_s")


def link_budget() -> Problem:
    """Bandwidth within and between nodes, and latency, of so much money a GPU: 3 knobs."""
    f = hp.step_function(*_machine())

    def links(knobs: Any) -> dict[str, Any]:
        own = knobs["links"]
        all_links = own | {"rank_bytes_per_s": own["node_bytes_per_s"] / 8}
        usd = _links_usd(own) + 2e-3 / own["link_latency_s"]
        return {"time_s": f({"links": all_links}), "usd": usd}

    bounds = {"links": {**LINKS, "link_latency_s": (2e-7, 2e-5)}}
    return Problem(links, bounds, ["usd <= 6000"], minimise="time_s")


def clients_and_chunk() -> Problem:
    """Clients and tokens of a step, whole, and the clock, under limits of latency and power."""
    model = hp.PerfModel.datasheet(hp.load_device("h100_sxm"))
    deployment = hp.Deployment(hp.load_shape("llama3-8b"), framework="vllm")
    point = hp.serving_function(model, deployment, clients=32, prompt=1000, output=250)

    def served(knobs: Any) -> dict[str, Any]:
        found = point(knobs)
        power_w = 100 + 600 * knobs["peak_flops_scale"] ** 3
        return {**found, "tokens_per_j": found["tokens_per_s"] / power_w}

    bounds = {"peak_flops_scale": (0.3, 1.0),
              "load": {"clients": range(1, 257), "chunk": range(128, 8193)}}  # fmt: skip
    limits = ["tpot_s <= 0.02", "ttft_s <= 0.4"]
    return Problem(served, bounds, limits, maximise="tokens_per_j")


def fleet() -> Problem:
    """A run's rates, links, storage, interval and spares: USD of 90 days at most; 8 knobs."""
    f = hp.step_function(*_machine())
    step = hp.given_step(float(f(f.knobs)), 2048, device="h100_sxm", state_bytes=1e11)
    run = hp.run_function(step, 1e6)

    def cost(knobs: Any) -> dict[str, Any]:
        links = knobs["links"] | {"rank_bytes_per_s": knobs["links"]["node_bytes_per_s"] / 8}
        rates = {name: knobs[name] for name in RATES}
        found = run({"step_s": f(rates | {"links": links}), **knobs["run"],
                     "beliefs": knobs["beliefs"]})  # fmt: skip
        storage = knobs["beliefs"]["storage_bytes_per_s_per_node"]
        gpus = 2048 + 8 * knobs["run"]["spares"]
        buys = gpus * (_chip_usd(knobs) + _links_usd(knobs["links"])) + 256 * 2e-6 * storage
        usd = buys * found["days"] / 1460 + found["energy_j"] / 3.6e6 * 0.1
        return {"usd": usd + 3e4 * 600 / knobs["beliefs"]["restart_s"], "days": found["days"]}

    bounds = {
        **RATES, "links": LINKS,
        "run": {"interval_s": (10.0, 1e5), "spares": (0.1, 100.0)},
        "beliefs": {"storage_bytes_per_s_per_node": (1e7, 1e11), "restart_s": (30.0, 3e3)},
    }  # fmt: skip
    return Problem(cost, bounds, ["days <= 90"], minimise="usd")


def groups_of_ops() -> Problem:
    """What to make quicker of a step's kernels, by 12 efficiencies that cost engineers."""
    model, workload = _machine()
    f = hp.step_function(model, workload)
    groups = ("gemm", "elementwise", "prefill_attention", "rmsnorm", "norm")
    found = [name for name in groups if name in f.knobs["groups"]]
    places = [
        (name, knob) for name in found for knob in ("compute_efficiency", "memory_efficiency")
    ]
    rates = [*LINKS, "rank_bytes_per_s"]
    # of today's: each e-fold costs a month
    bounds: dict[str, Any] = {"groups": {name: {} for name in found}, "links": {}, **{
        name: (value, 2.5 * value) for name in RATES if (value := float(f.knobs[name]))
    }}  # fmt: skip
    for name, knob in places[: 12 - len(rates) - len(RATES)]:
        value = float(f.knobs["groups"][name][knob])
        bounds["groups"][name][knob] = (value / 2, value * 1.5)
    for name in rates:
        value = float(f.knobs["links"][name])
        bounds["links"][name] = (value / 2, value * 2)
    bounds["groups"] = {name: own for name, own in bounds["groups"].items() if own}

    def months(knobs: Any) -> dict[str, Any]:
        spent = jax.tree.map(lambda value, today: jnp.log(value / today),
                             knobs, _part(f.knobs, knobs))  # fmt: skip
        price = sum(jnp.exp(2 * part) for part in jax.tree.leaves(spent))
        return {"time_s": f(knobs), "months": price}

    return Problem(months, bounds, ["months <= 16"], minimise="time_s")


def _part(whole: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _part(whole[name], value) if isinstance(value, Mapping) else whole[name]
        for name, value in like.items()
    }


def unlike_workers() -> Problem:
    """Power of two kinds of GPU that train together: 5 knobs."""
    model, workload = _machine()
    slow = hp.PerfModel.datasheet(hp.load_device("a100_sxm4_80g")).with_collectives(
        hp.CollectiveModel.datasheet(hp.load_system("dgx_a100"))
    )
    f = hp.unlike_function([hp.Worker(workload, model), hp.Worker(workload, slow)])
    new, old = f.knobs["machines"]

    def energy(knobs: Any) -> dict[str, Any]:
        clocks = {name: own["peak_flops_scale"] for name, own in knobs["machines"].items()}
        power = {new: 700.0, old: 400.0}
        watts = sum(
            0.3 * power[name] + 0.7 * power[name] * clock**3 for name, clock in clocks.items()
        )
        memory = knobs["machines"][new]["memory_bytes_per_s"] / 3.35e12
        watts = (
            watts
            + 120 * memory**2
            + 20 * knobs["machines"][old]["links"]["intra_bytes_per_s"] / 3e11
        )
        watts = watts + 20 * knobs["machines"][new]["links"]["intra_bytes_per_s"] / 4.5e11
        time_s = f(knobs)
        return {"time_s": time_s, "joules": watts * time_s}

    rate = float(f.knobs["machines"][new]["memory_bytes_per_s"])
    links = {"intra_bytes_per_s": (1e10, 2e12)}
    bounds = {"machines": {
        new: {"peak_flops_scale": (0.1, 1.0), "memory_bytes_per_s": (rate / 8, rate),
              "links": links},
        old: {"peak_flops_scale": (0.1, 1.0), "links": links},
    }}  # fmt: skip
    today_s = float(f(f.knobs))
    return Problem(energy, bounds, [f"time_s <= {1.5 * today_s}"], minimise="joules")


PROBLEMS: dict[str, Callable[[], Problem]] = {
    one.__name__: one
    for one in (
        machine_for_money, link_budget, clients_and_chunk, fleet, groups_of_ops, unlike_workers
    )
}  # fmt: skip


class Scored:
    """Values of a problem's points in the unit cube, and the best of them."""

    def __init__(self, asked: FunctionSearch):
        self.problem = SearchProblem(asked.spec(()))
        self.problem.probe(np.random.default_rng(1).random((64, self.knobs)))
        self._whole = np.array([knob.integer for knob in self.problem.spec.knobs])
        self._values = jax.jit(jax.vmap(self.problem._sides_of_one))
        self.best, self.count = np.inf, 0

    @property
    def knobs(self) -> int:
        return self.problem.knobs

    def __call__(self, u: np.ndarray) -> np.ndarray:
        """Log of the objective, with what is missed [B], at points [B, K]."""
        held = np.full(u.shape, FREE)
        held[:, self._whole] = np.rint(self.problem.knob_values(u, FREE))[:, self._whole]
        less, more = (np.asarray(side) for side in self._values(u, held))
        with np.errstate(all="ignore"):
            logs = np.log(less) - np.log(more)
        f = logs[:, 0] * (-1 if self.problem.spec.maximise else 1)
        missed = np.maximum(logs[:, 1:], 0).sum(1)
        good = f[(missed <= MET) & np.isfinite(f)]
        self.best, self.count = min(self.best, good.min(initial=np.inf)), self.count + len(u)
        return np.where(np.isfinite(f), f + FAR * missed, 1e6)

    def one(self, u: np.ndarray) -> float:
        return float(self(np.clip(u, 0, 1)[None])[0])

    def worse(self, objective: float) -> float:
        """By which share the best is worse than the objective of a search."""
        sign = -1 if self.problem.spec.maximise else 1
        return float(np.expm1(self.best - sign * np.log(objective)))


def by_random(scored: Scored, evaluations: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(-(-TIMES * evaluations // CHUNK)):
        scored(rng.random((CHUNK, scored.knobs)))


def by_evolution(scored: Scored, evaluations: int) -> None:
    size = 10 * scored.knobs
    differential_evolution(
        lambda u: scored(np.clip(u.T, 0, 1)), [(0, 1)] * scored.knobs, popsize=10, rng=0, tol=0,
        maxiter=max(evaluations // size - 1, 1), polish=False, vectorized=True,
        updating="deferred",
    )  # fmt: skip


def by_shgo(scored: Scored, evaluations: int) -> None:
    if scored.knobs > MOST_TRIANGULATED:
        return
    some = min(evaluations, MOST_ALONE)
    shgo(scored.one, [(0, 1)] * scored.knobs, n=some // 4, sampling_method="sobol",
         options={"maxfev": some})  # fmt: skip


def by_optuna(scored: Scored, evaluations: int) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(
        lambda trial: scored.one(
            np.array([trial.suggest_float(str(k), 0, 1) for k in range(scored.knobs)])
        ),
        n_trials=min(evaluations, MOST_ALONE),
    )


def by_slsqp(scored: Scored, evaluations: int) -> None:
    """SciPy's sequential quadratic programming with our gradients, from one start after another."""
    problem, rng = scored.problem, np.random.default_rng(0)
    free = np.full(problem.knobs, FREE)
    spent = problem.evaluations

    @functools.lru_cache(4)
    def at(point: tuple[float, ...]) -> PointSlopes:
        return PointSlopes(*(part[0] for part in problem.slopes(np.array([point]), free)))

    while problem.evaluations - spent < evaluations:
        met = {"type": "ineq", "fun": lambda u: -at(tuple(u)).g, "jac": lambda u: -at(tuple(u)).dg}
        found = minimize(
            lambda u: float(at(tuple(u)).f), rng.random(problem.knobs),
            jac=lambda u: at(tuple(u)).df, method="SLSQP", constraints=[met] if len(problem.equal)
            else [], bounds=[(0, 1)] * problem.knobs, options={"maxiter": 200, "ftol": 1e-12},
        )  # fmt: skip
        scored.one(found.x)


OTHERS = {
    "SLSQP, many starts": by_slsqp,
    "random x 100": by_random,
    "evolution": by_evolution,
    "shgo": by_shgo,
    "optuna": by_optuna,
}


def main(names: list[str]) -> None:
    """Print the optimum of each problem, and by how much others are worse."""
    others = dict(OTHERS)
    if importlib.util.find_spec("optuna") is None:
        del others["optuna"]
    for name in names or PROBLEMS:
        asked = PROBLEMS[name]()
        before_s = time.process_time()
        found = hp.search(*asked[:3], minimise=asked.minimise, maximise=asked.maximise)
        took_s = time.process_time() - before_s
        told = f"{name}: {len(found.knobs)} knobs, {found.objective:.6g} in {took_s:.1f} s"
        print(f"{told}, {found.evaluations:,} evaluations; others are worse by", flush=True)
        with jax.enable_x64(True):
            for other, run in others.items():
                scored = Scored(of_function(*asked))
                run(scored, found.evaluations)
                if scored.count:
                    worse = scored.worse(found.objective)
                    print(f"    {other}: {worse:.3%} ({scored.count:,})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
