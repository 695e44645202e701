"""The study: benchmarks, the claims of the paper, experiments, and the tables in docs. It is not part of the wheel."""

from pathlib import Path

CODE = Path(__file__).parent
"""What has made the study's results, besides the package: the commit of a file of results is that of both."""
