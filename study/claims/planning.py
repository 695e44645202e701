"""Which runs claims need, and in which order: small tasks before large ones, cheap methods before dear ones."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from metastep.core.windows import window_lengths
from metastep.train.config import FewShot, Transfer
from study.claims.claims import Claim, Presets
from study.claims.evidence import Evidence
from study.claims.files import NOT_AT_HAND, Content, is_judged, stands_in
from study.claims.kinds import kind_of

DATA = ("glyphs", "omniglot", "mini_imagenet", "digits", "stl10", "cifar100")  # others, with large pictures, come last
SEEDS = {FewShot: 1, Transfer: 3}  # as in the paper


class Job(NamedTuple):
    preset: str  # its run serves all that are trained as it is
    seed: int


def presets_of(claim: Claim, evidence: Evidence) -> Presets:
    """Return presets on the paper's data where it is available, else on the stand-in if that is."""
    if claim.stand_in and not _at_hand(claim.presets, evidence) and _at_hand(claim.stand_in, evidence):
        return claim.stand_in
    return claim.presets


def runs_of(claim: Claim, evidence: Evidence) -> list[str]:
    """The presets by which those of a claim are trained"""
    return [kind_of(preset).trained_as(preset) for preset in presets_of(claim, evidence)]


def _at_hand(presets: Presets, evidence: Evidence) -> bool:
    return all(evidence.lacking(preset) is None for preset in presets)


def wanted_for(claims: Iterable[Claim], evidence: Evidence, seeds: int | None) -> list[Job]:
    presets = dict.fromkeys(run for claim in claims for run in runs_of(claim, evidence))
    return [Job(preset, seed) for preset in presets for seed in range(seeds or seeds_of(preset))]


def jobs_for(claims: Iterable[Claim], evidence: Evidence, seeds: int | None) -> list[Job]:
    """Return the jobs that are not finished and have their data, first seeds first."""
    jobs = wanted_for(claims, evidence, seeds)
    left = [job for job in jobs if not evidence.finished(*job) and evidence.lacking_to_train(job.preset) is None]
    return sorted(left, key=lambda job: (job.seed, *price(job.preset)))


def seeds_of(preset: str) -> int:
    return SEEDS[type(kind_of(preset).presets()[preset])]


def price(preset: str) -> tuple[Any, ...]:
    config = kind_of(preset).presets()[preset]
    name = config.data.name
    rank = DATA.index(name) if name in DATA else len(DATA)
    if isinstance(config, Transfer):
        return rank, 0, 0, config.products, config.steps, preset
    return rank, config.data.ways, config.test_episodes.shots, few_shot_price(config), 0, preset


def few_shot_price(config: FewShot) -> int:
    """A second-order product costs some three gradients"""
    windows = len(window_lengths(config.steps, config.window))
    solver = getattr(getattr(config.method, "solver", None), "steps", 0)
    products = {"maml": windows, "multi_step": windows, "imaml": solver}.get(config.method_name, 0)
    return config.iterations * config.tasks * (windows + 3 * products)


def is_done(claim: Claim, content: Content | None, evidence: Evidence, seeds: int | None) -> bool:
    """Whether its file rests on all that is available, and on as many iterations and seeds as are wanted"""
    if not is_judged(content):
        return False
    assert content is not None
    if not claim.presets:
        return claim.computed and NOT_AT_HAND not in content["note"]  # more may be there by now
    presets, wanted = presets_of(claim, evidence), seeds or seeds_of(claim.presets[0])
    configs = [kind_of(preset).configured(preset, 0, evidence.iterations, {}) for preset in presets]
    iterations = min((c.iterations for c in configs if isinstance(c, FewShot)), default=0)
    runs = sum(evidence.lacking(preset) is None for preset in presets) * wanted
    return bool(
        content["iterations"] >= iterations
        and set(range(wanted)) <= set(content["seeds"])
        and len(content["seconds"]) >= runs
        and stands_in(content) == (presets == claim.stand_in)
        and not any(evidence.outdated(preset) for preset in presets)
    )
