"""Real traces cut to a size that is quick to read, and damaged."""

import gzip
import json
import tarfile

TRIMMED_BYTES = 120_000
ODD = [
    None, True, "", "abc", "12", -1, 0, 1e-300, 2**31, 2**53 + 1, 2**64, 10**30, -1e18, 1e308,
    float("nan"), float("inf"), [], [[]], {}, {"a": 1}, "ProfilerStep#3", "cpu_op", "kernel",
    "cuda_runtime", "X", "\ud800", "\n\n",
]  # fmt: skip


def documents(folder):
    """(name, JSON) of every real trace: Kineto's, and other kinds that must be told apart from
    them.
    """
    for path in sorted(folder.glob("*.gz")):
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as archive:
                for member in sorted(
                    (m for m in archive.getmembers() if m.name.endswith((".json", ".json.gz"))),
                    key=lambda m: m.name,
                )[:2]:
                    content = archive.extractfile(member).read()
                    yield (
                        path.name,
                        json.loads(
                            gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
                        ),
                    )
        else:
            yield path.name, json.loads(gzip.decompress(path.read_bytes()))


def trimmed(document):
    """What fits of a document: every few of its entries, steps' marks always."""
    key = next((k for k in ("traceEvents", "nodes", "workload_graph") if k in document), None)
    if key is None:
        return document
    entries = document[key]
    marks = [e for e in entries if str(e.get("name", "")).startswith("ProfilerStep")][:6]
    launched = [e for e in entries if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    kept = {e["args"]["correlation"] for e in launched[len(launched) // 2 :][:60]}
    chosen = [
        e
        for e in entries
        if isinstance(e.get("args"), dict) and e["args"].get("correlation") in kept
    ]
    chosen += entries[:40] + entries[len(entries) // 2 :][:100]
    small = {k: v for k, v in document.items() if k not in (key, "INFO")}
    while True:
        text = json.dumps({**small, key: marks + chosen})
        if len(text) < TRIMMED_BYTES:
            return json.loads(text)
        chosen = chosen[: len(chosen) * 3 // 4]


def entries_of(document):
    return next(
        (
            document[k]
            for k in ("traceEvents", "nodes", "workload_graph")
            if isinstance(document.get(k), list)
        ),
        [document],
    )


def mutated_document(document, rng):
    """A copy with a few fields deleted, doubled, of other types, with odd times; or with entries
    so.
    """
    text = json.dumps(document)
    copy = json.loads(text)
    entries = entries_of(copy)
    for _ in range(rng.choice([1, 1, 2, 5, 50])):
        at = rng.randrange(len(entries)) if entries else 0
        kind = rng.randrange(8)
        if not entries or not isinstance(entries[at], dict) or not entries[at]:
            copy[rng.choice(list(copy) or ["a"])] = rng.choice(ODD)
        elif kind == 0:
            del entries[at]
        elif kind == 1:
            entries.insert(rng.randrange(len(entries)), entries[at])
        elif kind == 2:
            del entries[at][rng.choice(list(entries[at]))]
        elif kind == 3:
            entries[at][rng.choice(list(entries[at]))] = rng.choice(ODD)
        elif kind == 4:
            entries[at][rng.choice(["ts", "dur"])] = rng.choice(ODD)
        elif kind == 5 and isinstance(entries[at].get("args"), dict) and entries[at]["args"]:
            entries[at]["args"][rng.choice(list(entries[at]["args"]))] = rng.choice(ODD)
        elif kind == 6:  # wrong nesting: another's start or end
            other = rng.choice(entries)
            if isinstance(other, dict):
                entries[at].update(
                    {k: other[k] for k in ("ts", "tid") if k in other and rng.random() < 0.7}
                )
        else:
            copy[rng.choice(list(copy))] = rng.choice(ODD)
            entries = entries_of(copy) if isinstance(entries_of(copy), list) else []
    return json.dumps(copy).encode()
