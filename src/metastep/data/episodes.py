"""Say what an episode is made of, and whether a data set is large enough for it.

The command line needs this for its flags, so this module loads no torch. `metastep.data.draw` draws the episodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from metastep.errors import MetastepError, how_many

Rotations = Literal["none", "per_episode", "as_classes"]


@dataclass(frozen=True)
class Episodes:
    """What an episode is made of: N ways, K shots to adapt to, and queries to be judged by, for each class."""

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
        """How many classes each class of the image set makes"""
        return 4 if self.rotations == "as_classes" else 1

    @property
    def images(self) -> int:
        """Images of a class in one episode"""
        return self.shots + self.queries


def require_enough(sizes: Sequence[int], episodes: Episodes, names: Sequence[str], shown: int = 5) -> None:
    """Says what is missing where classes of so many images cannot serve; `shown`: how many of them it names."""
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
