"""python -m metastep"""

from metastep.cli.main import main

main()
