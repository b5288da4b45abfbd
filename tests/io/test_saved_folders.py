"""Files that belong together change together: whatever ends a process while it saves, what is read
afterwards is all old or all new; and what was changed since it was written is refused.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hybridperf.io import (
    InputError,
    OldFile,
    hash_of,
    read_arrays,
    read_json,
    replacing,
    replacing_in,
    settled,
    write_arrays,
    write_json,
)

KIND = "test"


def save(folder: Path, value: float) -> None:
    """Three files that each hold the value."""
    arrays = {"x": np.full((3, 4), value), "y": np.arange(5)}
    with replacing_in(folder) as new:
        write_arrays(new / "a.npz", arrays)
        write_json(new / "a.json", KIND, 2, {"value": value, "hash": hash_of(arrays)})
        with replacing(new / "a.txt") as handle:
            handle.write(str(value))


def load(folder: Path) -> float:
    with settled(folder):
        document = read_json(folder / "a.json", KIND, 2, unchecked=1)
        arrays = read_arrays(folder / "a.npz", document["hash"])
        assert (arrays["x"] == document["value"]).all()
        assert (folder / "a.txt").read_text() == str(document["value"])
        return document["value"]


def killed_at(call: int, work: Callable[[], None]) -> bool:
    """Whether a process that works was killed, by itself, before its file system call of that
    number.
    """
    if (child := os.fork()) == 0:
        left = call

        def counted(name: str) -> None:
            real = getattr(os, name)

            def counting(*arguments, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            setattr(os, name, counting)

        for name in ("mkdir", "chmod", "fsync", "replace", "rename", "rmdir", "open"):
            counted(name)
        with contextlib.suppress(BaseException):
            work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes as POSIX does")
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    found, call = [], 0
    while True:
        folder = tmp_path / str(call)
        save(folder, 1.0)
        ended = not killed_at(call, lambda folder=folder: save(folder, 2.0))
        found.append(load(folder))
        save(folder, 3.0)
        assert load(folder) == 3.0
        assert sorted(path.name for path in folder.iterdir()) == ["a.json", "a.npz", "a.txt"]
        if ended:
            break
        call += 1
    assert call > 20
    assert set(found) == {1.0, 2.0}
    assert found == sorted(found)  # one moment divides them


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    with replacing_in(tmp_path) as new:
        write_json(new / "a.json", KIND, 1, {})
        for path in (tmp_path / "b.json", tmp_path / "c.json"):
            write_json(path, KIND, 1, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "c.json"]


def _save_again_and_again(folder: Path) -> None:
    for value in range(10):
        save(folder, float(value))


def test_writers_and_readers_do_not_disturb_one_another(tmp_path: Path) -> None:
    save(tmp_path, 0.0)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_save_again_and_again, args=(tmp_path,)) for _ in range(2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        load(tmp_path)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert load(tmp_path) == 9.0


def test_a_full_disk_keeps_the_old(tmp_path: Path) -> None:
    save(tmp_path, 1.0)
    code = f"""
import resource, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy, test_saved_folders
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
try:
    test_saved_folders.save(Path({str(tmp_path)!r}), 2.0)
except ValueError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(f"cannot write {tmp_path / 'a.npz'}: "), done.stderr
    assert load(tmp_path) == 1.0
    assert len(list(tmp_path.iterdir())) == 3


def test_every_changed_number_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1.25)
    path = tmp_path / "a.json"
    whole = path.read_text()
    path.write_text(whole.replace("1.25", "1.26"))
    with pytest.raises(InputError, match="was changed since it was written"):
        load(tmp_path)
    without = {key: value for key, value in json.loads(whole).items() if key != "sha256"}
    path.write_text(json.dumps(without))
    with pytest.raises(InputError, match="has lost its checksum"):
        load(tmp_path)
    path.write_text(json.dumps(json.loads(whole), indent=7))  # the same content
    assert load(tmp_path) == 1.25


def test_a_file_of_the_version_before_checksums_loads_with_a_remark(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": f"hybridperf/{KIND}", "schema_version": 1, "x": 1}))
    with pytest.warns(OldFile, match="saving it adds one"):
        assert read_json(path, KIND, 2, unchecked=1)["x"] == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.view(np.int64),
        lambda x: x.reshape(4, 3),
        lambda x: x.astype(np.float32),
        lambda x: np.asfortranarray(x) + 1e-15,
    ],
)
def test_arrays_of_other_types_shapes_and_numbers_are_refused(tmp_path: Path, change) -> None:
    arrays = {"x": np.arange(12.0).reshape(3, 4)}
    path = tmp_path / "a.npz"
    write_arrays(path, arrays)
    np.testing.assert_array_equal(read_arrays(path, hash_of(arrays))["x"], arrays["x"])
    write_arrays(path, {"x": change(arrays["x"])})
    with pytest.raises(ValueError, match="belongs to another model"):
        read_arrays(path, hash_of(arrays))


@pytest.mark.parametrize("shape", ["(10000000000, 4)", "(3, -4)", "(3, 4, 0)", "(99999999999999,)"])
def test_sizes_that_a_file_does_not_hold_are_refused_before_anything_is_allocated(
    tmp_path: Path, shape: str
) -> None:
    path = tmp_path / "a.npz"
    write_arrays(path, {"x": np.zeros((3, 4))})
    whole = path.read_bytes()
    at = whole.index(b"(3, 4)")
    path.write_bytes(whole[:at] + shape.encode() + whole[at + len(shape) :])
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(path, "")


def test_compressed_arrays_are_none_of_ours(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10_000_000))
    with pytest.raises(ValueError, match="cannot be read"):
        read_arrays(tmp_path / "a.npz", "")
