"""Checkpoints: what goes in comes out, bit for bit; what cannot be read is refused; nothing is ever half-written."""

import errno
import json
import math
import os
import pickle
import resource
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as raw_tensors, save as raw_bytes, save_file

from metastep.errors import MetastepError
from metastep.train import io as files
from metastep.train.checkpoints import VERSION, _digest, load, save
from metastep.train.io import CheckpointError

KIND = "test"
SMALL = {"params": {"weight": torch.arange(6.0).reshape(2, 3)}, "step": 3}


def same(a: Any, b: Any) -> bool:
    """Equal in structure, order, types and bits: NaN equals the same NaN."""
    if isinstance(a, torch.Tensor):
        alike = a.dtype == b.dtype and a.shape == b.shape
        return alike and raw_bytes({"x": a.contiguous()}) == raw_bytes({"x": b.contiguous()})
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and repr(a) == repr(b)


def trees() -> dict[str, Any]:
    shared = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    types = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64)
    return {
        "plain": SMALL,
        "nothing": {},
        "hollow": {"state": {}, "deep": {"er": {}}},
        "not sorted": {"b": torch.ones(1), "a": torch.zeros(1), "count": 2, "0": torch.ones(())},
        "numbers": {"whole": 2**70, "part": 0.1, "nan": math.nan, "infinite": -math.inf},
        "values": {"text": "é\n", "nothing": None, "yes": True, "list": [1, [2]]},
        "types": {str(kind): torch.tensor([0, 1, 1]).to(kind) for kind in types},
        "no numbers": {"empty": torch.zeros(0, 3), "scalar": torch.tensor(3.5)},
        "odd bits": {"x": torch.tensor([math.nan, -math.nan, -0.0, math.inf, 1e-45])},
        "names": {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}, "~1": torch.ones(2), "": torch.ones(3)},
        "views": {"whole": shared, "part": shared[1:3], "turned": shared.T, "wide": torch.ones(1).expand(5)},
    }


@pytest.mark.parametrize("name", trees())
def test_load_gives_back_what_was_saved(tmp_path: Path, name: str) -> None:
    tree = trees()[name]
    save(tmp_path / "x.safetensors", tree, KIND)
    assert same(load(tmp_path / "x.safetensors", KIND), tree)


def test_any_safetensors_reader_finds_the_tensors_under_their_paths(tmp_path: Path) -> None:
    save(tmp_path / "x", SMALL, KIND)
    assert list(raw_tensors((tmp_path / "x").read_bytes())) == ["params/weight"]


def test_parameters_that_require_gradients_are_saved_and_loaded_tensors_can_be_changed(tmp_path: Path) -> None:
    save(tmp_path / "x", {"w": torch.nn.Parameter(torch.ones(2))}, KIND)
    load(tmp_path / "x", KIND)["w"].add_(1)
    assert load(tmp_path / "x", KIND)["w"].tolist() == [1, 1]


def test_the_file_has_the_usual_permissions_and_nothing_lies_beside_it(tmp_path: Path) -> None:
    save(tmp_path / "x", SMALL, KIND)
    (tmp_path / "usual").touch()
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["usual", "x"]


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"a": {"b": object()}}, "a/b"),
        ({"a": [torch.ones(1)]}, "a is a list"),
        ({"a": {1: torch.ones(1)}}, "a has the key 1"),
        ({"$tensor": "a"}, "the key '\\$tensor'"),
        ({"__metadata__": torch.ones(1)}, "__metadata__"),
        ({"a": torch.ones(1, dtype=torch.complex128)}, "complex128"),
        ({"a": torch.ones(2, 2).to_sparse()}, "cannot be saved"),
    ],
)
def test_a_tree_that_cannot_be_kept_is_refused_before_the_file_is_touched(
    tmp_path: Path, tree: dict[str, Any], named: str
) -> None:
    save(tmp_path / "x", SMALL, KIND)
    with pytest.raises(CheckpointError, match=named):
        save(tmp_path / "x", tree, KIND)
    assert same(load(tmp_path / "x", KIND), SMALL)


def refused(path: Path, kind: str = KIND) -> str:
    """The message: one line that begins with the file and ends with a remedy."""
    with pytest.raises(CheckpointError) as caught:
        load(path, kind)
    message = str(caught.value)
    assert isinstance(caught.value, MetastepError)
    assert message.startswith(f"'{path}': ")
    assert "\n" not in message
    return message


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "x", SMALL, KIND)
    data = (tmp_path / "x").read_bytes()
    for length in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:length])
        assert "cut short" in refused(tmp_path / "cut")


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    save(tmp_path / "x", SMALL, KIND)
    data = (tmp_path / "x").read_bytes()
    for position in range(len(data)):
        (tmp_path / "changed").write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        refused(tmp_path / "changed")


class Trap:
    """A pickle that creates a file when it is opened."""

    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.sprung,)


