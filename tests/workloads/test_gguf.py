"""Headers of GGUF files, written here by the format's own layout (version 3): facts, tensors, and
what is none.
"""

import random
import struct
from pathlib import Path
from typing import Any

import pytest

from hybridperf.io import InputError
from hybridperf.workloads.transformer.gguf import config_of, read_header
from hybridperf.workloads.transformer.zoo import load_shape

U32, F32, BOOL, TEXT, LIST, U64 = 4, 6, 7, 8, 9, 10
Q4_K, Q6_K, PLAIN = 12, 14, 0


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def fact(name: str, kind: int, value: Any) -> bytes:
    head = text(name) + struct.pack("<I", kind)
    if kind == TEXT:
        return head + text(value)
    if kind == LIST:
        of, items = value
        body = b"".join(map(text, items)) if of == TEXT else struct.pack(f"<{len(items)}I", *items)
        return head + struct.pack("<IQ", of, len(items)) + body
    return head + struct.pack({U32: "<I", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], value)


def tensor(name: str, kind: int, *sizes: int) -> bytes:
    dimensions = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + dimensions + struct.pack("<IQ", kind, 0)


def gguf(facts: list[bytes], tensors: list[bytes]) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(facts))
    return head + b"".join(facts) + b"".join(tensors)


LLAMA = [
    fact("general.architecture", TEXT, "llama"),
    fact("general.file_type", U32, 15),
    fact("llama.context_length", U32, 8192),
    fact("llama.embedding_length", U32, 4096),
    fact("llama.block_count", U32, 32),
    fact("llama.feed_forward_length", U32, 14336),
    fact("llama.attention.head_count", U32, 32),
    fact("llama.attention.head_count_kv", LIST, (U32, [8] * 32)),
    fact("llama.rope.freq_base", F32, 5e5),
    fact("tokenizer.ggml.add_bos_token", BOOL, True),
    fact("tokenizer.ggml.tokens", LIST, (TEXT, [str(at) for at in range(300)])),
    fact("llama.vocab_size", U32, 128256),
]
WEIGHTS = [
    tensor("token_embd.weight", Q4_K, 4096, 128256),
    tensor("output.weight", Q6_K, 4096, 128256),
    tensor("blk.0.attn_norm.weight", PLAIN, 4096),
]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    path = tmp_path / "llama-3-8b.gguf"
    path.write_bytes(gguf(LLAMA, WEIGHTS) + b"weights that are not read")
    return path


def test_a_header_says_sizes_and_bytes_by_format(llama: Path) -> None:
    header = read_header(llama)
    assert header.scheme == "q4_k_m"
    assert not header.tied
    numbers = 4096 * 128256
    assert header.stored.bytes_by_format == {
        "q4_k": numbers // 256 * 144, "q6_k": numbers // 256 * 210, "f32": 4 * 4096,
    }  # fmt: skip
    assert header.stored.numbers == 2 * numbers + 4096
    assert header.facts["tokenizer.ggml.tokens"] == 300


def test_its_model_is_the_published_one(llama: Path) -> None:
    assert load_shape(llama).same_model(load_shape("llama3-8b"))


def test_a_vocabulary_is_counted_where_no_fact_says_it(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(LLAMA[:-1], WEIGHTS[:1]))
    assert load_shape(path).vocab == 300
    assert load_shape(path).tied


def test_experts_make_another_architecture(tmp_path: Path) -> None:
    path = tmp_path / "moe.gguf"
    experts = [
        fact("llama.expert_count", U32, 8),
        fact("llama.expert_used_count", U32, 2),
        fact("llama.vocab_size", U32, 32000),
    ]
    path.write_bytes(gguf([*LLAMA[:-1], *experts], WEIGHTS))
    assert load_shape(path).same_model(load_shape("mixtral-8x7b").replace(vocab=32000))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not begin"),
        (b"PK\x03\x04", "does not begin"),
        (b"GGUF" + struct.pack("<I", 1), "version is 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "claims"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**40), "claims"),
        (gguf(LLAMA, WEIGHTS)[:200], "ends within"),
        (gguf([text("a") + struct.pack("<I", 99)], []), "type 99"),
        (gguf([text("a") + struct.pack("<IIQ", LIST, U64, 2**50)], []), "list"),
        (gguf([struct.pack("<Q", 1) + b"\xff" + struct.pack("<II", U32, 1)], []), "text of it"),
        (gguf([], [text("a") + struct.pack("<I", 2**31)]), "sizes"),
    ],
)
def test_what_is_no_header_is_refused_in_a_sentence(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_header(path)


def test_no_change_of_a_byte_is_worse_than_a_sentence(llama: Path) -> None:
    whole = llama.read_bytes()[:1500]
    chance = random.Random(0)
    for _ in range(500):
        cut = bytearray(whole[: chance.randrange(len(whole))])
        for _ in range(3):
            if cut:
                cut[chance.randrange(len(cut))] = chance.randrange(256)
        llama.write_bytes(bytes(cut))
        try:
            load_shape(llama)
        except InputError:
            continue


def test_what_is_not_there_or_not_known_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found none"):
        read_header(tmp_path / "none.gguf")
    path = tmp_path / "odd.gguf"
    path.write_bytes(gguf([fact("general.architecture", TEXT, "rwkv7")], []))
    with pytest.raises(InputError, match="rwkv7; give the model's config"):
        config_of(read_header(path))
    unlike = fact("llama.attention.head_count_kv", LIST, (U32, [8, 4]))
    path.write_bytes(gguf([*LLAMA, unlike], WEIGHTS))
    with pytest.raises(InputError, match="several"):
        load_shape(path)
