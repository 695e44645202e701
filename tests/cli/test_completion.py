"""What the shell completes, asked as a shell asks."""

import os
import subprocess
import sys

import pytest

ASKED = """
import sys
from metastep.__main__ import main
sys.argv = ["metastep"]
try:
    main()
finally:
    print("slow" if {"torch", "numpy"} & set(sys.modules) else "quick")
"""


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("rep", ["report"]),
        ("train glyphs-5w1s-m", ["glyphs-5w1s-maml", "glyphs-5w1s-multistep4"]),
        ("train omniglot-20w1s", ["omniglot-20w1s", "omniglot-20w1s-maml"]),
        ("train glyphs-5w1s-maml outer.l", ["outer.lr="]),
        ("resume RUN iter", ["iterations="]),
        ("presets omniglot-5w5", ["omniglot-5w5s-maml"]),
        ("classify mini", ["miniimagenet-5w1s", "miniimagenet-5w5s"]),
        ("data show ci", ["cifar100", "cifar_fs"]),
    ],
)
def test_names_are_completed(typed: str, wanted: list[str]) -> None:
    words = f"metastep {typed}"
    asking = {"_METASTEP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    code = [sys.executable, "-c", ASKED]
    done = subprocess.run(code, env=os.environ | asking, capture_output=True, text=True)
    offered = done.stdout.split()
    assert [word for word in wanted if word in offered] == wanted, done
    assert offered[-1] == "quick"
    assert not [word for word in offered[:-1] if not word.startswith(words.split()[-1])]