@pytest.mark.parametrize("write", ["pickle 0", "pickle 2", "pickle 4", "pickle 5", "torch", "torch before 1.6"])
def test_a_pickle_is_refused_and_never_opened(tmp_path: Path, write: str) -> None:
    path, trap = tmp_path / "last.safetensors", Trap(tmp_path / "sprung")
    if write.startswith("torch"):
        torch.save(trap, path, _use_new_zipfile_serialization=write == "torch")
    else:
        path.write_bytes(pickle.dumps(trap, protocol=int(write[-1])))
    message = refused(path)
    assert "pickle" in message or write == "pickle 0"  # protocol 0 is text without a mark
    assert not (tmp_path / "sprung").exists()


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "foreign", {"format": "pt"})
    assert "not written by metastep" in refused(tmp_path / "foreign")
    for name, data in {
        "text": b"hello, this is text",
        "nothing": b"",
        "zeros": bytes(100),
        "deep": b"[" * 100_000,
    }.items():
        (tmp_path / name).write_bytes(data)
        assert "no safetensors file" in refused(tmp_path / name)
    header = b"[" * 100_000  # in the place of the header
    (tmp_path / "header").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "no safetensors file" in refused(tmp_path / "header")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "No such file" in refused(tmp_path / "missing")
    assert "not an ordinary file" in refused(tmp_path)
    assert "not an ordinary file" in refused(tmp_path / "pipe")


def test_a_future_version_and_another_kind_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x", SMALL, "learner")
    assert "holds a 'learner', not a 'test'" in refused(tmp_path / "x")
    monkeypatch.setattr("metastep.train.checkpoints.VERSION", VERSION + 1)
    save(tmp_path / "x", SMALL, KIND)
    monkeypatch.undo()
    assert f"format version {VERSION + 1}, and this metastep reads version {VERSION}" in refused(tmp_path / "x")


def forged(tree: Any) -> str:
    """A header whose checksum is right and whose tree is not."""
    content = {"version": VERSION, "kind": KIND, "tree": tree}
    return json.dumps(content | {"sha256": _digest({}, content)})


FORGED = [forged(tree) for tree in ({"a": {"$tensor": "gone"}}, {"a": {"$tensor": []}}, [], 3)]


@pytest.mark.parametrize("entry", [*FORGED, "{", "[]", "3", "[1]", '{"a":' * 90_000])
def test_a_forged_header_is_refused(tmp_path: Path, entry: str) -> None:
    (tmp_path / "x").write_bytes(raw_bytes({}, {"metastep": entry}))
    refused(tmp_path / "x")


def test_equal_trees_give_equal_files(tmp_path: Path) -> None:
    written = set()
    for _ in range(10):
        save(tmp_path / "x", trees()["names"] | trees()["types"], KIND)
        written.add((tmp_path / "x").read_bytes())
    assert len(written) == 1


class FullDisk:
    """A file that takes half of what it is given."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.file = open(*arguments, **options)  # noqa: SIM115

    def __enter__(self) -> "FullDisk":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def require_intact(folder: Path, reason: str, remedy: str, changed: dict[str, Any]) -> None:
    """A failing save says so, keeps what was there, leaves nothing."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(CheckpointError, match=f"{reason}.*; what was there before is untouched.*{remedy}"):
        save(folder / "last.safetensors", changed, KIND)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert same(load(folder / "last.safetensors", KIND), SMALL)


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_a_disk_that_is_full_at_any_moment_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    save(tmp_path / "last.safetensors", SMALL, KIND)
    if failing == "write":
        monkeypatch.setattr(files, "open", FullDisk, raising=False)
    else:
        monkeypatch.setattr(os, failing, fail)
    require_intact(tmp_path, "No space left", "Make room", SMALL | {"step": 4})


def test_ctrl_c_in_the_middle_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    save(tmp_path / "x", SMALL, KIND)
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(tmp_path / "x", SMALL | {"step": 4}, KIND)
    assert os.listdir(tmp_path) == ["x"]
    assert load(tmp_path / "x", KIND)["step"] == 3


def test_a_limit_on_file_sizes(tmp_path: Path) -> None:
    """The one refusal by the kernel, halfway through a file, that needs no special rights."""
    save(tmp_path / "last.safetensors", SMALL, KIND)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
        require_intact(tmp_path, "too large", "Make room", {"big": torch.ones(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_really_full(tiny_disk: Path) -> None:
    save(tiny_disk / "last.safetensors", SMALL, KIND)
    require_intact(tiny_disk, "No space left", "Make room", {"big": torch.ones(100_000)})


def test_a_read_only_folder(tmp_path: Path, make_read_only: Any) -> None:
    save(tmp_path / "last.safetensors", SMALL, KIND)
    make_read_only(tmp_path)
    require_intact(tmp_path, "cannot be written", "Choose a folder", SMALL)


def test_metadata_is_readable_json(tmp_path: Path) -> None:
    save(tmp_path / "x", SMALL, KIND)
    data = (tmp_path / "x").read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert json.loads(metadata["metastep"])["tree"] == {"params": {"weight": {"$tensor": "params/weight"}}, "step": 3}
