"""Traces are found in files, archives and folders by what the files hold; what cannot be opened is
said in one sentence.
"""

import gzip
import io
import tarfile
import zipfile

import pytest

from hybridperf.io import InputError
from hybridperf.traces.readers.files import trace_files

TEXT = b'{"traceEvents": []}'


def tar_of(members, mode="w"):
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return held.getvalue()


def zip_of(members):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return held.getvalue()


def opened(*paths):
    return [(file.source, file.text, file.among_others) for file in trace_files(paths)]


def refused(*paths):
    with pytest.raises(InputError) as error:
        opened(*paths)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 300
    return sentence


@pytest.mark.parametrize("packed", [TEXT, gzip.compress(TEXT)], ids=["plain", "gzip"])
def test_a_file_is_told_from_its_bytes_not_its_name(tmp_path, packed):
    path = tmp_path / "named_by_nobody.log"
    path.write_bytes(packed)
    assert opened(path) == [(str(path), TEXT, False)]


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.tar", tar_of),
        ("a.tar.gz", lambda members: tar_of(members, "w:gz")),
        ("a.zip", zip_of),
        ("a.gz", lambda members: gzip.compress(tar_of(members))),
    ],
)
def test_archives_give_their_traces_and_nothing_else(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(
        pack(
            {
                "d/r0.json": TEXT,
                "d/._r0.json": b"\x00",
                "README": b"no trace",
                "d/r1.JSON.gz": gzip.compress(TEXT),
            }
        )
    )
    assert opened(path) == [(f"{path}!d/r0.json", TEXT, True), (f"{path}!d/r1.JSON.gz", TEXT, True)]


def test_a_folder_is_searched_in_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "r1.json.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "a.json").write_bytes(TEXT)
    (tmp_path / "notes.txt").write_text("no trace")
    (tmp_path / "c.zip").write_bytes(zip_of({"r2.json": TEXT}))
    assert [source.removeprefix(str(tmp_path)) for source, _, _ in opened(tmp_path)] == [
        "/a.json",
        "/b/r1.json.gz",
        "/c.zip!r2.json",
    ]


def test_one_file_at_a_time_is_read(tmp_path):
    (tmp_path / "a.json").write_bytes(TEXT)
    files = trace_files([tmp_path / "a.json", tmp_path / "missing.json"])
    assert next(files).text == TEXT
    with pytest.raises(InputError, match="found nothing"):
        next(files)


def test_what_cannot_be_opened_is_said(tmp_path):
    assert "got none" in refused()
    assert "found nothing; check the path" in refused(tmp_path / "missing.json")
    assert "found no file ending in" in refused(tmp_path)
    for name, content in {
        "empty.json": b"",
        "blank.json": b" \n",
        "empty.json.gz": gzip.compress(b""),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert "is empty" in refused(tmp_path / name), name
    packed = gzip.compress(TEXT * 100)
    archive = tar_of({"a.json": TEXT * 1000})
    for name, content in {
        "cut.json.gz": packed[:-9],
        "flipped.json.gz": packed[:30] + bytes([packed[30] ^ 255]) + packed[31:],
        "cut.tar": archive[:5000],
        "cut.tar.gz": tar_of({"a.json": bytes(range(256)) * 99}, "w:gz")[:200],
        "cut.zip": zip_of({"a.json": TEXT})[:60],
        "locked.zip": zip_of({"a.json": TEXT}).replace(
            b"\x14\x00\x00\x00", b"\x14\x00\x01\x00"
        ),  # its flags say that it is encrypted
    }.items():
        (tmp_path / name).write_bytes(content)
        assert "cut off or damaged" in refused(tmp_path / name), name
    (tmp_path / "none.zip").write_bytes(zip_of({"README": b"x"}))
    assert "found no file ending in" in refused(tmp_path / "none.zip")
    onion = TEXT
    for _ in range(6):
        onion = gzip.compress(onion)
    (tmp_path / "onion.gz").write_bytes(onion)
    assert "layers" in refused(tmp_path / "onion.gz")


@pytest.mark.parametrize("layers", ["gzip", "gzip in gzip", "tar.gz", "zip", "zips in a tar"])
def test_archives_that_unpack_into_too_much_are_refused(tmp_path, monkeypatch, layers):
    monkeypatch.setattr("hybridperf.io.budget._ALWAYS_BYTES", 2**20)
    large, path = b" " * 2**23, tmp_path / "a.gz"
    packed = {
        "gzip": lambda: gzip.compress(large),
        "gzip in gzip": lambda: gzip.compress(gzip.compress(large)),
        "tar.gz": lambda: tar_of({"a.json": large}, "w:gz"),
        "zip": lambda: zip_of({f"{at}.json": large[: 2**19] for at in range(9)}),
        "zips in a tar": lambda: tar_of({"a.zip": zip_of({"a.json": large})}),
    }
    path.write_bytes(packed[layers]())
    assert "over the 1 MiB" in refused(path)
