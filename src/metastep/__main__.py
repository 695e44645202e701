"""python -m metastep"""

from metastep.cli import main

main()
