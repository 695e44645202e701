"""Wrong use, as people type it: the message says what was given, and what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import metastep as ms

NET = nn.Linear(2, 3)
PROBLEM, MAML, SGD = ms.few_shot(NET, F.cross_entropy), ms.MAML(), ms.SGD(lr=0.1)
GRADIENT = ms.MetaGradient(PROBLEM, MAML, SGD, steps=2)
BATCH = torch.randn(4, 6, 2), torch.randint(3, (4, 6))
TASKS = ms.Task(BATCH, BATCH)
ONE = ms.Task((BATCH[0][0], BATCH[1][0]), (BATCH[0][0], BATCH[1][0]))


def described(problem: Any = PROBLEM, method: Any = MAML, inner: Any = SGD, **options: Any) -> Any:
    return ms.MetaGradient(problem, method, inner, **{"steps": 2, **options})


def outer() -> torch.optim.Optimizer:
    return torch.optim.Adam(NET.parameters(), lr=1e-3)


def stepped(gradient: Any = GRADIENT, meta: Any = NET, optimizer: Any = None, **options: Any) -> Any:
    return ms.MetaStep(gradient, meta, optimizer or outer(), **options)


PROBLEMS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a module": (lambda: described(NET), ["Linear is a module, not a problem", "ms.few_shot(net, "]),
    "the class of a module": (lambda: described(nn.Linear), ["Linear is a class", "ms.few_shot(net, "]),
    "the class Problem": (lambda: described(ms.Problem), ["Problem is a class", "ms.few_shot(net, "]),
    "a description": (lambda: described(ms.problems.FewShot(NET, F.cross_entropy)), ["ms.few_shot(module, loss)"]),
    "a loss": (lambda: described(F.cross_entropy), ["function is not a problem", "ms.few_shot(module, loss)"]),
    "a name": (lambda: described("few_shot"), ["str is not a problem", "ms.Problem"]),
    "a method": (lambda: described(MAML, PROBLEM), ["MAML() is a method where the problem", "ms.MetaGradient(problem"]),
    "an optimizer": (lambda: described(SGD), ["is an inner optimizer where the problem belongs"]),
    "a class for a net": (lambda: ms.few_shot(nn.Linear, F.cross_entropy), ["is the class. Call it: Linear(…)"]),
    "a net for a loss": (lambda: ms.few_shot(F.cross_entropy, NET), ["is not an nn.Module"]),
    "a class for a loss": (lambda: ms.few_shot(NET, nn.CrossEntropyLoss), ["Call it: CrossEntropyLoss()"]),
    "a loss by name": (lambda: ms.few_shot(NET, "cross_entropy"), ["the loss is 'cross_entropy'", "functional"]),
    "no name for a metric": (lambda: ms.few_shot(NET, F.cross_entropy, ms.accuracy), ['{"accuracy": ms.accuracy}']),
    "no function for windows": (lambda: ms.every_window(3), ["the loss of the windows is 3", "(params, meta, batch)"]),
}
METHODS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "swapped": (lambda: described(method=SGD, inner=MAML), ["an inner optimizer where the method belongs", "Write"]),
    "a class": (lambda: described(method=ms.MAML), ["MAML is the class. Call it: ms.MAML()."]),
    "a class with a needed option": (lambda: described(method=ms.MultiStep), ["Call it: ms.MultiStep(window=…)."]),
    "a class one level down": (lambda: described(method=ms.methods.ANIL), ["Call it: ms.methods.ANIL()."]),
    "a name": (lambda: described(method="maml"), ["method = 'maml' is a name. Give what it names: ms.MAML()."]),
    "a wrong name": (lambda: described(method="mamml"), ["names nothing", "mean 'maml'?", "ms.MultiStep(window=4)"]),
    "nothing": (lambda: described(method=None), ["method = None must be a method", "ms.MAML()"]),
    "a class of something else": (lambda: described(method=nn.Linear), ["must be a method", "ms.MAML()"]),
    "a type of Python": (lambda: described(method=int), ["method = <class 'int'> must be a method", "ms.MAML()"]),
    "a curvature": (lambda: described(method=ms.curvature.exact), ["must be a method", "ms.MetaGradient(problem, "]),
    "lr": (lambda: ms.MAML(lr=0.1), ["MAML has no option 'lr'", "inner optimizer: ms.SGD(lr=0.1)"]),
    "steps": (lambda: ms.MultiStep(steps=4), ["no option 'steps'", "belong to the MetaGradient", "window, curv"]),
    "no window": (lambda: ms.MultiStep(), ["MultiStep: missing a required argument: 'window'"]),
    "window 0": (lambda: ms.MultiStep(window=0), ["window = 0 must be at least 1"]),
    "window as text": (lambda: ms.MultiStep(window="4"), ["window = '4' must be a whole number"]),
    "an inner optimizer in it": (lambda: ms.MultiStep(4, SGD), ["must be a function", "belongs to the MetaGradient"]),
    "all in it": (lambda: ms.MAML(PROBLEM, SGD, 5), ["MAML: too many positional arguments"]),
    "a curvature by name": (lambda: ms.MAML(curvature="exact"), ["curvature = 'exact'", "Give ms.curvature.exact."]),
    "a curvature by class": (
        lambda: ms.MAML(curvature=ms.curvature.CentralDifference), ["is the class. Call it: ms.curvature.CentralDiffer"]
    ),
    "a solver by name": (lambda: ms.IMAML(solver="cg"), ["solver = 'cg'", "Give ms.solvers.ConjugateGradient()."]),
    "a solver by number": (lambda: ms.IMAML(solver=5), ["solver = 5 must be a function"]),
}  # fmt: skip
INNER: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a method": (lambda: described(inner=MAML), ["MAML() is a method where the inner optimizer belongs", "Write ms."]),
    "a class": (lambda: described(inner=ms.SGD), ["SGD is the class. Call it: ms.SGD(lr=…)."]),
    "a class of torch": (lambda: described(inner=torch.optim.SGD), ["class of torch.optim", "Use ms.SGD(lr=…)."]),
    "a name": (lambda: described(inner="sgd"), ["inner = 'sgd' is a name. Give what it names: ms.SGD(lr=…)."]),
    "a wrong name": (lambda: described(inner="sdg"), ["names nothing", "such as ms.SGD(lr=0.1)"]),
    "a number": (lambda: described(inner=0.1), ["0.1 is not an inner optimizer", "write ms.SGD(lr=0.1)"]),
    "a type of Python": (lambda: described(inner=int), ["<class 'int'> is not an inner optimizer", "ms.SGD(lr=…)"]),
}
DOOR: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "no problem": (
        lambda: ms.MetaGradient(MAML, SGD, steps=3),
        ["missing a required argument", "Write ms.MetaGradien"],
    ),
    "no steps": (lambda: ms.MetaGradient(PROBLEM, MAML, SGD), ["missing a required argument: 'steps'"]),
    "steps by place": (lambda: ms.MetaGradient(PROBLEM, MAML, SGD, 5), ["too many positional", "steps=5)"]),
    "steps 0": (lambda: described(steps=0), ["steps = 0 must be at least 1"]),
    "steps 2.0": (lambda: described(steps=2.0), ["steps = 2.0 must be a whole number"]),
    "steps as text": (lambda: described(steps="5"), ["steps = '5' must be a whole number"]),
    "window": (lambda: described(window=2), ["no option 'window'", "belongs to the method: ms.MultiStep(window=4)"]),
    "lr": (lambda: described(lr=0.1), ["no option 'lr'", "belongs to the inner optimizer"]),
    "another spelling": (lambda: described(chunksize=2), ["Did you mean 'chunk_size'?"]),
    "batch 0": (lambda: described(batch=0), ["batch = 0 must be a whole number that is at least 1"]),
    "tasks first": (lambda: GRADIENT(TASKS, NET), ["meta is a Task", "(meta, tasks), in this order"]),
    "tasks first, no Task": (lambda: GRADIENT(BATCH, NET), ["tasks is a module, Linear", "(meta, tasks), in this"]),
    "tasks first to the loss": (lambda: GRADIENT.loss(TASKS, NET), ["(meta, tasks), in this order"]),
    "tasks first to judge": (lambda: GRADIENT.judge(TASKS, NET), ["(meta, tasks), in this order"]),
    "tasks first to adapt": (lambda: GRADIENT.adapt(ONE, NET), ["(meta, tasks), in this order"]),
    "one task": (lambda: GRADIENT(NET, ONE), ["each of these 6 has one target and no axis of examples", "[task]"]),
    "no tasks": (lambda: GRADIENT(NET, None), ["tasks: NoneType, where tensors are needed"]),
    "a tuple": (lambda: GRADIENT(NET, (BATCH, BATCH)), ["given as a tuple", "ms.Task(support, query)"]),
    "a list for meta": (lambda: GRADIENT(list(NET.parameters()), TASKS), ["not θ of this Linear", "ms.parameters("]),
    "a generator for meta": (lambda: GRADIENT(NET.parameters(), TASKS), ["meta has generator", "ms.parameters(net)"]),
    "a class for meta": (lambda: GRADIENT(nn.Linear, TASKS), ["meta has type", "Give a module"]),
    "a flag to keep": (lambda: GRADIENT(NET, TASKS, keep=True), ['keep = True must be "params"']),
}
STEPS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "an inner optimizer": (lambda: stepped(optimizer=SGD), ["SGD is not an optimizer of torch", "torch.optim.Adam("]),
    "a class": (lambda: stepped(optimizer=torch.optim.Adam), ["Adam is the class", "torch.optim.Adam(ms.trees.leaves"]),
    "a name": (lambda: stepped(optimizer="adam"), ["str is not an optimizer of torch.optim"]),
    "a problem": (lambda: stepped(PROBLEM), ["Problem is not a MetaGradient. Write ms.MetaStep(gradient, meta, "]),
    "meta first": (lambda: ms.MetaStep(NET, GRADIENT, outer()), ["Linear is not a MetaGradient"]),
    "optimizer before meta": (lambda: ms.MetaStep(GRADIENT, outer(), NET), ["meta is a Adam", "module or a tree"]),
    "no optimizer": (lambda: ms.MetaStep(GRADIENT, NET), ["missing a required argument: 'optimizer'"]),
    "another net's": (
        lambda: stepped(optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters())), ["does not hold", "ms.trees.leaves(m"]
    ),
    "another spelling": (lambda: stepped(clip_norm=1.0), ["no option 'clip_norm'. Did you mean 'clip'?"]),
    "clip 0": (lambda: stepped(clip=0), ["clip = 0 must be a number that is above 0"]),
    "a scheduler's class": (
        lambda: stepped(scheduler=torch.optim.lr_scheduler.StepLR), ["has no step()", "torch.optim.lr_scheduler"]
    ),
    "meta and tasks": (lambda: stepped()(NET, TASKS), ["knows its meta: call step(tasks)"]),
    "one task": (lambda: stepped()(ONE), ["each of these 6 has one target and no axis of examples", "[task]"]),
    "meta alone": (lambda: stepped()(NET), ["knows its meta: call step(tasks)"]),
    "nothing": (lambda: stepped()(), ["no tasks were given: call step(tasks)"]),
}  # fmt: skip
OTHERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "parameters of a class": (lambda: ms.parameters(nn.Linear), ["Linear is the class", "net = Linear(…)"]),
    "parameters of text": (lambda: ms.parameters("net"), ["str is not an nn.Module. Write ms.parameters(net)."]),
    "apply, swapped": (lambda: ms.apply(ms.parameters(NET), NET, BATCH[0]), ["dict is", "ms.apply(net, params, x)"]),
    "as_module, swapped": (lambda: ms.as_module(ms.parameters(NET), NET), ["dict is", "ms.as_module(net, params)"]),
    "statistics of parameters": (lambda: ms.use_batch_statistics(ms.parameters(NET)), ["dict is not an nn.Module"]),
    "compare a list": (lambda: ms.compare([GRADIENT], NET, TASKS), ["methods is a list", '{"MAML": ms.MetaGradient']),
    "compare a method": (lambda: ms.compare({"a": MAML}, NET, TASKS), ["methods['a'] is MAML(), not a MetaGradient"]),
    "compare, swapped": (lambda: ms.compare({"a": GRADIENT}, TASKS, NET), ["(meta, tasks), in this order"]),
    "differences by a method": (
        lambda: ms.gradient_difference(PROBLEM, MAML, 3), ["MAML() is not an inner optimizer", "ms.SGD(lr=…)"]
    ),
    "differences, swapped": (
        lambda: ms.gradient_difference(PROBLEM, SGD, 2)(TASKS, NET), ["(meta, tasks), in this order"]
    ),
    "no such kind": (lambda: ms.register("optimiser", "x"), ["Did you mean 'optimizer'?"]),
    "a name that is none": (lambda: ms.register("net", 3), ["name = 3 must be text"]),
    "a value to register": (lambda: ms.register("optimizer", "x")(SGD), ["is a value", "@ms.register("]),
}  # fmt: skip


TABLES = {"problem": PROBLEMS, "method": METHODS, "inner": INNER, "door": DOOR, "step": STEPS, "other": OTHERS}
WRONG = {f"{table}: {name}": row for table, rows in TABLES.items() for name, row in rows.items()}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_says_what_to_write(name: str) -> None:
    wrong, words = WRONG[name]
    with pytest.raises(ms.MetastepError) as caught:
        wrong()
    for said in words:
        assert said in str(caught.value)


def test_a_name_one_level_down_is_said() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Truncated'. It is ms.methods.Truncated"):
        _ = ms.Truncated
    with pytest.raises(AttributeError, match=r"no attribute 'MAMLL'$") as caught:
        _ = ms.MAMLL
    assert (caught.value.name, caught.value.obj) == ("MAMLL", ms)  # Python suggests a near name by these


def test_a_net_is_a_meta_wherever_one_is_taken() -> None:
    assert ms.compare({"a": GRADIENT}, NET, TASKS, repeats=1)[0].cosine == pytest.approx(1)
    assert ms.gradient_difference(PROBLEM, SGD, 2)(NET, TASKS).shape == (4, 2)
    assert GRADIENT(NET, [ONE]).metrics["loss"].shape == (1,)
