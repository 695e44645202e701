"""Say what can be chosen when a learner is judged and used.

The command line needs this for its flags, so this module loads no torch.
"""

from typing import Literal

Ink = Literal["auto", "dark", "light"]
EVALUATION_SEED = 600  # fixed, so that every method is judged by the same episodes
