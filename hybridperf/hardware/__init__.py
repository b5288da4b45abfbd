"""What a machine is: a device (what computes), a fabric (what connects devices) and a host (what
launches work).

Facts and knobs are kept apart. A `DeviceSpec` or `SystemSpec` holds facts as somebody published
them, with their source; an unknown number is absent, and asking for it is an error, never a
default. A `Device` is the part of a spec that formulas read: a pytree of float arrays in SI units,
whose leaves may be replaced (a made-up machine) or carry a trailing batch axis (ten thousand of
them).

Memory levels, nearest first: `LEVELS = l1, l2, l3, memory`. A level a device lacks has a capacity
of zero. GPUs fill `l2` and `memory` only.
"""

from hybridperf.hardware.host import (
    HOST_FILE,
    HOST_SCHEMA_VERSION,
    Host,
    Overhead,
    Spread,
    load_host,
)
from hybridperf.hardware.names import (
    device_called,
    device_id,
    device_names,
    device_of,
    load_device,
    load_system,
    names_people_use,
    other_names,
    system_names,
    system_of,
)
from hybridperf.hardware.specs import (
    DTYPE_BYTES,
    FLOAT_DTYPES,
    LEVELS,
    MEMORY,
    Device,
    DeviceSpec,
    SystemSpec,
    Unit,
    canonical_dtype,
)
from hybridperf.hardware.this_gpu import this_gpu, this_node
from hybridperf.hardware.this_machine import this_cpu, this_system

__all__ = [
    "DTYPE_BYTES", "FLOAT_DTYPES", "HOST_FILE", "HOST_SCHEMA_VERSION", "LEVELS", "MEMORY", "Device",
    "DeviceSpec", "Host", "Overhead", "Spread", "SystemSpec", "Unit", "canonical_dtype",
    "device_called", "device_id", "device_names", "device_of", "load_device", "load_host",
    "load_system", "names_people_use", "other_names", "system_names", "system_of", "this_cpu",
    "this_gpu", "this_node", "this_system",
]  # fmt: skip
