"""Odd pictures become plain bytes; damaged ones are refused by name."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.Image import Resampling

from metastep.data import images
from metastep.data.errors import DataError
from metastep.data.images import empty, open_picture, read_picture, resized, to_pixels
from tests.data.helpers import encoded, noise

GREY = Image.new("L", (10, 6), 100)
RED = Image.new("RGB", (10, 6), (200, 0, 0))
HALF_CLEAR = Image.new("RGBA", (10, 6), (0, 0, 0, 128))


def write(tmp_path: Path, data: bytes, name: str = "odd.img") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "grey"),
    [
        pytest.param(encoded(GREY), 100, id="grey"),
        pytest.param(encoded(GREY.convert("RGB").quantize(4)), 100, id="palette"),
        pytest.param(encoded(GREY.convert("LA")), 100, id="grey with alpha"),
        pytest.param(encoded(HALF_CLEAR), 127, id="half clear black on white"),
        pytest.param(encoded(Image.new("RGBA", (3, 3), (0, 0, 0, 0))), 255, id="clear is white"),
        pytest.param(encoded(GREY, transparency=100), 255, id="transparent grey value"),
        pytest.param(encoded(Image.fromarray(np.full((6, 9), 100 * 257, np.uint16))), 100, id="16 bits"),
        pytest.param(encoded(Image.new("I", (4, 4), 100 * 257), "TIFF"), 100, id="32-bit integers"),
        pytest.param(encoded(Image.new("1", (5, 5), 1)), 255, id="1 bit"),
        pytest.param(encoded(Image.new("L", (1, 1), 100)), 100, id="1x1"),
        pytest.param(encoded(Image.new("L", (1, 3000), 100)), 100, id="1x3000"),
        pytest.param(encoded(Image.new("CMYK", (9, 9), (0, 0, 0, 155)), "TIFF"), 100, id="CMYK"),
        pytest.param(encoded(GREY, "WEBP", lossless=True), 100, id="webp"),
        pytest.param(encoded(GREY, "BMP"), 100, id="bmp"),
        pytest.param(encoded(GREY, "GIF", save_all=True, append_images=[RED]), 100, id="animated"),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_gives_plain_bytes(tmp_path: Path, data: bytes, grey: int, channels: int) -> None:
    pixels = read_picture(write(tmp_path, data), size=8, channels=channels)
    assert pixels.shape == (channels, 8, 8)
    assert pixels.dtype == np.uint8
    assert np.abs(pixels.astype(int) - grey).max() <= 1


def test_floats_are_stretched_and_survive_nan(tmp_path: Path) -> None:
    values = np.array([[0.0, 0.5], [1.0, np.nan]], np.float32)
    pixels = read_picture(write(tmp_path, encoded(Image.fromarray(values), "TIFF")), size=2, channels=1)
    assert pixels.tolist() == [[[0, 128], [255, 0]]]


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    left_half_black = Image.fromarray(np.tile(np.repeat([0, 255], 8).astype(np.uint8), (16, 1)))
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees clockwise: left becomes top
    data = encoded(left_half_black, "JPEG", exif=exif, quality=95)
    pixels = read_picture(write(tmp_path, data), size=16, channels=1)[0]
    assert pixels[:6].max() < 20
    assert pixels[-6:].min() > 235


def test_channels_keep_their_order(tmp_path: Path) -> None:
    pixels = read_picture(write(tmp_path, encoded(RED)), size=4, channels=3)
    assert pixels[:, 0, 0].tolist() == [200, 0, 0]


def test_a_picture_of_the_right_size_is_untouched(tmp_path: Path) -> None:
    pixels = read_picture(write(tmp_path, encoded(Image.fromarray(noise(0)))), size=84, channels=3)
    assert np.array_equal(pixels.transpose(1, 2, 0), noise(0))


def test_shortcut_for_large_jpegs_looks_the_same() -> None:
    coarse = Image.fromarray(noise(3, 12, 12)).resize((1600, 1600), Image.Resampling.BICUBIC)
    data = encoded(coarse, "JPEG", quality=95)
    assert open_picture(data, "x", smallest=20).size == (200, 200)
    quick, full = (to_pixels(open_picture(data, "x", smallest=n), 20, 3).astype(int) for n in (20, None))
    assert np.abs(quick - full).max() <= 6


def test_enormous_picture_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    header = encoded(Image.new("1", (20_000, 20_000)))  # 50 KB that would unpack to 400 million pixels
    path = write(tmp_path, header, "bomb.png")
    with pytest.raises(DataError, match=r"bomb\.png: is enormous.*smaller copy"):
        read_picture(path, size=8, channels=3)


def test_warning_level_of_enormous_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(DataError, match="is enormous"):
        read_picture(write(tmp_path, encoded(GREY)), size=8, channels=1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"just text", "not an image in a known format"),
        (encoded(Image.fromarray(noise(0)))[:2000], "damaged or cut short"),
        (encoded(Image.fromarray(noise(0)), "JPEG")[:900], "damaged or cut short"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image in a known format"),
    ],
)
def test_unusable_file_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"odd\.img: .*{reason}.*\. Remove it"):
        read_picture(write(tmp_path, data), size=8, channels=3)


def test_what_is_not_a_file_is_refused_without_hanging(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for name in ("pipe.png", "absent.png"):
        with pytest.raises(DataError, match=f"{name}: is not an ordinary file"):
            read_picture(tmp_path / name, size=8, channels=3)


def test_names_cannot_reach_the_terminal_raw(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read_picture(write(tmp_path, b"?", "\x1b[2Jevil\udcff.png"), size=8, channels=3)
    assert str(caught.value).isprintable()
    str(caught.value).encode()


def test_wrong_channel_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="channels 4"):
        read_picture(write(tmp_path, encoded(GREY)), size=8, channels=4)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM", "TGA", "ICO"])
def test_damaged_bytes_give_a_picture_or_a_data_error(kind: str) -> None:
    whole = encoded(Image.fromarray(noise(1, 16, 16)), kind)
    dice = random.Random(0)
    for _ in range(40):
        damaged = bytearray(whole[: dice.randint(1, len(whole))])
        for _ in range(dice.randint(0, 8)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            picture = open_picture(bytes(damaged), "damaged")
        except DataError:
            continue
        assert to_pixels(picture, 8, 3).shape == (3, 8, 8)


def test_arrays_are_resized_as_pillow_resizes_pictures() -> None:
    pixels = np.stack([noise(seed, 96, 96) for seed in range(3)])
    small = resized(pixels.transpose(0, 3, 1, 2), 32).transpose(0, 2, 3, 1)
    for picture, ours in zip(pixels, small, strict=True):
        assert np.array_equal(ours, np.asarray(Image.fromarray(picture).resize((32, 32), Resampling.BILINEAR)))


def test_pictures_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "memory_bytes", lambda: 10 * 2**30)
    assert empty(10, 3, 8).shape == (10, 3, 8, 8)
    with pytest.raises(DataError, match=r"1,000 pictures of 4096x4096 take 46\.9 GiB, and this computer has 10\.0 GiB"):
        empty(1000, 3, 4096)
