"""A platform with some numbers replaced by traced ones: `predict_batch`'s knobs at one point."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from hybridperf.collectives.traffic import Links
from hybridperf.io.namespace import fresh_views
from hybridperf.model import Platform
from hybridperf.model.step_effects import NAMES
from hybridperf.ops import GROUPS

LINK_KNOBS = tuple(field.name for field in dataclasses.fields(Links))


def with_knobs(platform: Platform, values: Mapping[str, Any]) -> Platform:
    """Knobs by the names of `knob_names()`: a group's own value, or a factor on every group's."""
    platform = jax.tree.map(jnp.asarray, fresh_views(platform))  # traced groups pick from them
    fields: dict[str, Any] = {}
    knobs: dict[str, Any] = {}
    links: dict[str, Any] = {}
    # a group's own value is the last word
    for name in sorted(values, key=lambda name: "__" in name):
        group, _, knob = name.rpartition("__")
        if hasattr(platform.knobs, knob):
            base = knobs.get(knob, getattr(platform.knobs, knob))
            at = GROUPS.index(group) if group else None
            knobs[knob] = base * values[name] if at is None else base.at[at].set(values[name])
        elif name in NAMES:
            effects = fields.get("effects", platform.effects)
            assert effects is not None  # a model's platform has them
            fields["effects"] = effects.at[NAMES.index(name)].set(values[name])
        else:
            (links if name in LINK_KNOBS else fields)[name] = values[name]
    if links and platform.links is not None:
        fields["links"] = dataclasses.replace(platform.links, **links)
    fields["knobs"] = dataclasses.replace(platform.knobs, **knobs)
    return dataclasses.replace(platform, **fields)
