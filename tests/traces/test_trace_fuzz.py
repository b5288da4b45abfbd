"""Whatever happens to a trace's file, it is imported or refused in one sentence: mutations of real
ones, cut to a size that is quick.

`pytest -m slow` does the same to whole files.
"""

import gzip
import io
import json
import random
import tarfile
import zipfile

import numpy as np
import pytest
from support.damaged_traces import documents, mutated_document, trimmed
from support.mutations import mutated_bytes

from hybridperf.io import InputError
from hybridperf.traces.events import CALL, NONE
from hybridperf.traces.readers.kineto import read_traces
from hybridperf.traces.steps import common_steps, steps, typical

MUTATIONS = 2_000


def packed(text, rng):
    """As people send it, then perhaps damaged once more."""
    kind = rng.randrange(8)
    if kind == 0:
        text = gzip.compress(text, 1)
    elif kind in (1, 2):
        held = io.BytesIO()
        with tarfile.open(
            fileobj=held,
            mode="w:gz" if kind == 1 else "w",
            **({"compresslevel": 1} if kind == 1 else {}),
        ) as archive:
            info = tarfile.TarInfo("rank0.json")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        text = held.getvalue()
    elif kind == 3:
        held = io.BytesIO()
        with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            archive.writestr("rank0.json", text)
        text = held.getvalue()
    return mutated_bytes(text, rng) if kind < 4 and rng.random() < 0.4 else text


def check(path):
    """True if the file was imported and what came of it holds together; False if it was refused in
    one sentence.
    """
    try:
        traces = read_traces([path])
        common_steps(traces)
    except InputError as error:
        sentence = str(error)
        assert "\n" not in sentence
        assert 20 < len(sentence.replace(str(path), "FILE")) < 300, sentence
        return False
    for trace in traces:
        host, device = trace.host, trace.device_events
        assert np.isfinite(host.start_s).all()
        assert (host.end_s >= host.start_s).all()
        assert (np.diff(host.start_s) >= 0).all()
        assert (np.diff(device.start_s) >= 0).all()
        assert (device.end_s >= device.start_s).all()
        inner = np.flatnonzero(host.parent != NONE)
        assert (host.parent[inner] < inner).all()
        assert (host.thread[host.parent[inner]] == host.thread[inner]).all()
        assert (host.kind[device.call[device.call != NONE]] == CALL).all()
        found = steps(trace)
        assert typical(trace, found).name in {step.name for step in found}
        within = np.concatenate([step.device for step in found])
        assert len(np.unique(within)) == len(within)
    return True


def fuzz(texts, count, path):
    imported = 0
    for seed in range(count):
        rng = random.Random(seed)
        document = texts[seed % len(texts)]
        text = (
            mutated_document(document, rng)
            if rng.random() < 0.6
            else mutated_bytes(json.dumps(document).encode(), rng)
        )
        path.write_bytes(packed(text, rng))
        try:
            imported += check(path)
        except Exception as error:
            raise AssertionError(f"mutation {seed}: {type(error).__name__}: {error}") from error
    return imported


def test_mutations_of_trimmed_real_traces_are_imported_or_refused_in_one_sentence(
    data_dir, tmp_path
):
    texts = [trimmed(document) for _, document in documents(data_dir / "traces")]
    texts = sorted(texts, key=lambda text: "traceEvents" not in text)
    # these twice: other kinds have fewer ways to go wrong
    texts = [*texts, *(text for text in texts if "traceEvents" in text)]
    assert all(len(json.dumps(text)) < 200_000 for text in texts)
    whole = tmp_path / "whole.json"
    imports = 0
    for text in texts:
        whole.write_text(json.dumps(text))
        imports += check(whole)
    assert imports >= 10  # every Kineto flavour of the folder, before anything happens to it
    imported = fuzz(texts, MUTATIONS, tmp_path / "rank0.json")
    assert MUTATIONS * 0.2 < imported < MUTATIONS * 0.8  # neither all refused nor all harmless


@pytest.mark.slow
def test_mutations_of_whole_real_traces(data_dir, tmp_path):
    for name, document in documents(data_dir / "traces"):
        print(name, fuzz([document], 40, tmp_path / "rank0.json"))
