"""Read image files of any kind as bytes of one size and channel number. Damaged files are refused by name."""

import os
import warnings
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.Image import Resampling

from metastep.data.errors import DataError, Progress, problem, silent
from metastep.data.files import read_bytes, read_pack
from metastep.data.pictures import Pixels

# Formats that people keep pictures in. Not everything Pillow can open: EPS, for one, runs an interpreter.
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000", "TGA", "ICO")
# A JPEG far larger than needed is decoded at a fraction of its size: as good once shrunk, and faster.
DRAFT_FACTOR = 8
ToPixels = Callable[[Image.Image, int], Pixels]  # a picture as (3, size, size)


def read_picture(path: Path, size: int, channels: int, resample: Resampling = Resampling.LANCZOS) -> Pixels:
    """Return the image file as (channels, size, size), stretched to a square, so that nothing is cut off."""
    return to_pixels(open_picture(read_bytes(path), path, smallest=size), size, channels, resample)


class Look(NamedTuple):
    """Return what the head of a file says, without decoding it."""

    width: int
    height: int
    is_grey: bool


def look_at(path: Path) -> Look:
    """Describe a file that can be decoded. A grey picture that is stored in colour counts as in colour."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path, formats=FORMATS) as picture:
            return Look(*picture.size, picture.mode.startswith(("I", "F")) or picture.mode in ("1", "L", "LA"))


def open_picture(data: bytes, name: str | Path, smallest: int | None = None) -> Image.Image:
    """Decode the first frame, upright, as "L" or "RGB" on white; `smallest`: the size that will be enough."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes about odd metadata; the pixels are what counts
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            return _flattened(_decoded(data, smallest))
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        reason = f"is enormous: over {(Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels once unpacked"
        raise problem(name, reason, "Save a smaller copy in its place") from error
    except Exception as error:  # on damaged bytes decoders raise nearly anything
        raise problem(name, _why(data, error), "Remove it, or save it again as PNG or JPEG") from error


def to_pixels(picture: Image.Image, size: int, channels: int, resample: Resampling = Resampling.LANCZOS) -> Pixels:
    """Return (channels, size, size): 1 channel is grey, 3 is RGB."""
    if channels not in (1, 3):
        raise DataError(f"channels {channels}: pictures have 1 (grey) or 3 (RGB).")
    converted = picture.convert("L" if channels == 1 else "RGB")
    if converted.size != (size, size):
        converted = converted.resize((size, size), resample)
    return np.asarray(converted).reshape(size, size, channels).transpose(2, 0, 1)


def stretched(picture: Image.Image, size: int) -> Pixels:
    """Return a picture in colour as (3, size, size), by Pillow's bilinear filter."""
    return to_pixels(picture, size, 3, Resampling.BILINEAR)


def resized(pictures: Pixels, size: int) -> Pixels:
    """Return pictures (n, channels, height, width) as (n, channels, size, size), by Pillow's bilinear filter.

    The filter matters: the published TinyImageNet network is right on 49 % of pictures made so, but on 36 % of those
    made by LANCZOS.
    """
    if pictures.shape[2:] == (size, size):
        return pictures
    small = empty(pictures.shape[0], pictures.shape[1], size)
    for index in np.ndindex(pictures.shape[:2]):  # Pillow, too, treats each channel alone
        small[index] = np.asarray(Image.fromarray(pictures[index]).resize((size, size), Resampling.BILINEAR))
    return small


def empty(number: int, channels: int, size: int) -> Pixels:
    """Return room for so many pictures."""
    require_room(number, channels, size)
    return np.empty((number, channels, size, size), np.uint8)


def require_room(number: int, channels: int, size: int) -> None:
    """Require that this computer has memory for so many pictures."""
    needed, memory = number * channels * size * size, memory_bytes()
    if needed > memory:
        raise DataError(
            f"size = {size}: {number:,} pictures of {size}x{size} take {needed / 2**30:,.1f} GiB, and this computer "
            f"has {memory / 2**30:,.1f} GiB of memory. Choose a smaller size."
        )


def memory_bytes() -> int:
    """Return how much memory this computer has; a terabyte where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2**40


def _decoded(data: bytes, smallest: int | None) -> Image.Image:
    with Image.open(BytesIO(data), formats=FORMATS) as picture:
        if smallest is not None:
            picture.draft(picture.mode, (DRAFT_FACTOR * smallest,) * 2)
        picture.load()
        return ImageOps.exif_transpose(picture)


def _flattened(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(picture)))
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("L" if picture.mode in ("1", "L") else "RGB")


def _eight_bits(values: NDArray[np.generic]) -> Pixels:
    """Scale to bytes. 16 bits have a fixed white, 65535; wider integers and floats have none and are stretched."""
    wide = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(wide.min()), float(wide.max())
    if np.issubdtype(values.dtype, np.integer) and low >= 0 and high <= 65535:
        low, high = 0.0, 65535.0
    return np.rint((wide - low) * (255.0 / max(high - low, 1e-300))).clip(0, 255).astype(np.uint8)


def _why(data: bytes, error: Exception) -> str:
    if not data:
        return "is empty"
    if isinstance(error, UnidentifiedImageError):
        return "is not an image in a known format"
    return f"is damaged or cut short ({str(error) or type(error).__name__})"


# ---- sheets: pictures of one size side by side in a few large image files, inside one .npz


def read_sheets(path: Path, size: int, progress: Progress = silent) -> Pixels:
    """Return all pictures of a pack in their order, (pictures, 3, size, size)."""
    return np.concatenate(list(sheets(path, size, progress)))


def sheets(path: Path, size: int, progress: Progress = silent) -> Iterator[Pixels]:
    """Yield the pictures of each sheet of a pack, (pictures, 3, size, size)."""
    pack = read_pack(path, ("blob", "offset", "count", "hw"))
    if len(pack["offset"]) != len(pack["count"]) + 1 or tuple(pack["hw"]) != (size, size):
        raise problem(path, f"does not hold pictures of {size}x{size}", "Copy it again")
    for i, (start, end) in enumerate(pairwise(pack["offset"])):
        yield cut_sheet(pack["blob"][start:end].tobytes(), f"{path}, sheet {i}", int(pack["count"][i]), size)
        progress(i + 1, len(pack["count"]))


def cut_sheet(sheet: bytes, name: str, count: int, size: int) -> Pixels:
    """Return the first `count` pictures of a sheet that shows them row by row, (count, 3, size, size)."""
    pixels = np.asarray(open_picture(sheet, name).convert("RGB"))
    rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
    if count > rows * columns:
        raise problem(name, f"has room for {rows * columns} pictures, not {count}", "Copy the pack again")
    grid = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size, 3)
    return grid.transpose(0, 2, 4, 1, 3).reshape(-1, 3, size, size)[:count]
