"""Other numbers of iterations for a run that is there, where it then ends as if it had been started with them."""

from dataclasses import replace

from metastep.errors import how_many
from metastep.train.config import FewShot
from metastep.train.errors import RunError, problem
from metastep.train.run import Run


def iterations_made(run: Run) -> int:
    return int(run.load()["trained"]["iterations"]) if run.last.is_file() else 0


def lengthened(run: Run, iterations: int) -> FewShot:
    """Its configuration with so many iterations; refused where those that were made would have been others"""
    config, made = run.config(FewShot), iterations_made(run)
    if iterations <= made:
        reason = f"has made {how_many(made, 'iteration')}, and iterations={iterations} asks for no more"
        raise problem(RunError, run.folder, reason, "Ask for more, or evaluate it as it is")
    if iterations != config.iterations and config.outer.schedule != "constant":
        over = f"over the {how_many(config.iterations, 'iteration')} that it was started with"
        reason = (
            f"its rate has a {config.outer.schedule} schedule {over}, and would have been another for {iterations:,}"
        )
        remedy = f"Leave iterations out, or start a new run with iterations={iterations}"
        raise problem(RunError, run.folder, reason, remedy)
    return replace(config, iterations=iterations)
