"""What a step costs: energy from the power that devices draw, money from rent.

    energy of a step    GPUs x PUE x ((idle + host) x step
                        + (full clock - idle) x (computing + share x messages that show))
    money of a step     GPUs x step x rent per GPU and hour; with a rent of 0, of devices of one's
                        own, energy x USD per kWh

Messages that hide behind arithmetic draw nothing of their own: the device is at full clock then.
`share` is an assumption (a device that only sends and waits keeps a few multiprocessors spinning);
waiting for other stages and for the host is idle.

Rates come from the shipped prices (assumptions, each with its date) and a user's file over them
(`hardware/prices.py`): `<device>_usd_per_hour` or `gpu_usd_per_hour`, `gpu_w`,
`gpu_idle_w`, `gpu_message_share`, `host_w`, `pue`, `usd_per_kwh`. Full clock is the
device's own TDP unless the user's file gives `gpu_w`.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np

from hybridperf.engine.step_features import StepParts
from hybridperf.hardware import DeviceSpec
from hybridperf.hardware.prices import UnitPrice, read_prices
from hybridperf.io import InputError
from hybridperf.io.namespace import Array

HOUR_S, DAY_S = 3600.0, 86400.0
J_PER_KWH = 3.6e6
_RANGES = {
    "gpu_message_share": (0.0, 1.0, "from 0 to 1"),
    "pue": (1.0, math.inf, "of 1 or more"),
}


@dataclasses.dataclass(frozen=True)
class Economy:
    """Rates of one kind of device. `usd_per_hour` None: nobody says what it rents for."""

    usd_per_hour: float | None
    full_w: float
    idle_w: float
    host_w: float
    pue: float
    usd_per_kwh: float
    message_share: float  # of the power from idle to full clock, while messages show
    notes: tuple[str, ...]  # each rate with its date and source

    def energy_j(self, gpus: float, parts: StepParts) -> Array:
        """Joules of a step of these parts (seconds, numbers or arrays)."""
        at_work_s = parts.compute_s + self.message_share * parts.exposed_comm_s
        working_w = gpus * self.pue * (self.full_w - self.idle_w)
        return self.standing_w(gpus) * parts.step_s + working_w * at_work_s

    def standing_w(self, gpus: Array) -> Array:
        """Watts of devices that do nothing, with their share of hosts and cooling."""
        return gpus * self.pue * (self.idle_w + self.host_w)

    def usd(self, gpus: float, parts: StepParts) -> Array:
        """Rent of a step, of one's own devices its electricity; NaN where no rent is known."""
        if self.owned:
            return self.energy_usd(self.energy_j(gpus, parts))
        rent = float("nan") if self.usd_per_hour is None else self.usd_per_hour
        return gpus * parts.step_s * rent / HOUR_S

    @property
    def owned(self) -> bool:
        """Whether the devices are the user's own: he pays no rent but the meter."""
        # a rent that JAX traces is one
        return isinstance(self.usd_per_hour, int | float) and self.usd_per_hour == 0

    @property
    def money(self) -> str:
        """What money pays for: "rent", or "electricity" of devices of one's own."""
        return "electricity" if self.owned else "rent"

    @property
    def unknown(self) -> str:
        """Why there is no money, "" where there is."""
        return self.notes[-1] if self.usd_per_hour is None else ""

    def energy_usd(self, energy_j: Array) -> Array:
        """USD of some energy by the meter; a rent includes it."""
        return energy_j / J_PER_KWH * self.usd_per_kwh


def score(objective: str, rates: Economy, parts: StepParts, gpus: int, tokens: float) -> np.ndarray:
    """What ranks steps of these parts [N], less is better; rises with each part."""
    if objective == "time":
        return np.asarray(parts.step_s)
    if objective == "energy":
        return np.asarray(rates.energy_j(gpus, parts)) / tokens
    if objective == "cost":
        return np.asarray(rates.usd(gpus, parts)) / tokens
    return np.asarray(parts.step_s) / tokens


def economy(device: DeviceSpec, file: Path | None = None) -> Economy:
    """Rates for a device: shipped ones, those of the user's file over them.

    Raises:
        InputError: for a file that is none, or rates that cannot be.
    """
    shipped, prices = read_prices(), read_prices(file)
    used: dict[str, UnitPrice] = {}

    def take(name: str) -> float:
        used[name] = prices[name]
        return prices[name].value

    words = device.id.split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    rents = [name for one in (*names, "gpu") if (name := f"{one}_usd_per_hour") in prices]
    own = [name for name in rents if prices[name] != shipped.get(name)]  # the user's before ours
    rent = next(iter([*own, *rents]), None)
    given_w = prices["gpu_w"] != shipped["gpu_w"] or device.tdp_w is None
    full_w = take("gpu_w") if given_w else float(device.tdp_w or 0.0)
    usd_per_hour = None if rent is None else take(rent)
    idle_w, host_w = take("gpu_idle_w"), take("host_w")
    pue, usd_per_kwh, message_share = take("pue"), take("usd_per_kwh"), take("gpu_message_share")
    for name, price in used.items():
        low, high, range_ = _RANGES.get(name, (0.0, math.inf, "of 0 or more"))
        if not low <= price.value <= high:
            raise InputError(
                f"expected a {name} {range_}, got {price.value:g} ({price.source}); mend it in"
                " --prices"
            )
    notes = []
    for name, price in used.items():
        when = "" if price.date in price.source else f", {price.date}"
        notes.append(f"{name} {price.value:g} ({price.unit}; {price.source}{when})")
    if usd_per_hour == 0:
        notes.append(
            "a rent of 0: devices of one's own, money is electricity alone, without what they cost"
            " to buy"
        )
    elif usd_per_hour is not None:
        notes.append(
            "rent includes electricity; for devices of your own give a rent of 0: money is then"
            " electricity at usd_per_kwh"
        )
    if not given_w:
        notes.append(f"{full_w:g} W at full clock: the TDP of {device.id}")
    if rent is None:
        notes.append(f"no rent of {device.id} is known: give {names[-1]}_usd_per_hour in --prices")
    return Economy(
        usd_per_hour, full_w, min(idle_w, full_w), host_w, pue, usd_per_kwh, message_share,
        tuple(notes),
    )  # fmt: skip
