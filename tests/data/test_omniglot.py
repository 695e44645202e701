"""Omniglot from every source gives the same tensors, split as documented."""

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from metastep.data.errors import DataError, Progress, silent
from metastep.data.pictures import Pictures
from metastep.data.registry import load
from metastep.data.sets import omniglot
from metastep.data.sets.omniglot import Drawings, Omniglot, shrink
from tests.data.helpers import encoded, write_zip

CHARACTERS = {
    "images_background": [("Latin", "character02"), ("Latin", "character01"), ("Greek", "character01")],
    "images_evaluation": [("Futurama", "character10"), ("Futurama", "character09"), ("ULOG", "character01")],
}


def load_omniglot(root: Path, split: str = "trainval", progress: Progress = silent) -> Pictures:
    return load("omniglot", root, progress=progress).classes(split)


def read_drawings(root: Path) -> Drawings:
    return omniglot.read_drawings(Omniglot.find(root), root)


def ink_of(index: int, drawer: int) -> NDArray[np.bool_]:
    return np.random.default_rng([index, drawer]).random((105, 105)) < 0.2


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six characters of 20 drawings, as the official archives hold them."""
    root = tmp_path_factory.mktemp("official") / "omniglot-py"
    root.mkdir()
    index = 0
    for part, names in CHARACTERS.items():
        members = {}
        for alphabet, character in names:
            for drawer in range(1, 21):
                png = encoded(Image.fromarray(~ink_of(index, drawer)))
                members[f"{part}/{alphabet}/{character}/{index + 1:04d}_{drawer:02d}.png"] = png
            index += 1
        write_zip(root / f"{part}.zip", members)
    return root.parent


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as one file."""
    root = tmp_path_factory.mktemp("pack")
    names = [name for part in CHARACTERS.values() for name in part]
    ink = [[np.packbits(ink_of(index, drawer)) for drawer in range(1, 21)] for index in range(len(names))]
    alphabets, characters = zip(*names, strict=True)
    np.savez(root / "omniglot.npz", ink105_packed=np.array(ink), alphabet=alphabets, character=characters)
    return root


@pytest.fixture
def tiny_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(omniglot, "SPLIT_SIZES", (3, 1, 2))


@pytest.mark.usefixtures("tiny_split")
def test_archives_folders_and_pack_agree(official: Path, pack: Path, tmp_path: Path) -> None:
    unpack(official, tmp_path / "omniglot")
    expected = load_omniglot(pack, "trainval")
    assert expected.rows()[0].shape == (4, 20, 1, 28, 28)
    assert expected.images.is_contiguous()
    for root in (official, tmp_path, official):  # the second time from the cache
        found = load_omniglot(root, "trainval")
        assert torch.equal(found.images, expected.images)
        assert found[2:] == expected[2:]


@pytest.mark.usefixtures("tiny_split")
def test_splits_are_disjoint_and_complete(pack: Path) -> None:
    train, val, trainval, test = (load_omniglot(pack, name).names for name in ("train", "val", "trainval", "test"))
    assert train + val == trainval
    assert sorted(trainval + test) == sorted(f"{a}/{c}" for part in CHARACTERS.values() for a, c in part)


@pytest.mark.usefixtures("tiny_split")
def test_groups_are_alphabets(pack: Path) -> None:
    found = load_omniglot(pack, "test")
    assert [name.split("/")[0] for name in found.names] == list(found.groups)


def test_order_does_not_depend_on_the_source(pack: Path) -> None:
    drawings = read_drawings(pack)
    names = list(zip(drawings.alphabets, drawings.characters, strict=True))
    assert names == sorted(names)
    assert np.array_equal(drawings.bits[0, 4], np.packbits(ink_of(4, 5)))  # Futurama 09, fifth drawer


@pytest.mark.parametrize("size", [14, 20, 28, 30, 35, 84, 105])
def test_nearest_is_what_pillow_does_to_a_one_bit_picture(size: int) -> None:
    picture = Image.fromarray(~ink_of(0, 1))
    expected = np.asarray(picture.resize((size, size), Image.Resampling.NEAREST)).astype(np.uint8) * 255
    bits = np.packbits(ink_of(0, 1))[None]
    found = shrink(bits, size)[0]
    assert found.dtype == np.uint8
    assert np.array_equal(found, 255 - expected)


@pytest.mark.usefixtures("tiny_split")
def test_omniglot_serves_transfer_too(pack: Path) -> None:
    parts = load("omniglot", pack, size=14).labelled()
    assert parts.counts == (6 * 12, 6 * 4, 6 * 4)
    assert parts.train.images.shape[1:] == (1, 14, 14)
    assert parts.validation == "20% of each class, drawn with seed 0"
    whole = torch.cat([part.images for part in parts[:3]])
    assert len(whole.unique(dim=0)) == 120


