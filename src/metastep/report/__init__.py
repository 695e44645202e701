"""One HTML page about one run or several: it needs no other file, no script and no network."""

from metastep.report.fewshot import render
from metastep.report.write import write_report

__all__ = ["render", "write_report"]
