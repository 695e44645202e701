"""How the present code computes the golden values. The values stay; this file follows the API.

`python -m tests.golden.measured` prints them as JSON.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

import metastep as ms
from metastep.data.registry import data_set, load
from metastep.train import presets
from metastep.train.config import Outer
from metastep.train.loop import train
from metastep.train.presets import shipped
from metastep.train.run import Run
from study.tables.pages import TABLES

ROOT = Path(__file__).resolve().parent.parent.parent
FEW_SHOT_PRESETS = ("glyphs-5w1s-multistep4", "glyphs-5w1s-fomaml", "glyphs-5w1s-reptile")
TRANSFER_PRESET = "digits-sgd-multistep"
SPLITS = {"mini_imagenet": ("train", "val", "test"),
          **dict.fromkeys(("glyphs", "omniglot"), ("train", "val", "trainval", "test", "all"))}  # fmt: skip
LABELLED = ("glyphs", "digits", "stl10", "cifar100")
EMBEDDED = ("glyphs", "digits")

Sketch = dict[str, list[float]]


def sketched(tree: Any, prefix: str = "") -> Sketch:
    """The norm of each tensor and its product with two fixed directions of norm 1, by name.

    A bias that feeds a BatchNorm is left out: its true gradient is 0, and Adam divides rounding errors by themselves.
    """
    found: Sketch = {}
    for name, value in tree.items():
        if isinstance(value, dict):
            found |= sketched(value, f"{prefix}{name}/")
        elif not _feeds_batchnorm(name, tree):
            found[prefix + name] = _sketch(value)
    return found


def _sketch(value: Tensor) -> list[float]:
    flat = value.detach().double().flatten()
    places = torch.arange(1, len(flat) + 1, dtype=torch.float64)
    directions = (torch.cos(places), torch.sin(math.sqrt(2) * places))
    return [float(flat.norm()), *(float(flat @ direction / direction.norm()) for direction in directions)]


def _feeds_batchnorm(name: str, tree: dict[str, Tensor]) -> bool:
    """A convolution's bias whose next neighbour is a normalisation: a weight of one dimension"""
    place, _, kind = name.rpartition(".")
    stem, _, number = place.rpartition(".")
    after = tree.get(f"{stem}.{int(number) + 1}.weight") if number.isdigit() else None
    return kind == "bias" and isinstance(after, Tensor) and after.dim() == 1 and tree[f"{place}.weight"].dim() > 1


def few_shot_sketch(preset: str, folder: Path) -> Sketch:
    """Of θ after 20 iterations in float64."""
    usual = presets.few_shot()[preset]
    validation = replace(usual.validation, every=0)
    outer = Outer() if usual.outer.optimizer == "adam" else usual.outer  # presets did not clip then
    config = replace(usual, outer=outer, iterations=20, validation=validation, precision="float64", device="cpu")
    train(config, folder)
    return sketched(ms.Learner.load(folder).meta)


def transfer_sketch(folder: Path) -> Sketch:
    """Of φ after one epoch in float64; the source is trained for one, too."""
    usual = presets.transfer()[TRANSFER_PRESET]
    source = replace(usual.source, epochs=1)
    train(replace(usual, source=source, epochs=1, precision="float64", device="cpu"), folder)
    return sketched(Run.open(folder).load()["state"]["target"]["params"]["target"])


def learner_answers(name: str) -> dict[str, float]:
    """Right predictions and mean log-probability on 20 episodes of glyphs, 5 ways and 1 shot."""
    learner = ms.Learner.load(name).changed(ways=5)
    right, total = 0, 0.0
    for support, query in _episodes(20, learner.config.net.channels, learner.config.net.size):
        probabilities = learner.predict(learner.adapt(*support), query[0])
        right += int((probabilities.argmax(-1) == query[1]).sum())
        total += float(probabilities.double().log().gather(1, query[1][:, None]).mean())
    return {"right": right, "log_probability": total / 20}


def _episodes(number: int, channels: int, size: int) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    images, _ = load("glyphs").classes("test").rows()
    for k in range(number):
        rows = torch.tensor([(11 * k + 37 * way) % len(images) for way in range(5)])
        pictures = images[rows].float()[:, [k % 20, (k + 7) % 20]] / 255
        pictures = interpolate(pictures.flatten(0, 1), size=(size, size)).expand(-1, channels, -1, -1)
        shown = pictures.reshape(5, 2, channels, size, size)
        y = torch.arange(5)
        yield (shown[:, 0], y), (shown[:, 1], y)


def digest(*arrays: Tensor) -> str:
    """sha256 of shapes, types and bytes."""
    found = sha256()
    for array in arrays:
        found.update(f"{tuple(array.shape)} {array.dtype}".encode())
        found.update(array.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def tensors(tree: Any) -> Iterator[Tensor]:
    """The leaves of nested dictionaries, by name."""
    for name in sorted(tree):
        yield from tensors(tree[name]) if isinstance(tree[name], dict) else (tree[name],)


def learner_digest(name: str) -> str:
    """Of θ as it is shipped."""
    return digest(*tensors(ms.Learner.load(name).meta))


def data_digests(root: Path | None, embedded: bool) -> dict[str, str]:
    """Of the arrays of every split of the data sets of then that are there."""
    found = {}
    for name in sorted({*SPLITS, *LABELLED}):
        if (name in EMBEDDED) != embedded or not (embedded or (root and data_set(name).find(root))):
            continue
        data = load(name, root)
        for split in SPLITS.get(name, ()):
            found[f"{name} {split}"] = digest(data.classes(split).rows()[0])
        if name in LABELLED:
            parts = data.labelled()
            for part in ("train", "val", "test"):
                pictures = getattr(parts, part)
                found[f"{name} labelled {part}"] = digest(pictures.images, pictures.labels)
    return found


def verdicts() -> dict[str, str]:
    """Of every claim, as its file says."""
    files = sorted((ROOT / "results" / "claims").glob("*.json"))
    return {path.stem: json.loads(path.read_text())["verdict"] for path in files}


def table_digests(names: Iterable[str] = TABLES) -> dict[str, str]:
    """Of tables that are made from results."""
    return {name: sha256("\n".join(TABLES[name](name)).encode()).hexdigest() for name in names}


def everything(root: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        few_shot = {preset: few_shot_sketch(preset, Path(place, preset)) for preset in FEW_SHOT_PRESETS}
        transfer = {TRANSFER_PRESET: transfer_sketch(Path(place, "transfer"))}
    learners = {name: learner_answers(name) | {"theta": learner_digest(name)} for name in shipped()}
    data = data_digests(None, True) | (data_digests(root, False) if root else {})
    return {"theta": few_shot, "phi": transfer, "learners": learners, "data": data,
            "verdicts": verdicts(), "tables": table_digests()}  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(everything(Path(sys.argv[1]) if sys.argv[1:] else None), indent=1))
