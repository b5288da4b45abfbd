"""Headers of safetensors files, written here by the format's own layout."""

import json
import random
from pathlib import Path

import pytest

import hybridperf as hp
from hybridperf.io import InputError
from hybridperf.workloads.transformer.safetensors import read_stored, stored_in


def written(path: Path, tensors: dict[str, tuple[str, list[int], int]], cut: int = 0) -> Path:
    """A file of tensors (dtype, shape, bytes of an element), `cut` bytes short."""
    header: dict = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape, size) in tensors.items():
        count = size
        for one in shape:
            count *= one
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + count]}
        end += count
    text = json.dumps(header).encode()
    path.write_bytes((len(text).to_bytes(8, "little") + text + bytes(end))[: -cut or None])
    return path


def test_numbers_and_bytes_of_all_files(tmp_path: Path) -> None:
    written(tmp_path / "a.safetensors", {"x": ("BF16", [4, 8], 2), "y": ("F32", [3], 4)})
    written(tmp_path / "b.safetensors", {"z": ("BF16", [5], 2), "none": ("BF16", [0, 7], 2)})
    found = stored_in(tmp_path)
    assert found is not None
    assert (found.files, found.numbers) == (2, 40)
    assert found.bytes_by_format == {"bf16": 74, "f32": 12}
    assert found.weights_bytes == 86
    assert stored_in(tmp_path / "empty") is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "header would be"),
        (b"\xff" * 16, "header would be"),
        ((5).to_bytes(8, "little") + b"[1,2]", "damaged"),
        ((6).to_bytes(8, "little") + b'{"a":1', "damaged"),
        ((9).to_bytes(8, "little") + b'{"a": {}}', "data_offsets"),
    ],
)
def test_what_is_none_is_said(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_stored([path])


def test_a_download_that_broke_off_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {"x": ("BF16", [64], 2)}, cut=1)
    with pytest.raises(InputError, match="bytes are there"):
        read_stored([path])
    with pytest.raises(InputError, match="found none"):
        read_stored([tmp_path / "none.safetensors"])


def test_no_change_of_bytes_is_worse_than_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path / "a.safetensors", {"x": ("BF16", [64], 2), "y": ("I8", [9], 1)})
    whole, chance = path.read_bytes(), random.Random(0)
    for _ in range(1000):
        cut = bytearray(whole[: chance.randrange(1, len(whole) + 1)])
        for _ in range(chance.randrange(4)):
            cut[chance.randrange(len(cut))] = chance.randrange(256)
        path.write_bytes(bytes(cut))
        try:
            read_stored([path])
        except InputError:
            continue


def test_a_checkpoints_folder_and_file_say_what_is_here(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    sizes = {
        "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
        "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **sizes}))
    file = written(folder / "model.safetensors", {"all": ("BF16", [209472], 2)})
    by_folder, by_file = (str(hp.fit_check(one, "l4")) for one in (folder, file))
    assert by_folder.startswith("tiny: ")
    assert "weights here: 418.9 kB bf16 in 1 file; 209,472 numbers" in by_folder
    assert by_file.splitlines()[0] == by_folder.splitlines()[0]
