"""Few-shot learning: training, judging and using learners."""

from metastep.fewshot.config import TrainConfig
from metastep.fewshot.learner import Learner
from metastep.fewshot.presets import PRESETS

__all__ = ["PRESETS", "Learner", "TrainConfig"]
