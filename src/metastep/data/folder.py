"""Read a user's own pictures: one sub-folder per class, files of any size and kind.

Episodes split them by class. Transfer learns all classes, by picture: below train/, val/ and test/, or drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL.Image import Resampling

from metastep.core.registry import register
from metastep.data.cache import Arrays, cached
from metastep.data.episodes import FOLDER, PREFIX
from metastep.data.errors import DataError, Progress, counted, printable, problem
from metastep.data.files import contents, entries, fingerprint
from metastep.data.images import empty, read_picture
from metastep.data.pictures import (
    FRACTIONS,
    PARTS,
    Labelled,
    Pictures,
    Split,
    classes_by_share,
    held_out,
    labelled_by_share,
    shuffled_classes,
)
from metastep.data.registry import DataSet, own_folder
from metastep.errors import how_many

SIDE_OF_LABELLED = 256
CHANNELS = 3  # whatever the files have: some photos are grey
HALVES = ("train", "test")  # a folder that is split has both
_ADVICE = "`metastep data check` lists everything that is wrong with a folder"
Files = Mapping[str, Sequence[Path]]
Reader = Callable[[Path], Pictures]  # of a folder of classes
Listing = Callable[[Path], Sequence[Path]]


@register("dataset", FOLDER)
class Folder(DataSet):
    summary = "your own pictures, one sub-folder per class, resized to 84x84 (256x256 for transfer)"
    licence = "yours"
    source = "any folder: name it as folder:PATH, or by its path"
    labelled_in_words = "those below train/, val/ and test/, or 60 % train, 20 % val, 20 % test of each class"
    side = 84

    def read_classes(self, split: Split) -> Pictures:
        """Stop at the first file that cannot be used: silently omitting a picture would change the result."""
        if has_parts(self.root):
            reason = "has its own train/ and test/, which share their classes, and so serves no episodes"
            raise problem(self.root, reason, "Put the folders of all classes side by side")
        files = class_files(self.root)
        names = classes_of(list(files), split)
        if not names:
            reason = f"has {how_many(len(files), 'class', 'classes')}, which leaves none for {split!r}"
            raise problem(self.root, reason, "Add classes, or use the split 'all'")
        chosen = {name: files[name] for name in names}
        return pictures_of(chosen, decoded(chosen, self.size or self.side, Resampling.LANCZOS, self.progress)["images"])

    def read_labelled(self, seed: int) -> Labelled:
        return labelled_in(self.root, seed, self._read)

    def _read(self, path: Path) -> Pictures:
        """Decode once and keep in the cache folder."""
        files, size = several_classes(path), self.size or SIDE_OF_LABELLED
        key = f"{size} {fingerprint(path)}"
        decode = lambda: decoded(files, size, Resampling.BILINEAR, self.progress)  # noqa: E731
        return pictures_of(files, cached(f"{FOLDER}-{size}", key, decode)["images"])


def labelled_in(path: Path, seed: int, read: Reader) -> Labelled:
    """Return parts by the folder's own train/, test/ and, if there is one, val/; else a share of each class, drawn."""
    if lone := lone_half(path):
        raise alone(lone)
    if not is_split(path):
        return labelled_by_share(read(path), seed, path)
    train, test = read(path / "train"), read(path / "test")
    _require_same_classes(train, test, path)
    if (path / "val").is_dir():
        val = read(path / "val")
        _require_same_classes(train, val, path)
        return Labelled(train, val, test, "the folder val")
    share = FRACTIONS[1] / (FRACTIONS[0] + FRACTIONS[1])
    held = [i for row in shuffled_classes(train.labels.numpy(), seed) for i in row[: round(len(row) * share)]]
    if not held:
        reason = "has too few pictures of each class to hold some out for validation"
        raise problem(path / "train", reason, "Add pictures, or a folder val next to it")
    return held_out(train, sorted(held), test, f"{share:.0%} of each class of train, drawn with seed {seed}")


def is_split(path: Path) -> bool:
    """Return whether train/ and test/ hold folders of classes and are not classes themselves."""
    return all((path / half).is_dir() and any(map(Path.is_dir, entries(path / half))) for half in HALVES)


def lone_half(path: Path) -> Path | None:
    """Return train/ or test/ if it holds nothing but folders and the other does not: it would be taken for a class."""
    inside = {path / half: entries(path / half) for half in HALVES if (path / half).is_dir()}
    holders = [half for half, found in inside.items() if found and all(map(Path.is_dir, found))]
    return holders[0] if len(holders) == 1 and not is_split(path) else None


def alone(half: Path) -> DataError:
    (other,) = set(HALVES) - {half.name}
    reason = f"holds folders, as if they were the classes, and there is no {other} next to it that does"
    return problem(half, reason, "Add it, or put the folders of all classes side by side, to have each class split")


