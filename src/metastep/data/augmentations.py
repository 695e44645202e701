"""Name the kinds of augmentation.

The command line needs them for its flags, so this module loads no torch. `metastep.data.augment` does the work.
"""

from typing import Literal, get_args

from metastep.errors import MetastepError

Augmentation = Literal["none", "crop", "crop_noflip", "crop224", "resized_crop"]
"""none: the picture as it is.
crop: 4 black pixels around it, a window of its own size anywhere in that, mirrored or not.
crop_noflip: the same without the mirror, for drawings that a mirror makes another class.
crop224: of 256x256 pixels a window of 224x224 anywhere, mirrored or not; of other sizes, too, 7/8.
resized_crop: a window of 8 to 100 % of the area, 3:4 to 4:3, made 224x224 (7/8 again), mirrored or not. It works on
    the stored picture, which was made square before, and not on one in its own proportions.
"""

AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)


def known_augmentation(kind: str) -> Augmentation:
    """The kind itself, if it is one."""
    for known in AUGMENTATIONS:
        if kind == known:
            return known
    raise MetastepError(f"augmentation = {kind!r}: choose one of {', '.join(AUGMENTATIONS)}.")
