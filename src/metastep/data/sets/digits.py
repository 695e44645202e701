"""digits: 1,797 handwritten digits of 8x8 grey levels that come with metastep, for few labels per class."""

import numpy as np

from metastep.core.registry import register
from metastep.data.files import ASSETS, read_pack
from metastep.data.images import resized
from metastep.data.pictures import Labelled, Pictures, Split, classes_by_share, labelled_at
from metastep.data.registry import DataSet

LEVELS = 16  # of ink above the paper's 0
POOL, CHOICES = 40, 20  # of each class for training and for validation; the rest, some 120, are the test


@register("dataset", "digits")
class Digits(DataSet):
    summary = "1,797 handwritten digits of 8x8, made 28x28, for few labels per class"
    licence = "CC BY 4.0 (E. Alpaydin and C. Kaynak, UCI)"
    source = "comes with metastep"
    embedded = True
    view = "labels"
    labelled_in_words = "400 train, 200 val, 1,197 test"
    side, channels = 28, 1

    def read_classes(self, split: Split) -> Pictures:
        return self._whole().only(classes_by_share(10, split))

    def read_labelled(self, seed: int) -> Labelled:
        return labelled_at(self._whole(), [(POOL, POOL + CHOICES)] * 10, seed, f"{CHOICES}")

    def _whole(self) -> Pictures:
        """Ink 255 on paper 0, enlarged by Pillow's bilinear filter"""
        pack = read_pack(ASSETS / "digits.npz", ("images", "labels"))
        spread = np.rint(pack["images"] * (255 / LEVELS)).astype(np.uint8)
        return Pictures.of(resized(spread, self.size or self.side), pack["labels"], "0123456789")
