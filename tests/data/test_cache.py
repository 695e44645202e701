"""The cache holds whole entries or none, mends what is damaged, and is never required."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from metastep.data.cache import CHECKSUMS, Arrays, cache_root, cached


def build() -> Arrays:
    return {"numbers": np.arange(6), "names": np.array(["a", "bc"]), "none": np.array([], np.int64)}


def must_not_build() -> Arrays:
    raise AssertionError("the cache was not used")


def test_second_call_does_not_build() -> None:
    cached("x", "key", build)
    arrays = cached("x", "key", must_not_build)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "numbers": list(range(6)),
        "names": ["a", "bc"],
        "none": [],
    }
    assert torch.from_numpy(arrays["numbers"]).sum() == 15  # writable, or torch would warn


def test_writing_to_what_came_from_the_cache_leaves_it_alone() -> None:
    cached("x", "key", build)["numbers"][:] = 0
    assert cached("x", "key", must_not_build)["numbers"].sum() == 15


def test_another_key_builds() -> None:
    cached("x", "key", build)
    assert cached("x", "other", lambda: {"n": np.ones(1)})["n"] == 1


def cut_short(entry: Path) -> None:
    file = entry / "numbers.npy"
    file.write_bytes(file.read_bytes()[:-20])


def emptied(entry: Path) -> None:
    (entry / "numbers.npy").write_bytes(b"")


def overwritten(entry: Path) -> None:
    (entry / "numbers.npy").write_bytes(b"not an array")


def one_byte_changed(entry: Path) -> None:
    content = bytearray((entry / "numbers.npy").read_bytes())
    content[-1] ^= 0xFF
    (entry / "numbers.npy").write_bytes(content)


def other_array(entry: Path) -> None:
    np.save(entry / "numbers.npy", np.zeros((2, 3)))


def array_missing(entry: Path) -> None:
    (entry / "numbers.npy").unlink()


def checksums_missing(entry: Path) -> None:
    (entry / CHECKSUMS).unlink()


def checksums_cut_short(entry: Path) -> None:
    (entry / CHECKSUMS).write_text('{"numbers": 12')


def checksums_of_another_kind(entry: Path) -> None:
    (entry / CHECKSUMS).write_text("[1, 2]")


DAMAGES = [
    cut_short,
    emptied,
    overwritten,
    one_byte_changed,
    other_array,
    array_missing,
    checksums_missing,
    checksums_cut_short,
    checksums_of_another_kind,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_built_again(
    own_cache: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None]
) -> None:
    cached("x", "key", build)
    (entry,) = own_cache.iterdir()
    damage(entry)
    assert cached("x", "key", build)["numbers"].sum() == 15
    assert "is damaged" in caplog.text
    caplog.clear()
    assert cached("x", "key", must_not_build)["numbers"].sum() == 15
    assert not caplog.records


def test_an_entry_that_cannot_be_mended_costs_the_cache_and_not_the_run(
    own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cached("x", "key", build)
    (entry,) = own_cache.iterdir()
    for file in entry.iterdir():
        file.unlink()
    entry.rmdir()
    entry.write_text("a file where a folder should be")
    assert cached("x", "key", build)["numbers"].sum() == 15
    assert "cannot be written" in caplog.text
    assert list(own_cache.iterdir()) == [entry]


def test_failure_while_building_leaves_nothing(own_cache: Path) -> None:
    with pytest.raises(AssertionError):
        cached("x", "key", must_not_build)
    assert list(own_cache.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_is_broken_off_leaves_nothing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def broken(file: Path, *args: object, **options: object) -> None:
        file.write_bytes(b"half")
        raise error

    monkeypatch.setattr(np, "save", broken)
    if isinstance(error, OSError):
        assert cached("x", "key", build)["numbers"].sum() == 15
        assert "No space left" in caplog.text
        assert "METASTEP_CACHE" in caplog.text
    else:
        with pytest.raises(KeyboardInterrupt):
            cached("x", "key", build)
    assert list(own_cache.iterdir()) == []


def test_unusable_cache_folder_costs_the_cache_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("METASTEP_CACHE", str(tmp_path / "file" / "cache"))
    assert cached("x", "key", build)["numbers"].sum() == 15
    assert "cannot be written" in caplog.text


def test_another_process_that_was_faster_wins(own_cache: Path) -> None:
    def slow() -> Arrays:
        cached("x", "key", build)
        return {"numbers": np.zeros(6)}

    assert cached("x", "key", slow)["numbers"].sum() == 15
    assert len(list(own_cache.iterdir())) == 1


def test_what_killed_processes_left_is_removed_after_a_day(own_cache: Path) -> None:
    old, young = own_cache / ".writing-old", own_cache / ".writing-young"
    old.mkdir()
    young.mkdir()
    os.utime(old, (time.time() - 200_000,) * 2)
    cached("x", "key", build)
    assert young.exists()
    assert not old.exists()


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"METASTEP_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"METASTEP_CACHE": "~/a"}, "/home/someone/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/metastep"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/metastep"),
        ({}, "/home/someone/.cache/metastep"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("METASTEP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/someone", **variables}.items():
        monkeypatch.setenv(name, value)
    assert cache_root() == Path(folder)
