"""Draw the glyphs that come with metastep.

    python -m study run make_glyphs          # writes src/metastep/data/assets/glyphs.npz
    python -m study run make_glyphs --check  # compares only; the exit status is 1 if any byte differs

Another version of Pillow or of matplotlib's fonts may draw other bytes. The file that is kept decides: published
numbers belong to it.
"""

import argparse
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metastep.data.cache import Arrays
from metastep.data.files import read_pack
from metastep.data.sets.glyphs import FILE
from study.glyphs.drawing import draw_glyphs


def differing(drawn: Arrays) -> list[str]:
    """Return the names of the arrays that differ from those that are kept."""
    kept = read_pack(FILE, tuple(drawn))
    return [name for name, array in drawn.items() if not _same(array, kept[name])]


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one.dtype == other.dtype and np.array_equal(one, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with the file that is kept, and write nothing")
    check = parser.parse_args().check
    drawn = draw_glyphs()
    if not check:
        np.savez_compressed(FILE, allow_pickle=False, **drawn)
        print(FILE)
    elif different := differing(drawn):
        sys.exit(f"{FILE}: {', '.join(different)} differ from what is drawn now.")
    else:
        print(f"{FILE}: the same bytes as drawn now")


if __name__ == "__main__":
    main()
