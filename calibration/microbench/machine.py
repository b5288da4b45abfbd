"""The machine under measurement: which cores we run on, what it is, how disturbed it was.

Pinning comes first: XLA's CPU thread pool counts the cores it may use when it starts, so a process
that is pinned after `import jax` runs many threads on one core. On shared machines pinning also
buys most of the repeatability (the minimum over pinned repeats of a matmul agrees from run to run
to about 3 %, unpinned to about 45 %).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

try:
    import resource
except ImportError:  # Windows has no rusage
    resource = None  # type: ignore[assignment]

SENTENCE_PRINTED = 2  # exit status

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def exit_status(program: Callable[[], int]) -> int:
    """The program's status; 2 after one sentence on what is wrong, 130 where a user stopped it."""
    try:
        return program()
    except (RuntimeError, ValueError) as error:
        sentence = (str(error).splitlines() or [type(error).__name__])[0]
        print(f"hybridperf: {sentence}", file=sys.stderr)
        return SENTENCE_PRINTED
    except KeyboardInterrupt:
        return 130  # the command that started this program says so


def parse_cores(text: str) -> tuple[int, ...]:
    """The cores that "0", "0,2" or "0-3,6" names."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        whole = first.isdecimal() and (not dash or last.isdecimal())
        if not whole or (dash and int(last) < int(first)):
            raise ValueError(f"expected cores like 0, 0,2 or 0-3, got {text!r}.")
        cores.extend(range(int(first), int(last or first) + 1))
    return tuple(cores)


def pin(cores: Iterable[int]) -> tuple[int, ...]:
    """Bind this process to `cores`, before JAX is imported; returns them, () if impossible here.
    What is bound to them already stays so, as a cell of a notebook that runs again.
    """
    wanted = frozenset(cores)
    if "jax" in sys.modules:
        if hasattr(os, "sched_getaffinity") and os.sched_getaffinity(0) == wanted:
            return tuple(sorted(wanted))
        raise RuntimeError(
            "pin() must come before jax is imported, because XLA sizes its thread pool at start."
        )
    if not hasattr(os, "sched_setaffinity"):
        remark = f"{platform.system()} cannot pin to cores; timings will be noisier."
        print(f"hybridperf: {remark}", file=sys.stderr)
        return ()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, wanted)
    except (OSError, OverflowError, ValueError):
        pinned: set[int] = set()
    else:
        pinned = os.sched_getaffinity(0)
    if pinned != wanted:  # the kernel silently drops cores that we may not use
        os.sched_setaffinity(0, before)
        missing = ", ".join(str(core) for core in sorted(wanted - pinned)) or "(none)"
        raise ValueError(
            f"cannot run on core {missing}: this machine has {os.cpu_count()} cores, numbered from"
            " 0, of which a container may offer fewer; name others."
        )
    return tuple(sorted(pinned))


def steady_cpu() -> None:
    """Make single ops on the CPU repeatable; after `pin`, before jax is imported.

    Without this an op timed alone pays for two things that an op inside a program does not: XLA
    hands all but the cheapest programs to another thread (3-4 us), and freed outputs go back to the
    system, so that each call faults in its pages again (64 MiB: 28 ms instead of 14). The second
    setting needs the first: the other thread's memory is managed apart.
    """
    if "jax" in sys.modules:
        raise RuntimeError(
            "steady_cpu() must come before jax is imported, because its CPU client is set up once."
        )
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # has no environment variable
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        # large blocks from the heap, too; the threshold for them cannot exceed 32 MiB
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)  # an int: up to 2 GiB of freed heap are kept


def give_back_freed() -> None:
    """Hand freed memory back to the system, as if nothing else had run in this process: a block of
    a step's own beyond 32 MiB is otherwise cut from what other steps left, and is not fresh.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def wake_in_turn() -> None:
    """Let no thread of this process interrupt another when it wakes; before jax is imported.

    Linux only. gloo's own thread wakes for each message and asks for a lock that the thread which
    sends may still hold. On one core it would interrupt that thread and ask again until the
    scheduler's next tick: steps of two processes, one core each, took multiples of 4 ms. Under
    SCHED_BATCH it waits until the sender does.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it, which costs quiet only
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def only_ops_of_torch(cores: int) -> None:
    """PyTorch as an op is measured: as many threads as cores, and no record for gradients."""
    import torch

    torch.set_num_threads(cores)
    torch.set_grad_enabled(False)


def cpu_model() -> str:
    """The processor's name as the operating system gives it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def cores_available() -> int:
    """How many cores this process may use (after pinning)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """The host's main memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def load_1min() -> float | None:
    """Runnable processes, averaged over the last minute; above the cores others compute, too."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def clock(on_cpu: bool = True) -> Callable[[], float]:
    """What the seconds of a call are read from, where it runs `on_cpu` or on an accelerator.

    On one core of a CPU it is this process' processor time, all threads together: what a core does
    for others comes in whole time slices, which no number of repeats avoids (a product of 512 x 512
    among eight other programs on two cores: 1.63 ms at best, 1.85 at the median by this clock, 1.63
    and 14 by the wall's). Nothing else differs on a core of one's own. With several cores threads
    work at once, and only the wall's clock tells how long that takes.
    """
    return time.process_time if on_cpu and cores_available() == 1 else time.perf_counter


def preemptions() -> int:
    """Involuntary context switches of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0


def machine_facts(library: str = "jax") -> dict[str, Any]:
    """Provenance of a measurement: host, processor, accelerator and versions. Imports JAX, and
    PyTorch where that is the library, whose device counts then.
    """
    import jax
    import jaxlib

    from hybridperf_calibration.microbench import accelerator

    devices, seen = jax.devices(), accelerator.facts(library)
    own: dict[str, Any] = {}
    if library == "torch":
        import torch

        own = {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
    if seen["kind"] != "cpu":
        backend = "tpu" if seen["kind"] == "tpu" else "gpu"
        own |= {"backend": backend, "device_kind": seen["name"], "devices": seen["count"]}
        own["accelerator"] = seen
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cpu_model": cpu_model(),
        "cores": cores_available(),
        "memory_bytes": memory_bytes(),
        "backend": devices[0].platform,
        "device_kind": devices[0].device_kind,
        "devices": len(devices),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        **own,
    }


def fingerprint(settings: Mapping[str, Any], library: str = "jax") -> dict[str, Any]:
    """What two runs must share to measure the same: hardware, JAX, and their `settings`.

    The host's name is not part of it: a restarted container has a new one.
    """
    import jax

    facts = machine_facts(library)
    own: dict[str, Any] = {name: facts[name] for name in facts if name.startswith("torch")}
    config: Any = jax.config  # mypy does not see its flags
    same = ("cpu_model", "cores", "backend", "device_kind", "devices", "jax", "jaxlib", "xla_flags")
    return {
        **{name: facts[name] for name in same},
        "x64": bool(config.jax_enable_x64),
        # see steady_cpu
        "cpu_async_dispatch": bool(jax.config.read("jax_cpu_enable_async_dispatch")),
        "matmul_precision": str(config.jax_default_matmul_precision),
        **own,
        **{f"setting {name}": value for name, value in settings.items()},
    }
