"""Methods and MetaGradients are values: equal by their parts, printable, hashable, picklable and copied whole."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import metastep as ms
from metastep.core import registry
from metastep.errors import MetastepError
from tests.core.helpers import PROBLEMS, case, method, relative_error
from tests.step.helpers import gradient_of, some_tasks, tanh_net

METHODS = [name for name in registry.names("method") if name != "sparse_maml"]  # a page of docs registers that one
NET = tanh_net()
TASKS = some_tasks()


def accepts_weights(name: str) -> bool:
    return name.endswith("weight")


VARIED: list[ms.methods.Method] = [
    ms.MultiStep(window=[2, 1, 1]),
    ms.MultiStep(window=2, curvature=ms.curvature.CentralDifference(0.01)),
    ms.IMAML(strength=0.5, solver=ms.solvers.Neumann(steps=3, rate=0.1)),
    ms.methods.ANIL(head=accepts_weights),
    ms.methods.MAMLPP(weights=[0.25, 0.75]),
    ms.methods.MAMLPP(weights=torch.tensor([0.25, 0.75])),
]


@pytest.mark.parametrize("made", [*map(method, METHODS), *VARIED], ids=repr)
def test_a_method_is_a_value(made: ms.methods.Method) -> None:
    again = pickle.loads(pickle.dumps(made))
    for other in (again, copy.deepcopy(made), copy.copy(made)):
        assert other == made
        assert hash(other) == hash(made)
        assert repr(other) == repr(made)
    assert made != (ms.FOMAML() if not isinstance(made, ms.FOMAML) else ms.MAML())
    assert len({made, again}) == 1


def test_a_method_is_written_as_it_would_be_typed() -> None:
    for made in (*(each for each in VARIED if "accepts_weights" not in repr(each)), ms.MAML(), ms.Reptile()):
        named = {**vars(ms.methods), **vars(ms.curvature), **vars(ms.solvers)}
        assert eval(repr(made), named) == made


def gradients() -> list[ms.MetaGradient]:
    problem, inner = ms.few_shot(NET, F.mse_loss, {"loss of it": F.mse_loss}), ms.SGD(lr=0.1)
    return [
        ms.MetaGradient(problem, ms.MAML(), inner, steps=3),
        ms.MetaGradient(problem, ms.MAML(), inner, steps=[2, 1]),
        ms.MetaGradient(problem, ms.MAML(), inner, steps=4),
        ms.MetaGradient(problem, ms.MAML(), inner, steps=3, batch=2),
        ms.MetaGradient(problem, ms.MAML(), inner, steps=3, batch=2, shuffled=True),
        ms.MetaGradient(problem, ms.MAML(), inner, steps=3, chunk_size=1),
        ms.MetaGradient(problem, ms.MultiStep(window=3), inner, steps=3),
        ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.2), steps=3),
        ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=torch.tensor(0.1)), steps=3),
        ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr={name: torch.ones(2) for name in ms.parameters(NET)}), steps=3),
        ms.MetaGradient(ms.few_shot(NET, F.l1_loss), ms.MAML(), inner, steps=3),
        ms.MetaGradient(ms.few_shot(tanh_net(), F.mse_loss), ms.MAML(), inner, steps=3),
        ms.MetaGradient(ms.few_shot(NET, partial(F.mse_loss, reduction="sum")), ms.MAML(), inner, steps=3),
    ]


def test_gradients_are_equal_if_their_parts_are() -> None:
    ours, theirs = gradients(), gradients()
    for i, one in enumerate(ours):
        assert one == replace(one)
        assert hash(one) == hash(theirs[i])
        for k, other in enumerate(theirs):
            assert (one == other) == (i == k and i < len(ours) - 2), (one, other)  # another net, or another partial
    assert ours[0] != 3
    assert len(set(gradients()[:10]) | set(gradients()[:10])) == 10


def test_a_gradient_is_printed_without_its_defaults() -> None:
    told = repr(gradient_of(NET, batch=2))
    assert told == "MetaGradient(few_shot(Sequential, mse_loss), MultiStep(window=2), SGD(lr=0.1), steps=4, batch=2)"
    problem = ms.Problem(lambda meta, task: meta, ms.every_window(lambda p, m, b: p), lambda p, m, t: p)
    assert repr(ms.MetaGradient(problem, ms.MAML(), ms.Adam(lr=0.1), steps=2)).startswith("MetaGradient(Problem(…), ")


def test_a_gradient_does_not_change() -> None:
    lengths = [2, 2]
    gradient = ms.MetaGradient(ms.few_shot(NET, F.mse_loss), ms.MAML(), ms.SGD(lr=0.1), steps=lengths)
    with pytest.raises(FrozenInstanceError):
        gradient.steps = 3  # type: ignore[misc]
    lengths.append(1)
    assert gradient.steps == (2, 2)
    assert replace(gradient, steps=8).loop.lengths == (1,) * 8


def through_pickle(gradient: ms.MetaGradient) -> ms.MetaGradient:
    made: ms.MetaGradient = pickle.loads(pickle.dumps(gradient))
    return made


COPIES: dict[str, Callable[[Any], Any]] = {"pickle": through_pickle, "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("name", METHODS)
def test_a_copy_gives_the_same_meta_gradient(name: str, way: str) -> None:
    made = ms.methods.ANIL(head="2.") if name == "anil" else method(name)
    gradient = ms.MetaGradient(ms.few_shot(tanh_net(), F.mse_loss), made, ms.SGD(lr=0.1), steps=3)
    if name in ("maml_pp",):
        gradient = replace(gradient, steps=4)
    meta, other = gradient.init(NET), COPIES[way](gradient)
    torch.manual_seed(0)
    expected = gradient(meta, TASKS)
    torch.manual_seed(0)
    found = other(meta, TASKS)
    assert torch.equal(found.loss, expected.loss)
    assert relative_error(found.grad, expected.grad) == 0
    assert repr(other) == repr(gradient)


class Holder(nn.Module):
    """As a LightningModule holds both, and so does a copy for an average of weights"""

    def __init__(self) -> None:
        super().__init__()
        self.net = tanh_net()
        self.gradient = gradient_of(self.net)


class Itself(nn.Module):
    """A module that holds the description of its own learning"""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 2, dtype=torch.float64))
        self.gradient = ms.MetaGradient(ms.few_shot(self, F.mse_loss), ms.MAML(), ms.SGD(lr=0.1), steps=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copy_of_a_module_and_its_gradient_belong_together(way: str) -> None:
    holder, itself = COPIES[way](Holder()), COPIES[way](Itself())
    assert holder.gradient.problem.made_of.module is holder.net
    assert itself.gradient.problem.made_of.module is itself
    original = Itself()
    with torch.no_grad():
        itself.weight.mul_(2)
    assert relative_error(itself.gradient(original, TASKS).grad, original.gradient(original, TASKS).grad) == 0


def test_the_problems_of_the_tests_are_copied_though_they_are_made_of_local_functions() -> None:
    for name in PROBLEMS:
        problem, meta, tasks = case(name)
        gradient = ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=2)
        assert relative_error(copy.deepcopy(gradient)(meta, tasks).grad, gradient(meta, tasks).grad) == 0


def local_net() -> nn.Module:
    class Local(nn.Linear):
        pass

    return Local(2, 1)


def locally(**parts: Any) -> ms.MetaGradient:
    given = {"net": nn.Linear(2, 1), "loss": F.mse_loss, "method": ms.MAML(), "inner": ms.SGD(lr=0.1), **parts}
    return ms.MetaGradient(ms.few_shot(given["net"], given["loss"]), given["method"], given["inner"], steps=2)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"loss": lambda out, y: (out - y).square().mean()}, "the loss of this FewShot cannot be pickled"),
        ({"net": local_net()}, "the module of this FewShot cannot be pickled"),
        ({"inner": ms.SGD(lr=lambda meta, step: 0.1)}, "the inner of this MetaGradient cannot be pickled"),
        ({"method": ms.methods.ANIL(head=lambda name: True)}, "the method of this MetaGradient cannot be pickled"),
    ],
    ids=["loss", "module", "inner", "method"],
)
def test_what_does_not_pickle_is_named(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(MetastepError, match=rf"{message} \(.*\)\. Define its functions and classes at the top level"):
        pickle.dumps(locally(**parts))
    copy.deepcopy(locally(**parts))


def test_an_own_problem_that_does_not_pickle_is_named() -> None:
    problem = ms.Problem(lambda meta, task: meta, ms.every_window(lambda p, m, b: p), lambda p, m, t: p)
    with pytest.raises(MetastepError, match="the problem of this MetaGradient cannot be pickled"):
        pickle.dumps(ms.MetaGradient(problem, ms.MAML(), ms.SGD(lr=0.1), steps=2))
