"""Write learners of format version 1 as version 2: the same θ, byte for byte, with the configuration of today.

python -m study run convert_learners src/metastep/learners/*.safetensors
"""

import argparse
from pathlib import Path

from metastep.train import checkpoints
from metastep.train.fewshot.learner import KIND, Learner
from metastep.train.validated import to_plain
from study import version_1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        convert(path)
        print(f"{path}: {Learner.load(path).config.method}")


def convert(path: Path) -> None:
    """Replace the file; one that cannot be read stays as it is."""
    tree = checkpoints.load(path, KIND, version=1)
    checkpoints.save(path, tree | {"config": to_plain(version_1.few_shot(tree["config"]))}, KIND)
