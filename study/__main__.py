"""python -m study"""

from study.commands import app

app(prog_name="python -m study")
