"""CUB few-shot: the birds of CUB-200-2011 at 84x84, in the split of Chen et al. (2019).

Pictures keep their proportions: the shorter side becomes 92 pixels (in proportion at other sizes), and the middle
84x84 stay.
"""

from pathlib import Path

from PIL import Image
from PIL.Image import Resampling

from metastep.core.registry import register
from metastep.data.cache import Arrays
from metastep.data.files import first_existing, read_pack
from metastep.data.images import read_sheets, resized, to_pixels
from metastep.data.official import arrays_of
from metastep.data.pictures import Pixels
from metastep.data.sets.cub200 import CUB200

SIDE, SHORTER = 84, 92
PACK = "cub200_fewshot84_avif65.npz"


@register("dataset", "cub")
class CUB(CUB200):
    summary = "200 species of birds, the middle 84x84; classes split 100/50/50"
    view = "episodes"
    what = f"{CUB200.what.removesuffix(')')}, or {PACK})"
    side = SIDE
    indices = ""  # those of L2T-ww are for the order of the official pictures

    @classmethod
    def find(cls, root: Path) -> tuple[Path, ...]:
        """Return the official files, else the pack."""
        return super().find(root) or first_existing(root, (PACK, f"cub/{PACK}"))

    def read(self, files: tuple[Path, ...], size: int) -> Arrays:
        if len(files) > 1:
            return self.read_official(files, size, cropped)
        pack = read_pack(files[0], ("label", "official_split", "classes"))
        images, tested = resized(read_sheets(files[0], SIDE, self.progress), size), pack["official_split"] == 1
        train, test = ((images[chosen], pack["label"][chosen]) for chosen in (~tested, tested))
        return arrays_of(train, test, pack["classes"])


def cropped(picture: Image.Image, size: int) -> Pixels:
    """Return the middle of a picture whose shorter side is a little longer than `size`."""
    scale = round(size * SHORTER / SIDE) / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    middle = (
        picture.convert("RGB").resize((width, height), Resampling.LANCZOS).crop((left, top, left + size, top + size))
    )
    return to_pixels(middle, size, 3)
