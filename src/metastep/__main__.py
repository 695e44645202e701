"""Run the command `metastep`, also as `python -m metastep`."""

import os

from metastep.train.stop import leave_at_ctrl_c


def main() -> None:
    """Run the command line. Until a command begins, Ctrl-C ends it quietly."""
    with leave_at_ctrl_c():
        from metastep.cli.main import app

        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            app()
        else:  # torchrun started this process
            from metastep.step.ranks import run_rank

            run_rank(app)


if __name__ == "__main__":
    main()
