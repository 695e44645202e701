"""miniImageNet from every source gives the same tensors, decoded once."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metastep.data import errors
from metastep.data.errors import DataError
from metastep.data.pictures import Pictures
from metastep.data.registry import load
from metastep.data.sets import mini_imagenet
from tests.data.helpers import encoded, noise, write_zip

WNIDS = [f"n{1000 + i:08d}" for i in range(3)]
NUMBERS = [5, 17]


@pytest.fixture(autouse=True)
def three_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_imagenet, "CLASSES", {"train": 3, "val": 3, "test": 3})


def load_mini_imagenet(root: Path, split: str, progress: errors.Progress = errors.silent) -> Pictures:
    return load("mini_imagenet", root, progress=progress).classes(split)


def rows_of(root: Path, split: str = "val") -> torch.Tensor:
    return load_mini_imagenet(root, split).rows()[0]


def picture(label: int, number: int) -> Image.Image:
    return Image.fromarray(noise(100 * label + number))


def named_pictures() -> dict[str, bytes]:
    """csv file name -> PNG bytes, so that nothing is lost in the comparison."""
    return {
        f"{wnid}{number:08d}.jpg": encoded(picture(label, number))
        for label, wnid in enumerate(WNIDS)
        for number in NUMBERS
    }


def as_folders(split: str = "val") -> dict[str, bytes]:
    return {f"{split}/{name[:9]}/{name}": data for name, data in named_pictures().items()}


def as_csv(split: str = "val") -> dict[str, bytes]:
    table = "filename,label\n" + "".join(f"{name},{name[:9]}\n" for name in reversed(named_pictures()))
    images = {f"images/{name}": data for name, data in named_pictures().items()}
    return {f"{split}.csv": table.encode()} | images | {"images/n0999999900000001.jpg": b"of another split"}


def write(root: Path, members: dict[str, bytes]) -> Path:
    for name, data in members.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_pack(path: Path, labels: list[int]) -> None:
    """A sheet of two pictures in one row per class; the sheets are lossless here."""
    sheets = [encoded(Image.fromarray(np.concatenate([noise(100 * i + n) for n in NUMBERS], axis=1))) for i in labels]
    np.savez(
        path,
        blob=np.frombuffer(b"".join(sheets), np.uint8),
        offset=np.cumsum([0, *map(len, sheets)]),
        count=[len(NUMBERS)] * len(labels),
        hw=[84, 84],
        label=np.repeat(labels, len(NUMBERS)),
        wnid=WNIDS,
        image_no=NUMBERS * len(labels),
    )


def expected() -> torch.Tensor:
    rows = [[torch.from_numpy(noise(100 * i + n)).permute(2, 0, 1) for n in NUMBERS] for i in range(3)]
    return torch.stack([torch.stack(row) for row in rows])


def test_every_source_agrees(tmp_path: Path) -> None:
    write(tmp_path / "a" / "mini_imagenet", as_folders())
    write(tmp_path / "b" / "miniImagenet", as_csv())
    for name in ("c", "d", "e"):
        (tmp_path / name).mkdir()
    write_zip(tmp_path / "c" / "mini-imagenet.zip", {f"top/{name}": data for name, data in as_csv().items()})
    write_pack(tmp_path / "d" / "miniimagenet84_val.npz", [0, 1, 2])
    write_zip(tmp_path / "e" / "mini_imagenet.zip", as_folders())
    write(tmp_path / "f", as_folders())
    for name in "abcdef":
        found = load_mini_imagenet(tmp_path / name, "val")
        assert torch.equal(found.rows()[0], expected()), name
        assert found.names == tuple(WNIDS)
        assert found.sizes == [2, 2, 2]


def test_train_packs_are_joined_by_label(tmp_path: Path) -> None:
    for part, labels in (("a", [0]), ("b", [2]), ("c", [1])):
        write_pack(tmp_path / f"miniimagenet84_train_{part}.npz", labels)
    assert torch.equal(rows_of(tmp_path, "train"), expected())


def test_second_call_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, as_folders())
    first = load_mini_imagenet(tmp_path, "val")
    monkeypatch.setattr(mini_imagenet, "_decode", None)
    assert torch.equal(load_mini_imagenet(tmp_path, "val").images, first.images)


def test_changed_pictures_are_decoded_again(tmp_path: Path) -> None:
    write(tmp_path, as_folders())
    load_mini_imagenet(tmp_path, "val")
    picture(9, 9).save(tmp_path / f"val/{WNIDS[0]}/{WNIDS[0]}00000005.jpg", "PNG")
    assert not torch.equal(rows_of(tmp_path), expected())


def test_larger_pictures_are_shrunk(tmp_path: Path) -> None:
    members = as_folders() | {f"val/{WNIDS[0]}/{WNIDS[0]}00000005.jpg": encoded(Image.new("L", (500, 375), 99))}
    found = load_mini_imagenet(write(tmp_path, members), "val")
    assert bool((found.images[0] == 99).all())


def test_classes_may_lack_a_few_pictures(tmp_path: Path) -> None:
    members = as_folders()
    del members[f"val/{WNIDS[1]}/{WNIDS[1]}00000017.jpg"]
    found = load_mini_imagenet(write(tmp_path, members), "val")
    rows, counts = found.rows()
    assert counts == (2, 1, 2)
    assert torch.equal(rows[1, 0], rows[1, 1])


def test_progress_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "REPORT_EVERY", 4)
    calls: list[tuple[int, int]] = []
    load_mini_imagenet(write(tmp_path, as_folders()), "val", progress=lambda *call: calls.append(call))
    assert calls == [(4, 1800), (6, 1800)]


def check_refused(root: Path, message: str, cache: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_mini_imagenet(root, "val")
    assert list(cache.iterdir()) == []


def test_what_is_wrong_is_named_and_nothing_is_cached(tmp_path: Path, own_cache: Path) -> None:
    check_refused(
        tmp_path, r"does not hold the val split of miniImageNet .*val\.csv.*--data or METASTEP_DATA", own_cache
    )
    name = f"{WNIDS[1]}00000017.jpg"
    write(tmp_path, as_folders())
    (tmp_path / "val" / WNIDS[1] / name).write_bytes(b"damaged")
    check_refused(tmp_path, f"{name}: is not an image", own_cache)
    shutil.rmtree(tmp_path / "val" / WNIDS[1])
    check_refused(tmp_path, "has 2 classes in its val split instead of 3", own_cache)


def test_csv_that_lists_absent_pictures_is_refused(tmp_path: Path, own_cache: Path) -> None:
    write(tmp_path, as_csv())
    (tmp_path / "images" / f"{WNIDS[1]}00000017.jpg").unlink()
    check_refused(tmp_path, rf"lacks 1 of the pictures that val\.csv lists, {WNIDS[1]}00000017\.jpg", own_cache)


@pytest.mark.parametrize("table", [b"", b"a,b\n1,2\n", b"filename,label\nx.jpg\n", b"\xff\xfe"])
def test_odd_csv_is_refused(tmp_path: Path, own_cache: Path, table: bytes) -> None:
    check_refused(write(tmp_path, as_csv() | {"val.csv": table}), r"val\.csv: ", own_cache)


def test_odd_packs_are_refused(tmp_path: Path, own_cache: Path) -> None:
    path = tmp_path / "miniimagenet84_val.npz"
    write_pack(path, [0, 1, 2])
    with np.load(path) as pack:
        good = dict(pack)
    np.savez(path, **good | {"hw": np.array([32, 32])})
    check_refused(tmp_path, "does not hold pictures of 84x84|has other labels than pictures", own_cache)
    np.savez(path, **good | {"label": good["label"] + 1})
    check_refused(tmp_path, "does not hold pictures of 84x84|has other labels than pictures", own_cache)
    np.savez(path, **good | {"blob": good["blob"][:5000]})
    check_refused(tmp_path, "damaged or cut short", own_cache)


def test_trainval_is_both(tmp_path: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path, as_folders(split))
    both = load_mini_imagenet(tmp_path, "trainval")
    assert both.names == (*WNIDS, *WNIDS)
    assert torch.equal(both.rows()[0], torch.cat([expected(), expected()]))
    assert load("mini_imagenet", tmp_path, size=10).classes("val").images.shape == (6, 3, 10, 10)


def test_real_mini_imagenet(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mini_imagenet, "CLASSES", {"train": 64, "val": 16, "test": 20})
    found = load_mini_imagenet(real_data, "val")
    assert found.images.shape == (9600, 3, 84, 84)
    assert list(found.names) == sorted(set(found.names))
    assert found.sizes == [600] * 16
