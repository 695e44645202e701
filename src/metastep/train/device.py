"""Where a run is computed, how precisely, and by which code."""

import gc
import os
import platform
import subprocess
from pathlib import Path

import torch

import metastep
from metastep.errors import MetastepError
from metastep.train.schema import Device, Precision

_PRODUCTS: dict[Precision, str] = {"tf32": "high", "bf16": "medium"}  # PyTorch's words for what products may be made of


def uses_gpu(wanted: Device) -> bool:
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise MetastepError("device = cuda: PyTorch sees no GPU here. Leave it out, or install PyTorch with CUDA.")
    return there and wanted != "cpu"


def device_for(wanted: Device) -> torch.device:
    return torch.device("cuda" if uses_gpu(wanted) else "cpu")


def prepare_device(wanted: Device, precision: Precision, threads: int, number: int = 0) -> torch.device:
    """The device, with PyTorch set up for it; `number` is that of the GPU"""
    if not uses_gpu(wanted):
        # Not the environment's number: sums depend on it, and a run must continue bit for bit on another machine too.
        torch.set_num_threads(threads)
        return torch.device("cpu")
    set_products(precision)
    torch.backends.cudnn.benchmark = True  # shapes stay the same: the fastest algorithm for each is looked for once
    return torch.device("cuda", number)


def set_products(precision: Precision) -> None:
    """Set the precision of float32 products and convolutions in this process."""
    torch.set_float32_matmul_precision(_PRODUCTS.get(precision, "highest"))
    torch.backends.cudnn.allow_tf32 = precision in _PRODUCTS  # PyTorch has it on by itself


def environment(device: torch.device) -> dict[str, str]:
    """Return where and by what this part of a run was made, to read its times or make it again."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"device": device_name(device), **versions, "commit": commit()}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"


def release() -> None:
    """Free what a run had on the device, for the next one."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


PACKAGE = Path(metastep.__file__).resolve().parent
CHANGED = ", changed"  # of code that was not committed as it is


def commit(*more: Path) -> str:
    """The commit that runs, if metastep does so from a repository; METASTEP_COMMIT goes first.

    more: folders that belong to it besides the package.
    """
    if given := os.environ.get("METASTEP_COMMIT"):
        return given
    if not _git("ls-files", "__init__.py"):  # an installed metastep may lie inside somebody else's repository
        return f"metastep {metastep.__version__}"
    return _git("rev-parse", "HEAD") + (CHANGED if _git("status", "--porcelain", "--", ".", *map(str, more)) else "")


def _git(*arguments: str) -> str:
    try:
        run = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, check=False)
    except OSError:  # there is none, or it cannot be run
        return ""
    return run.stdout.strip()
