"""Types of fields that configurations and commands share. This module loads no torch."""

from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["float32", "tf32", "bf16", "float64"]
