"""Damage of every kind, by a seeded generator: to bytes, to documents (JSON, TOML), to tables."""

import json
import math
import random
import re

ODD = [
    None, True, False, "", "abc", "12", "1e400", "nan", "=1+1", -1, 0, 0.001, 1e-300, 2**31,
    2**53 + 1, 2**64, 10**30, -1e18, 1e30, 1e300, 1e308, float("nan"), float("inf"), "1+2j",
    [], [[]], [1, "a"], {}, {"a": 1}, "x" * 5000, "\ud800", "\n\n", "\x00", "é", "1" * 5000,
]  # fmt: skip
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")


def mutated_bytes(text: bytes, rng: random.Random) -> bytes:
    """Cut off, flipped, cut out, doubled, brackets swapped."""
    changed = bytearray(text)
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(changed[: rng.randrange(len(changed))])
    for _ in range(rng.choice([1, 3, 20])):
        at = rng.randrange(len(changed))
        if kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[at : at + rng.randrange(1, 200)]
        elif kind == 3:
            changed[at:at] = changed[at : at + rng.randrange(1, 200)]
        elif kind == 4:
            changed[at] = rng.choice(b'{}[]",:0-9eE\\n\x00\xff')
        else:
            one, other = (
                changed.find(rng.choice([b"{", b"}", b"[", b"]"]), rng.randrange(len(changed)))
                for _ in range(2)
            )
            changed[one], changed[other] = changed[other], changed[one]
        if not changed:
            break
    return bytes(changed)


def mutated_text(text: str, rng: random.Random) -> str:
    """Bytes damaged, or some numbers replaced by odd values, or one of their digits by another."""
    numbers = list(_NUMBER.finditer(text))
    if not numbers or rng.random() < 0.3:
        return mutated_bytes(text.encode(), rng).decode(errors="surrogateescape")
    for found in sorted(rng.sample(numbers, min(len(numbers), rng.choice([1, 1, 2, 5]))),
                        key=lambda one: -one.start()):  # fmt: skip
        digits = found.group()
        if rng.random() < 0.3:
            at = rng.randrange(len(digits))
            new = digits[:at] + str(rng.randrange(10)) + digits[at + 1 :]
        else:
            new = written(rng.choice(ODD))
        text = text[: found.start()] + new + text[found.end() :]
    return text


def mutated_json(text: str, rng: random.Random) -> str:
    """Text damaged, or fields of the document deleted, doubled, renamed, of other values."""
    if rng.random() < 0.4:
        return mutated_text(text, rng)
    document = json.loads(text)
    places = [(None, None), *_places(document)]
    for _ in range(rng.choice([1, 1, 2, 5])):
        holder, key = rng.choice(places)
        if holder is None:
            continue
        try:
            if rng.random() < 0.25:
                del holder[key]
            elif rng.random() < 0.2 and isinstance(holder, dict):
                holder[rng.choice(["x", str(key) + "s", "schema", ""])] = holder.pop(key)
            else:
                other, from_key = rng.choice(places)
                value = rng.choice(ODD) if other is None or rng.random() < 0.7 else other[from_key]
                holder[key] = json.loads(json.dumps(value))
        except (KeyError, IndexError, RecursionError):
            continue
    return json.dumps(document)


def mutated_csv(text: str, rng: random.Random) -> str:
    """Text damaged, or cells and names of columns replaced, columns and rows dropped or doubled."""
    if rng.random() < 0.3:
        return mutated_text(text, rng)
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.choice([1, 1, 2, 5])):
        kind, row = rng.randrange(8), rng.choice(rows)
        column = rng.randrange(len(row)) if row else 0
        if kind == 0:
            for one in rows:
                del one[column : column + 1]
        elif kind == 1:
            rows.append(list(row))
        elif kind == 2:
            rows[0][column : column + 1] = [rng.choice(["", "x", "time_s", rows[0][-1], "nam"])]
        elif kind == 3:  # a whole column
            value = written(rng.choice(ODD))
            for one in rows[1:]:
                one[column : column + 1] = [value]
        else:
            row[column : column + 1] = [written(rng.choice(ODD))]
    return "\n".join(",".join(row) for row in rows) + "\n"


def written(value: object) -> str:
    """A value as text, as a person writes it into a file."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return "" if value is None else json.dumps(value)


def _places(document: object) -> list[tuple]:
    """(holder, key) of every value within."""
    found, layer = [], [document]
    while layer:
        holder = layer.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in pairs if isinstance(holder, dict | list) else ():
            found.append((holder, key))
            if isinstance(value, dict | list):
                layer.append(value)
    return found