@pytest.mark.usefixtures("tiny_split")
def test_a_huge_size_is_refused(pack: Path) -> None:
    with pytest.raises(DataError, match="GiB of memory"):
        load("omniglot", pack, size=10**9).classes("train")


@pytest.mark.usefixtures("tiny_split")
def test_progress_counts_drawings_and_a_pack_has_nothing_to_report(official: Path, pack: Path) -> None:
    calls: list[tuple[int, int]] = []
    for root in (official, pack, official):  # the last time from the cache
        load_omniglot(root, "test", progress=lambda *call: calls.append(call))
    assert calls == [(100, 120), (120, 120)]


def test_wrong_number_of_characters_is_refused(pack: Path) -> None:
    with pytest.raises(DataError, match="holds 6 Omniglot characters instead of 1,623"):
        load_omniglot(pack)


def test_missing_data_says_what_to_get_and_how_to_point_to_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not hold Omniglot.*--data or METASTEP_DATA.*images_background\.zip"):
        load_omniglot(tmp_path)


def test_half_of_the_official_data_is_not_enough(official: Path, tmp_path: Path) -> None:
    shutil.copy(official / "omniglot-py" / "images_background.zip", tmp_path)
    with pytest.raises(DataError, match="only a part of it"):
        load_omniglot(tmp_path)


def unpack(official: Path, folder: Path) -> Path:
    for archive in (official / "omniglot-py").iterdir():
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    return folder


def test_missing_drawing_is_named(official: Path, tmp_path: Path, own_cache: Path) -> None:
    drawing = "images_background/Greek/character01/0003_07.png"
    (unpack(official, tmp_path) / drawing).unlink()
    with pytest.raises(DataError, match="Greek/character01 has 19 drawings instead of 20"):
        read_drawings(tmp_path)
    assert list(own_cache.iterdir()) == []


def test_damaged_drawing_is_named(official: Path, tmp_path: Path, own_cache: Path) -> None:
    drawing = unpack(official, tmp_path) / "images_background/Greek/character01/0003_07.png"
    drawing.write_bytes(drawing.read_bytes()[:500])
    with pytest.raises(DataError, match=r"0003_07\.png: is damaged"):
        read_drawings(tmp_path)
    Image.new("1", (50, 50)).save(drawing)
    with pytest.raises(DataError, match=r"0003_07\.png: is 50x50 instead of 105x105"):
        read_drawings(tmp_path)
    assert list(own_cache.iterdir()) == []


def test_changed_drawings_are_read_again(official: Path, tmp_path: Path) -> None:
    drawing = unpack(official, tmp_path) / "images_background/Greek/character01/0003_07.png"
    before = read_drawings(tmp_path).bits.copy()
    Image.new("1", (105, 105), 0).save(drawing)
    assert not np.array_equal(read_drawings(tmp_path).bits, before)


@pytest.mark.parametrize("keep", [0, 1000])
def test_damaged_pack_is_refused(pack: Path, tmp_path: Path, keep: int) -> None:
    (tmp_path / "omniglot.npz").write_bytes((pack / "omniglot.npz").read_bytes()[:keep])
    with pytest.raises(DataError, match=r"omniglot\.npz: is no \.npz pack, or it is cut short"):
        load_omniglot(tmp_path)


def test_foreign_packs_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "omniglot.npz", other=np.zeros(3))
    with pytest.raises(DataError, match="another kind of pack"):
        load_omniglot(tmp_path)
    np.savez(tmp_path / "omniglot.npz", ink105_packed=np.zeros((2, 3)), alphabet=["a"], character=["b"])
    with pytest.raises(DataError, match="drawings of the shape"):
        load_omniglot(tmp_path)


def test_a_bare_array_is_no_pack(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "omniglot.npz")
    with pytest.raises(DataError, match=r"is no \.npz pack"):
        load_omniglot(tmp_path)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / "omniglot.npz", ink105_packed=objects, alphabet=objects, character=objects)
    with pytest.raises(DataError, match=r"is no \.npz pack"):
        load_omniglot(tmp_path)


def test_real_omniglot(real_data: Path) -> None:
    drawings = read_drawings(real_data)
    assert drawings.bits.shape == (1623, 20, 1379)
    assert len(set(drawings.alphabets)) == 50
    train, val, test = (load_omniglot(real_data, name) for name in ("train", "val", "test"))
    assert [len(part.names) for part in (train, val, test)] == [1100, 100, 423]
    assert len({*train.names, *val.names, *test.names}) == 1623
    assert test.rows()[0].shape == (423, 20, 1, 28, 28)
    assert set(test.images.flatten().tolist()) == {0, 255}
    assert 0.03 < (test.images > 0).float().mean() < 0.2  # ink is the smaller part
