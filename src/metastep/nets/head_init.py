"""Name the ways in which a head starts. The command line needs them for its flags, so this module loads no torch."""

from typing import Literal

HeadInit = Literal["default", "zero", "normal", "xavier", "kaiming"]
