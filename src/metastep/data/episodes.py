"""Say what is asked of a data set: its name, episodes, a kind of augmentation.

The command line needs this for its flags and its help, so this module loads neither torch nor numpy.
`metastep.data.draw` draws the episodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from metastep.errors import MetastepError, how_many

FOLDER = "folder"
PREFIX = f"{FOLDER}:"
SETS = Path(__file__).parent / "sets"  # one file for each, which has its name


def ours() -> list[str]:
    """Return the names of the data sets that metastep knows, without reading what they are."""
    return sorted(path.stem for path in SETS.glob("[!_]*.py"))


def without_place(name: str) -> str:
    """Return folder:/home/me/photos as folder:photos, for others to see."""
    return PREFIX + Path(name.removeprefix(PREFIX)).name if name.startswith(PREFIX) else name


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


Rotations = Literal["none", "per_episode", "as_classes"]


@dataclass(frozen=True)
class Episodes:
    """Describe an episode: N ways, K shots to adapt to and queries to be judged by, for each class."""

    ways: int
    shots: int
    queries: int
    rotations: Rotations = "none"
    """Turns by multiples of 90 degrees. per_episode: one is drawn for each class of an episode, and turns its support
    and its queries; as_classes: each of the four is a class of its own, so there are four times as many classes."""

    def __post_init__(self) -> None:
        for name in ("ways", "shots", "queries"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise MetastepError(f"{name} = {value!r}: an episode needs a whole number of them, at least 1.")
        if self.rotations not in get_args(Rotations):
            raise MetastepError(f"rotations = {self.rotations!r}: choose one of {', '.join(get_args(Rotations))}.")

    @property
    def variants(self) -> int:
        """Return how many classes each class of the image set makes."""
        return 4 if self.rotations == "as_classes" else 1

    @property
    def images(self) -> int:
        """Return the images of a class in one episode."""
        return self.shots + self.queries


def require_enough(sizes: Sequence[int], episodes: Episodes, names: Sequence[str], shown: int = 5) -> None:
    """Refuse classes with too few images; `shown`: how many of them to name."""
    require_classes(len(sizes), episodes)
    require_sizes(sizes, episodes, names, shown)


def _need(episodes: Episodes) -> str:
    shots, queries = how_many(episodes.shots, "shot"), how_many(episodes.queries, "query", "queries")
    return f"{shots} and {queries} need {episodes.images} images of each class"


def require_classes(classes: int, episodes: Episodes) -> None:
    if classes * episodes.variants < episodes.ways:
        turned = ", 4 rotations of each" if episodes.variants == 4 else ""
        raise MetastepError(
            f"{episodes.ways}-way episodes need {how_many(episodes.ways, 'class', 'classes')}, but there are "
            f"{classes}{turned}. Lower ways, or add classes."
        )


def require_largest(size: int, episodes: Episodes) -> None:
    if size < episodes.images:
        raise MetastepError(
            f"{_need(episodes)}, but no class has more than {size}. Lower shots or queries, or add images."
        )


def require_sizes(sizes: Sequence[int], episodes: Episodes, names: Sequence[str], shown: int = 5) -> None:
    require_largest(max(sizes), episodes)
    small = [i for i, size in enumerate(sizes) if size < episodes.images]
    if small:
        fewer = f"{len(small)} {'has' if len(small) == 1 else 'have'} fewer"
        few = [f"{names[i] if names else f'class {i}'} ({sizes[i]})" for i in small[:shown]]
        raise MetastepError(
            f"{_need(episodes)}, but of {how_many(len(sizes), 'class', 'classes')} {fewer}: {', '.join(few)}"
            f"{', …' if len(small) > shown else ''}. Lower shots or queries, or add images to those classes."
        )
