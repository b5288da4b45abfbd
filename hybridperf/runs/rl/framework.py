"""What a framework of reinforcement learning does: a TOML file each in `frameworks/`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from hybridperf.fields.frameworks import files_of, last_release
from hybridperf.hardware.specs import Spec
from hybridperf.io import shipped_toml, unknown

_USUAL = "usual"  # whose habits count where no framework is told


class Recipe(Spec):
    """What a framework's recipe of one model says, in place of its defaults; None: the same."""

    model: str
    gpus: int = 0  # of the whole recipe; 0: of any number
    train_gpus: int | None = None
    recompute: str | None = None
    memory_share: float | None = None
    policy_logprobs: bool | None = None


class RlFramework(Spec):
    """Habits of a framework; those of one that nobody knows if not given."""

    name: str = ""
    says: tuple[str, ...] = ()
    source: str = ""
    trains: str  # framework of its trainer, as rows of training steps name it
    serves: str  # of its engines
    serving_versions: Mapping[str, str] = {}  # of the engines' framework, by release
    memory_share: float = 0.6  # of a GPU that engines take beside a trainer
    memory_share_apart: float = 0.85
    slots: int = 1024  # sequences of an engine at once
    reference: bool = True  # log-probabilities of a reference policy, too
    policy_logprobs: bool = True  # and those of the policy before it trains
    prompt: int = 128  # tokens
    spread: float = 0.8  # of the log of lengths: assumed
    packs: bool = True  # samples share micro-batches of the longest length
    recompute: str = "none"
    routing: str = "power_law_1.2"
    expert_messages: str = "copies"
    # of an engine's host, each step and each token, beside what a server's takes
    generate_step_s: float = 2.4e-3
    generate_token_s: float = 13e-6
    # training and forward passes take so many times as long as a trainer's steps; with experts both
    # by a further factor
    train_longer: float = 1.15
    forward_longer: float = 1.05
    experts_longer: float = 1.15
    prepare_s: float = 4.0  # of a step: data, buffers, what is made ready for each part
    # weights on their way to engines: whatever they are, each tensor, and by their bytes
    refit_s: float = 4.5
    refit_apart_s: float = 1.0
    refit_tensor_s: float = 0.3e-3
    refit_bytes_per_s: float = 60e9
    since: Mapping[str, Mapping[str, Any]] = {}  # what changed, by release, oldest first
    recipes: tuple[Recipe, ...] = ()

    def at(self, release: str, model: str, gpus: int) -> tuple[RlFramework, int]:
        """(Its habits in a release, with a model; GPUs that train in its recipe, 0: not told)."""
        known = last_release(self.since, release) if release else ["", *self.since][-1]
        said, train_gpus = dict(self.since.get(known, {})), 0
        for recipe in self.recipes:
            if recipe.model == model and recipe.gpus in (0, gpus):
                own = recipe.model_dump(exclude={"model", "gpus"}, exclude_none=True)
                train_gpus = own.pop("train_gpus", train_gpus)
                said |= own
        return self.model_copy(update=said), train_gpus


class Algorithm(Spec):
    """What a step runs beside rollouts and a policy that trains."""

    source: str
    reference: bool | None = None  # None: as the framework has it
    critics: int = 0  # models as large as the policy that train beside it
    rejected: float = 0.0  # share of groups that are sampled again


@functools.cache
def rl_frameworks() -> Mapping[str, RlFramework]:
    """All that are known, by name."""
    said = files_of(f"{__package__}.frameworks", "hybridperf/rl-framework")
    return {name: RlFramework(name=name, **one) for name, one in said.items()}


def rl_framework(name: str) -> RlFramework:
    """The habits of a framework by a name of it; `InputError` for one that nobody knows."""
    known, name = rl_frameworks(), name or _USUAL
    for one in known.values():
        if name.lower() in (one.name, *one.says):
            return one
    raise unknown("framework", name, known, f"known are {', '.join(known)}")


@functools.cache
def algorithms() -> Mapping[str, Algorithm]:
    """What each is made of, by name."""
    said = shipped_toml(__package__, "algorithms.toml")
    return {name: Algorithm(**one) for name, one in said.items() if isinstance(one, dict)}
