"""What one serving framework does that others do not: a TOML file each in this folder, which is all
that a further one needs. Its name is the file's, as tables of measured kernels call it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Literal

from hybridperf.fields.frameworks import files_of, last_release, release_number
from hybridperf.hardware.specs import Spec


class Effect(Spec):
    """The median of one of a server's effects (`model/serving_effects.py`)."""

    effect: str
    median: float
    source: str
    memory: Literal["", "gddr", "hbm"] = ""  # of the devices that have it; "": all
    since: str = ""  # the first release that has it; before it the usual median holds


class Release(Spec):
    """One with which a default changed."""

    version: str
    date: str  # the day it was released, as 2026-01-17
    source: str


class SharedCache(Spec):
    """Layouts of heads whose shared cache decoding read once before some release; in others each
    head read it again.
    """

    before: str  # the first release that reads any of them once
    groups: tuple[float, ...]  # heads that share one
    head_dims: tuple[float, ...]
    source: str


class Launch(Spec):
    """The command that starts an engine (`serving/launch_lines.py` says which words and conditions
    there are).
    """

    command: tuple[tuple[str, str], ...]  # pieces, each with its condition; empty: always
    settings: tuple[tuple[str, str], ...] = ()  # lines of a file, likewise: the word `settings`
    kv: Mapping[str, str] = {}  # number formats of the cache that are called otherwise
    narrowed: Mapping[str, str] = {}  # the option that narrows weights to a format as they load


class ServingFramework(Spec):
    """Habits of a framework; those of one that nobody knows if not given."""

    name: str = ""
    # words that rows' names of it contain, in lower case, letters and digits alone
    says: tuple[str, ...] = ()
    # number format of the cache where weights are narrow and nothing else is told; of models
    # without experts, empty: the same
    kv: str = "bf16"
    kv_dense: str = ""
    # share of an answer's tokens that a slot holds in the mean: half where blocks are taken as they
    # are needed, more where the scheduler takes them ahead
    reserved: float = 0.5
    # the first release that cuts prompts by default: before it a step takes the longest whole
    cuts_prompts_from: str = ""
    formats: Mapping[str, str] = {}  # schemes of weights that it keeps otherwise
    narrows_before: bool = False  # ops before a product write what it multiplies
    rotates_inside: bool = False  # attention rotates keys and queries and fills the cache
    norms_as_it_sums: bool = False  # an all-reduce does the norm after it
    heads_of_cache: float = math.inf  # for which a kernel reads their cache once, at most
    shared_cache: SharedCache | None = None
    # major compute capabilities of GPUs whose steps with prompts decode by the prompts' kernel
    decodes_as_prompts_on: tuple[int, ...] = ()
    # whose kernels it runs where an architecture has them, by op as tables of kernels call it
    takes_kernels_from: Mapping[str, str] = {}
    # kernels that send tokens to experts (`collectives/experts.toml`): those of many, those of few
    # tokens of a rank, and those among ranks that one node's links join; "": as between nodes
    expert_kernel: str = "deepep"
    expert_kernel_few: str = "deepep_low_latency"
    expert_few_tokens: float = 256.0
    expert_kernel_inside: str = ""
    fuses_experts: bool = False  # a layer's experts are few kernels on any device
    # kernels of each expert of a layer, whether a token takes it or not, where a graph of static
    # shapes holds one after the other
    kernels_an_expert: float = 0.0
    takes_all_experts: tuple[str, ...] = ()  # how models begin whose tokens pass all experts
    # attention of prompts as modules of PyTorch, whose scores go through memory between kernels
    scores_in_memory: bool = False
    # tokens of a prompt that pass a pipeline's stages together, its other pieces behind them; whole
    # prompts if not given
    piece_of_prompt: float = math.inf
    # ranks from which experts are kept balanced, by copies of busy ones (DeepSeek's EPLB): as wide
    # as tables of experts go, where nothing is told
    balances_from: int = 9
    # of each kernel of prompts in its own loop, where no server is before it; 0: as any host's
    engine_launch_s: float = 0.0
    eager_launch_s: float = 0.0  # of each kernel where none is joined; 0: as any host's
    cold: float = 0.0  # how far TTFT's upper end reaches for runs that begin cold; of its log
    effects: tuple[Effect, ...] = ()  # in place of the usual ones
    releases: tuple[Release, ...] = ()  # with which one of these changed, oldest first
    launch: Launch | None = None

    def sends_to_experts(self, nodes: int, tokens: float) -> str:
        """The kernel that sends so many tokens of each rank to experts on so many nodes."""
        if nodes == 1 and self.expert_kernel_inside:
            return self.expert_kernel_inside
        few = tokens <= self.expert_few_tokens
        return self.expert_kernel_few if few else self.expert_kernel

    def reads_cache_once(self, version: str, group: float, head_dim: float) -> bool:
        """Whether heads that share a cache read it once when they decode; unknown releases are the
        newest.
        """
        known, number = self.shared_cache, release_number(version)
        if known is None or not number or number >= release_number(known.before):
            return True
        return group in known.groups and head_dim in known.head_dims

    def tokens_of_a_step(self, version: str, longest: float) -> float:
        """The most that a release allows by default where the longest sequence has so many; 0: the
        usual number.
        """
        number = release_number(version)
        whole = bool(number) and number < release_number(self.cuts_prompts_from)
        return max(longest, 2048.0) if whole and math.isfinite(longest) else 0.0

    def release(self, version: str = "", date: str = "") -> str:
        """Which of `releases` an engine has: by its version, else by the day it ran on (as
        2026-01-17), else the newest; "" of one that is older than all.
        """
        if release_number(version):
            return last_release((one.version for one in self.releases), version)
        known = [one.version for one in self.releases if not date or one.date <= date]
        return known[-1] if known else ""


_USUAL = ServingFramework()


@functools.cache
def serving_frameworks() -> Mapping[str, ServingFramework]:
    """All that are known, by name."""
    said = files_of(__package__, "hybridperf/serving-framework")
    return {name: ServingFramework(name=name, **one) for name, one in said.items()}


def serving_framework(name: str) -> ServingFramework:
    """The habits of a framework by our name of it; the usual ones where it is none of ours."""
    return serving_frameworks().get(name, _USUAL)
