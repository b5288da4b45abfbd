"""When an engine takes prompts that came: at every step, or only so often, or once some are there.

    every   steps of decoding from one look at new requests to the next; between them prompts wait,
            every (every - 1) / 2 (every + q) steps in the mean, where q looks of one find any
            (SGLang's scheduler_recv_interval; TRT-LLM's attention_dp_config.timeout_iters, where
            ranks wait until all of them have a prompt)
    gather  steps that the first prompt waits for more, up to `tokens` of a step (TRT-LLM's
            batch_wait_timeout_iters, batch_wait_max_tokens_ratio x max_num_tokens); n others that
            come meanwhile wait half of them: gather (1 + n / 2) / (1 + n) in the mean

Nothing is held back while no sequence decodes. A step that computes prompts is followed by a look.
Read in sglang `managers/scheduler_recv_skipper.py` and TensorRT-LLM `_torch/pyexecutor`
(`_waiting_requests`, `_balance_adp_requests`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hybridperf.io.namespace import Array, array_module, floats

NO_LIMIT = 1e12  # tokens; infinity has no gradient


class Admission(NamedTuple):
    """Steps and tokens; numbers, or arrays of any shape."""

    every: Array = 1.0
    gather: Array = 0.0
    tokens: Array = NO_LIMIT

    @property
    def at_once(self) -> bool:
        """Whether prompts are taken as they come, in all places; False where JAX traces that."""
        if array_module(self.every, self.gather) is not np:
            return False
        return not ((floats(self.every) > 1).any() or (floats(self.gather) > 0).any())

    def period(self, arrivals: Array, prompt: Array, decoding: Array) -> Array:
        """Steps from one taking of prompts to the next.

        Args:
            arrivals: prompts a step.
            prompt: tokens.
            decoding: sequences, each with a token of the step.
        """
        if self.at_once:
            return 1.0
        module = array_module(*self, arrivals, prompt, decoding)
        first = 1.0 / module.maximum(arrivals, 1e-12)
        gathered = module.where(
            self.gather > 0, first + self._held(arrivals, prompt, decoding), 1.0
        )
        return module.maximum(floats(self.every), gathered)

    def wait(self, arrivals: Array, prompt: Array, decoding: Array) -> Array:
        """Steps that a prompt waits in the mean; as `period`."""
        module = array_module(*self, arrivals, prompt, decoding)
        held = self._held(arrivals, prompt, decoding)
        more = held * arrivals
        gathered = held * (1.0 + 0.5 * more) / (1.0 + more)
        every = floats(self.every)
        found = 1.0 - module.exp(-every * arrivals)  # a look: a step of prompts follows, and a look
        return module.maximum(every * (every - 1.0) / 2.0 / (every + found), gathered)

    def window(self, arrivals: Array, prompt: Array, decoding: Array) -> Array:
        """Steps in which those come that are taken with a prompt; as `period`."""
        if self.at_once:
            return 1.0
        module = array_module(*self, arrivals, prompt, decoding)
        return module.maximum(floats(self.every), self._held(arrivals, prompt, decoding))

    def _held(self, arrivals: Array, prompt: Array, decoding: Array) -> Array:
        """Steps that the first of some prompts waits."""
        module = array_module(*self, arrivals, prompt, decoding)
        missing = module.maximum((self.tokens - decoding) / prompt - 1.0, 0.0)
        return module.minimum(floats(self.gather), missing / module.maximum(arrivals, 1e-12))


AT_ONCE = Admission()