def has_parts(path: Path) -> bool:
    """Return whether it is for transfer: the parts share their classes and serve no episodes."""
    return is_split(path) or lone_half(path) is not None


def class_folders(path: Path) -> list[Path]:
    """Return what holds the folders of classes: the parts that there are, or the folder itself."""
    return [path / part for part in PARTS if (path / part).is_dir()] if is_split(path) else [path]


def classes_of(names: Sequence[str], split: Split) -> tuple[str, ...]:
    """Return which of all the classes of a folder are a split's."""
    return tuple(names[i] for i in classes_by_share(len(names), split))


def class_files(path: Path, listing: Listing = entries) -> dict[str, list[Path]]:
    """Return class name -> its files, both sorted; anything that is not in its place is refused.

    listing: what lies in a folder, without what is taken for removed.
    """
    require_folder(path)
    classes = {}
    for folder in listing(path):
        if not folder.is_dir():
            raise problem(folder, "lies outside the class folders", f"Move or remove it; {_ADVICE}")
        classes[folder.name] = list(listing(folder))
        if not classes[folder.name]:
            raise problem(folder, "is a class without pictures", f"Fill or remove it; {_ADVICE}")
        for file in classes[folder.name]:
            if not file.is_file():
                raise problem(file, "is no file, but lies in a class folder", f"Move or remove it; {_ADVICE}")
    return classes


def several_classes(path: Path, listing: Listing = entries) -> dict[str, list[Path]]:
    """Return the same, if there is something to tell apart."""
    files = class_files(path, listing)
    if not files:
        raise problem(path, "has no class folders", "Give a folder with one sub-folder of pictures per class")
    if len(files) == 1:
        raise problem(path, "has a single class: there is nothing to tell apart", "Add a folder of another class")
    return files


def require_folder(path: Path) -> None:
    if not path.is_dir():
        raise problem(path, "is not a folder", "Give a folder with one sub-folder of pictures per class")


def pictures_of(files: Files, images: np.ndarray) -> Pictures:
    """Return the pictures of these files, class by class."""
    labels = np.repeat(np.arange(len(files)), [len(row) for row in files.values()])
    return Pictures.of(images, labels, files)


def decoded(files: Files, size: int, resample: Resampling, progress: Progress) -> Arrays:
    """Return all pictures in colour, stretched to squares."""
    paths = [file for row in files.values() for file in row]
    images = empty(len(paths), CHANNELS, size)
    for i, path in enumerate(counted(paths, len(paths), progress)):
        try:
            images[i] = read_picture(path, size, CHANNELS, resample)
        except DataError as error:  # where one file is damaged there may be more
            raise DataError(f"{str(error).rstrip('.')}; {_ADVICE}.") from error
    return {"images": images}


def placed(name: str, root: Path | None) -> str:
    """Return the name by which a user's folder is found from everywhere."""
    return f"{PREFIX}{own_folder(name, root).resolve()}"


def fingerprint_of(name: str, root: Path | None) -> str:
    """Return the fingerprint of the pictures in a user's folder, wherever it is."""
    folder = own_folder(name, root)
    require_folder(folder)
    return contents(folder)


def require_remembered(name: str, fingerprint: str | None, root: Path | None, again: str) -> None:
    """Require that the folder is there as it was; `again` says how to name it anew. Data sets have no fingerprint."""
    if fingerprint is None:
        return
    folder = own_folder(name, root)
    if not folder.is_dir():
        raise problem(folder, "is not there, or no folder", f"Put it back; if it was moved, say where it is: {again}")
    if contents(folder) != fingerprint:
        reason = "has other pictures than in training: files came, went, or changed"
        raise problem(folder, reason, f"Put them back, or start a new run; if they are elsewhere, say where: {again}")


def moved(name: str | None, fingerprint: str | None, to: str, root: Path | None, again: str) -> str:
    """Return the new name of a folder that is in another place now, with the same pictures."""
    if name is None or not name.startswith(PREFIX):
        reason = f"a run continues with its own data ({printable(name or 'none')}), and only a folder can be named anew"
        raise problem(to, reason, "Leave it out, or start a new run")
    new = placed(to, root)
    require_remembered(new, fingerprint, root, again)
    return new


def _require_same_classes(train: Pictures, other: Pictures, path: Path) -> None:
    if strange := sorted(set(train.names).symmetric_difference(other.names)):
        listed = ", ".join(map(printable, strange))
        reason = f"the class {listed} is" if len(strange) == 1 else f"the classes {listed} are"
        raise problem(path, f"{reason} not in every part", "Give every part the same classes")
