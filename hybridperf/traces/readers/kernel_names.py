"""What a device event's name tells: whether it communicates, and copies that are kernels.

Libraries write their own name into that of a kernel, mostly as its namespace or in the types of its
arguments. Kernels that belong to no library are known by the collective that they are named after.
"""

from __future__ import annotations

import functools
import re

from hybridperf.traces.events import COPY, FILL, KERNEL

_LIBRARY = re.compile(
    r"nccl|rccl|oneccl|hccl|nvshmem|rocshmem|msccl|multimem_|cross_device_|userbuffers"
    # of experts (MoE): DeepEP (`dpsk::ep::internode::dispatch` in DeepSeek's own traces), HybridEP,
    # UCCL, MoRI, pplx
    r"|deep_?ep\b|\bdpsk::ep::|hybrid_?ep\b|\buccl|\bmori::|\bEp(?:Dispatch|Combine)\w*Kernel"
    r"|\bpplx|\ba2a_(?:dispatch|combine)_|\b(?:dispatch|combine)Kernel\b",
    re.I,
)
_COLLECTIVE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all", re.I)
_FUSED = re.compile(r"triton_")  # Inductor names its kernels after ops whose results they take
_OWN_NAME = re.compile(r"[^<(]*")  # without arguments, of templates either
# MTIA waits for other streams and marks where they are as events of the device's own
_NO_WORK = ("event_wait", "event_record")
_COPIES = {"__amd_rocclr_copyBuffer": COPY, "__amd_rocclr_fillBuffer": FILL, "dma_request": COPY}


@functools.lru_cache(maxsize=1 << 16)
def communicates(name: str) -> bool:
    """Whether a kernel of this name moves data between devices."""
    if _LIBRARY.search(name):
        return True
    own = _OWN_NAME.match(name.replace("(anonymous namespace)", ""))
    return bool(own and _COLLECTIVE.search(own[0]) and not _FUSED.match(name))


@functools.lru_cache(maxsize=1 << 16)
def kind_of_kernel(name: str) -> int | None:
    """KERNEL, or COPY or FILL for what a device runs as kernels of these names; None: no work."""
    if name in _NO_WORK:
        return None
    return next((kind for begin, kind in _COPIES.items() if name.startswith(begin)), KERNEL)
