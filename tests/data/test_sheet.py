"""Contact sheets show the episodes that training sees, with the right names, and fit what they show."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metastep.data.episodes import Episodes
from metastep.data.errors import DataError
from metastep.data.pictures import Pictures
from metastep.errors import MetastepError
from metastep.report.sheet import LABEL, MARGIN, TILE, contact_sheet, panels, save_picture
from metastep.train import io
from metastep.train.io import RunError

EPISODES = Episodes(ways=3, shots=2, queries=4)


def numbered(classes: int = 9, per_class: int = 8, side: int = 28, channels: int = 1) -> Pictures:
    """Each picture is one shade, which says its class and its number."""
    shades = torch.arange(classes * per_class, dtype=torch.uint8).view(classes, per_class, 1, 1, 1)
    images = shades.expand(-1, -1, channels, side, side).contiguous()
    names = tuple(f"Script/letter_{i}" for i in range(classes))
    return Pictures.of_rows(images, names, ("Script",) * classes)


def test_a_panel_has_the_names_of_its_pictures() -> None:
    for panel in panels(numbered(), EPISODES, count=5, seed=3):
        assert panel.support.shape == (3, 2, 1, 28, 28)
        assert panel.query.shape == (3, 4, 1, 28, 28)
        pictures = torch.cat([panel.support, panel.query], dim=1)[..., 0, 0, 0]
        for (name, group), row in zip(panel.labels, pictures.tolist(), strict=True):
            assert {f"letter {shade // 8}" for shade in row} == {name}
            assert group == "Script"
            assert len(set(row)) == 6


def test_a_group_that_is_the_name_is_not_repeated() -> None:
    data = numbered()._replace(groups=numbered().names)
    assert {group for panel in panels(data, EPISODES, 2, 0) for _, group in panel.labels} == {""}


def test_filling_is_never_shown() -> None:
    whole = numbered()
    data = whole.at([i for i in range(9 * 8) if i % 8 < (6, 7, 8)[i // 8 % 3]])
    for panel in panels(data, EPISODES, count=20, seed=0):
        shades = torch.cat([panel.support, panel.query], dim=1)[..., 0, 0, 0].flatten().tolist()
        assert all(shade % 8 < data.sizes[shade // 8] for shade in shades)


def test_a_seed_is_a_sheet() -> None:
    first, again, other = (contact_sheet(numbered(), EPISODES, 2, seed).tobytes() for seed in (0, 0, 1))
    assert first == again != other


def test_pixels_are_shown_as_they_are() -> None:
    """A photo of the size of a tile is on the sheet byte by byte."""
    photos = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (1, 2, 3, TILE, TILE), dtype=np.uint8))
    sheet = np.asarray(contact_sheet(Pictures.of_rows(photos, ("a",), ("a",)), Episodes(1, 1, 1), count=1))
    wanted = {photo.permute(1, 2, 0).numpy().tobytes() for photo in photos[0]}
    top, left = (axis[0] for axis in np.nonzero((sheet == photos[0, 0, :, 0, 0].numpy()).all(-1)))
    found = {sheet[top : top + TILE, left : left + TILE].tobytes()}
    assert found <= wanted


def test_drawings_are_dark_on_white() -> None:
    data = Pictures.of_rows(torch.zeros(1, 2, 1, 28, 28, dtype=torch.uint8), ("a",), ("a",))
    blank = np.asarray(contact_sheet(data, Episodes(1, 1, 1), 1).convert("L"))
    inked = np.asarray(contact_sheet(data._replace(images=255 - data.images), Episodes(1, 1, 1), 1).convert("L"))
    changed = blank != inked
    assert changed.sum() == 2 * TILE**2
    assert (blank[changed] == 255).all()
    assert (inked[changed] < 60).all()


@pytest.mark.parametrize(("height", "width"), [(1, 1), (28, 28), (30, 50), (105, 105), (84, 300)])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_every_size_fit(height: int, width: int, channels: int) -> None:
    data = Pictures.of_rows(torch.zeros(2, 2, channels, height, width, dtype=torch.uint8), ("a", "b"), ("a", "b"))
    small = contact_sheet(data, Episodes(2, 1, 1), count=1)
    assert small.size == contact_sheet(numbered(2, 2), Episodes(2, 1, 1), count=1).size


def test_names_are_cut_to_their_column() -> None:
    plain = numbered(3)
    odd = plain._replace(names=("x" * 500, "many words " * 50, "\x1b[2J\udcff漢"), groups=("g" * 300,) * 3)
    sheets = [np.asarray(contact_sheet(data, EPISODES, 1)) for data in (plain, odd)]
    tiles = slice(2 * MARGIN + LABEL, None)  # where they begin, to the right of the names
    assert (sheets[0][:, tiles] == sheets[1][:, tiles]).all()
    assert (sheets[0] != sheets[1]).any()


def test_panels_stand_side_by_side_where_they_fit() -> None:
    one, four = (contact_sheet(numbered(), EPISODES, count) for count in (1, 4))
    assert four.width > 1.8 * one.width
    wide = Episodes(ways=2, shots=3, queries=13)
    one, two = (contact_sheet(numbered(2, 16), wide, count) for count in (1, 2))
    assert one.width == two.width


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(MetastepError, match="10-way episodes need 10 classes"):
        contact_sheet(numbered(), Episodes(10, 1, 1))
    with pytest.raises(DataError, match=r"pixels is too large\. Lower episodes"):
        contact_sheet(numbered(), EPISODES, count=10**6)


def test_a_picture_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    save_picture(Image.new("L", (5, 4)), path)
    with Image.open(path) as written:
        assert written.size == (5, 4)
    before = path.read_bytes()

    def break_off(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io, "_write_to_disk", break_off)
    with pytest.raises(RunError, match=r"x\.png': cannot be written .*No space left.*Make room on that disk"):
        save_picture(Image.new("L", (9, 9)), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "x.png").symlink_to(tmp_path / "victim")
    save_picture(Image.new("L", (5, 4)), tmp_path / "x.png")
    assert (tmp_path / "victim").read_text() == "mine"
    assert not (tmp_path / "x.png").is_symlink()


@pytest.mark.parametrize(
    ("place", "words"),
    [("absent/x.png", "its folder does not exist"), ("", "it is a folder"), ("x.unknown", "no known format")],
)
def test_a_place_that_cannot_be_is_named(place: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"cannot be written: {words}|cannot be written: .*{words}"):
        save_picture(Image.new("L", (5, 4)), tmp_path / place)
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_cannot_hold_a_picture_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be written as JPEG .*Name a \.png file"):
        save_picture(Image.new("L", (70_000, 1)), tmp_path / "x.jpg")
    assert list(tmp_path.iterdir()) == []
