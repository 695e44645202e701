"""How good a learner is: accuracy with its 95 % interval on new episodes, after every adaptation step."""

import hashlib
import time
from dataclasses import dataclass, replace
from pathlib import Path

from metastep.core.trees import tree_leaves
from metastep.data.episodes import Episodes, Rotations
from metastep.data.pictures import Pictures
from metastep.data.progress import Progress, silent
from metastep.errors import MetastepError
from metastep.train.config import Data, FewShot
from metastep.train.fewshot.choices import EVALUATION_SEED
from metastep.train.fewshot.judging import Look, judge, judged_after
from metastep.train.fewshot.learner import Learner
from metastep.train.fewshot.sampling import Sampler, read_split, remembered
from metastep.train.fewshot.scores import Evaluation, StepScore, mean


@dataclass(frozen=True)
class Request:
    """What to evaluate on; None is as the learner was trained to be judged."""

    ways: int | None = None
    shots: int | None = None
    queries: int | None = None
    rotations: Rotations | None = None
    steps: int | tuple[int, ...] | None = None
    exact_steps: bool = False
    """Every step evaluates its own gradient, also where training shared one among the steps of a window."""
    dataset: str | None = None
    split: str = "test"
    episodes: int = 600
    seed: int = EVALUATION_SEED
    one_by_one: bool = False
    """Each query is judged in a batch with the support alone, as `classify` does, and only when the inner loop ends."""

    def __post_init__(self) -> None:
        if self.episodes < 2:
            raise MetastepError(f"episodes = {self.episodes}: an interval needs at least 2.")


def evaluate(
    learner: Learner,
    request: Request = Request(),  # noqa: B008 - frozen
    data: Path | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """`data`: the directory that data sets are in"""
    weights = digest(learner)
    learner = with_steps(learner.changed(ways=request.ways), request.steps, request.exact_steps)
    episodes = requested_episodes(learner.config, request)
    asked = learner.config.data if request.dataset is None else Data(name=request.dataset)
    images = read_split(asked, data, request.split)
    require_fitting(learner.config, images, asked.name)
    seen = remembered(asked, data)
    sampler = Sampler.of(images, episodes, request.seed, learner.device, tree_leaves(learner.meta)[0].dtype)

    began = time.perf_counter()
    look: Look = "one by one" if request.one_by_one else "after each window"
    judged = judge(learner, sampler, request.episodes, look, progress=progress)
    percent = 100 * judged.accuracy.cpu()
    scores = [mean(column) for column in percent.T]
    return Evaluation(
        dataset=seen.name,
        split=request.split,
        ways=episodes.ways,
        shots=episodes.shots,
        queries=episodes.queries,
        rotations=episodes.rotations,
        windows=learner.loop.lengths,
        episodes=request.episodes,
        seed=request.seed,
        checkpoint=learner.checkpoint,
        weights=weights,
        accuracy=scores[-1].mean,
        interval=scores[-1].interval,
        by_step=tuple(StepScore(step, *score) for step, score in zip(judged_after(learner, look), scores, strict=True)),
        not_finite=int((~judged.loss.isfinite()).any(1).sum()),
        seconds=time.perf_counter() - began,
        accuracies=tuple(round(value, 4) for value in percent[:, -1].tolist()),
        fingerprint=seen.fingerprint,
        one_by_one=request.one_by_one or None,
    )


def with_steps(learner: Learner, steps: int | tuple[int, ...] | None, exact: bool = False) -> Learner:
    """The learner with another inner loop; `exact`: every step evaluates its own gradient.

    Steps that say the length of every window stand in place of the windows of training.
    """
    config = learner.config
    steps = config.test_steps if steps is None else steps
    if exact:
        steps = steps if isinstance(steps, int) else sum(steps)
    alone = exact or not isinstance(steps, int)
    # Weights are of the windows of training.
    other = {"weights": None, **({"window": 1} if alone else {})}
    method = replace(config.method, **{name: value for name, value in other.items() if hasattr(config.method, name)})
    config = replace(config, method=method, test=replace(config.test, steps=steps))
    return replace(learner, config=config)


def requested_episodes(config: FewShot, request: Request) -> Episodes:
    """Ways are the learner's; the rest as asked for"""
    asked = {name: getattr(request, name) for name in ("shots", "queries", "rotations")}
    return replace(config.test_episodes, **{name: value for name, value in asked.items() if value is not None})


def require_fitting(config: FewShot, images: Pictures, name: str) -> None:
    channels, height, width = images.images.shape[1:]
    size = config.net.size
    if (channels, height, width) != (config.net.channels, size, size):
        raise MetastepError(
            f"pictures of {name!r} are {channels}×{height}×{width}, and this learner takes "
            f"{config.net.shape}. Evaluate it on data like that it was trained on."
        )


def digest(learner: Learner) -> str:
    total = hashlib.sha256()
    for leaf in tree_leaves(learner.meta):
        total.update(leaf.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]
