"""Which engine computes a meta-gradient, and that every engine gives the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.core.trees import map_tree
from metastep.step.chain.chain import chain_of
from metastep.step.chain.serving import in_one_pass, operators_for
from metastep.step.mapped import mapped
from tests.core.helpers import relative_error
from tests.step.chain.helpers import Net, close

NET = Net()
BY_HAND = "derivatives by hand, in PyTorch (float64)"


def head(name: str) -> bool:
    return name.startswith("3")


def gradient_of(
    module: nn.Module, method: ms.methods.Method, inner: Any = None, steps: int = 4, **options: Any
) -> ms.MetaGradient:
    problem = ms.few_shot(module, cross_entropy, {"accuracy": ms.accuracy})
    return ms.MetaGradient(problem, method, inner or ms.SGD(0.1, momentum=0.9), steps=steps, **options)


def by_autograd(gradient: ms.MetaGradient, meta: Any, tasks: Any) -> ms.Estimate:
    return mapped(gradient.method, gradient.loop, None)(meta, tasks)


SERVED: list[ms.methods.Method] = [
    ms.MAML(),
    ms.MultiStep(window=2),
    ms.methods.Truncated(depth=1),
    ms.FOMAML(),
    ms.Reptile(),
    ms.MAML(curvature=ms.curvature.exact),
    ms.IMAML(),
    ms.IMAML(strength=0.5, solver=ms.solvers.ConjugateGradient(3), window=2),
    ms.IMAML(strength=0.5, free=True),
]


@pytest.mark.parametrize("method", SERVED, ids=repr)
def test_what_is_written_out_by_hand_equals_autograd(method: ms.methods.Method) -> None:
    module, tasks = NET.build(), NET.tasks()
    gradient = gradient_of(module, method)
    found, expected = gradient(module, tasks), by_autograd(gradient, ms.parameters(module), tasks)
    assert gradient.path == BY_HAND
    close(found.grad, expected.grad, 1e-9)
    close(found.loss, expected.loss, 1e-9)
    torch.testing.assert_close(found.metrics["accuracy"].float(), expected.metrics["accuracy"].float())


@pytest.mark.parametrize("method", SERVED, ids=repr)
def test_mini_batches_of_the_support_are_the_same_either_way(method: ms.methods.Method) -> None:
    net = Net(ways=5, shots=2)
    module, tasks = net.build(), net.tasks()
    inner = ms.Adam(0.02, betas=(0.0, 0.999), eps=1e-4)
    gradient = gradient_of(module, method, inner, 5, batch=4)  # 4, 3 and 3 pictures
    found, meta = gradient(module, tasks), ms.parameters(module)
    assert gradient.path == BY_HAND
    expected, whole = by_autograd(gradient, meta, tasks), by_autograd(replace(gradient, batch=None), meta, tasks)
    close(found.grad, expected.grad, 1e-9)
    close(found.loss, expected.loss, 1e-9)
    assert relative_error(found.grad, whole.grad) > 1e-3


@pytest.mark.parametrize(
    ("method", "inner", "reason"),
    [
        (
            ms.IMAML(solver=ms.solvers.Neumann(3, 0.1)),
            ms.SGD(0.1),
            "another solver was asked for, which may mix tasks",
        ),
        (ms.methods.HFMAML(), ms.SGD(0.1), "HFMAML is not written out by hand"),
        (ms.methods.ANIL(head=head), ms.SGD(0.1), "ANIL is not"),
        (ms.MAML(curvature=ms.curvature.exact_forward), ms.SGD(0.1), "another curvature"),
        (ms.MAML(), ms.SGD(lambda meta, step: 0.1), "inner rates are not one number each"),
        (ms.MAML(), ms.StepFunction(lambda p, m, g, meta, t: (p, m)), "StepFunction may look at several entries"),
    ],
)
@pytest.mark.filterwarnings("ignore:the meta-gradient is exactly 0")
def test_what_is_not_runs_by_autograd_and_says_why(method: ms.methods.Method, inner: Any, reason: str) -> None:
    gradient = gradient_of(NET.build(), method, inner, 2)
    gradient(gradient.problem.made_of.module, NET.tasks())
    assert gradient.path.startswith("autograd")
    assert reason in gradient.path


def test_other_nets_run_by_autograd() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    gradient = gradient_of(net, ms.MAML(), steps=2, chunk_size=1)
    assert torch.isfinite(gradient(net, NET.tasks()).loss)
    kept = "graphs of all windows kept"
    assert gradient.path == f"autograd, one task after the other, {kept}: Flatten → Linear is no block of a chain"


def test_numbers_that_are_not_finite_are_named() -> None:
    module, tasks = NET.build(), NET.tasks()
    tasks.support[0][1] = torch.inf
    with pytest.raises(ms.NonFiniteError, match="task 1: the inner gradient of window 0"):
        gradient_of(module, ms.MAML(), steps=2)(module, tasks)


class OnGpu(Tensor):
    """What a test without a GPU can show"""

    is_cuda = True


def on_gpu(dtype: torch.dtype) -> Tensor:
    return torch.zeros(1, dtype=dtype).as_subclass(OnGpu)


def test_operators_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(NET.build(), NET.size)
    assert operators_for(chain, on_gpu(torch.float64))[1] == "in PyTorch (float64)"
    monkeypatch.setattr("metastep.step.chain.serving.find_spec", lambda name: None)
    assert operators_for(chain, on_gpu(torch.float32))[1] == "in PyTorch: Triton is not installed"


def test_kernels_are_chosen_by_filters_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    sixteen = Net(filters=(16, 16))
    chain = chain_of(sixteen.build(), sixteen.size)
    assert operators_for(chain, on_gpu(torch.float32))[1] == "by Triton kernels (float32)"
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    assert operators_for(chain, on_gpu(torch.float32))[1] == "by Triton kernels (tf32)"
    four = chain_of(NET.build(), NET.size)
    assert operators_for(four, on_gpu(torch.float32))[1].startswith("in PyTorch: 4 filters")
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert operators_for(chain, on_gpu(torch.float32))[1] == "by Triton kernels (bf16)"
    assert type(in_one_pass(ms.SGD(0.1, momentum=0.9, nesterov=True))).__name__ == "FusedSGD"
    assert type(in_one_pass(ms.AdamW(0.1))).__name__ == "FusedAdam"


def test_dynamics_that_are_no_single_kernel_stay_as_they_are() -> None:
    for dynamics in (
        ms.SGD(0.1),
        ms.SGD(torch.tensor(0.1), momentum=0.9),
        ms.Adam(0.1, weight_decay=0.1),
        ms.RMSprop(),
    ):
        assert in_one_pass(dynamics) is dynamics


FOR_KERNELS = {
    "strided": Net(ways=5, size=14, filters=(16, 16, 16)),
    "pooled": Net(ways=5, channels=3, size=8, filters=(32, 32), stride=1, pool=2),
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("net", FOR_KERNELS.values(), ids=FOR_KERNELS)
@pytest.mark.parametrize("method", SERVED, ids=repr)
def test_kernels_on_a_gpu_equal_autograd(method: ms.methods.Method, net: Net) -> None:
    """Few and small maps: of many, some entry is so near to 0 that float32 finds it on the other side"""
    decay = 0.0 if isinstance(method, ms.IMAML) else 1e-4
    module, inner = net.build(), ms.SGD(0.01, momentum=0.9, weight_decay=decay)
    expected = by_autograd(gradient_of(module, method, inner), ms.parameters(module), net.tasks())
    module = module.float().cuda()
    gradient = gradient_of(module, method, inner)
    tasks = map_tree(lambda x: x.cuda().float() if x.is_floating_point() else x.cuda(), net.tasks())
    found = gradient(module, tasks).grad
    assert "Triton kernels (float32)" in gradient.path
    for name, value in expected.grad.items():
        if not name.endswith("0.bias"):  # before BatchNorm: 0 by hand, rounding by autograd
            assert (found[name].cpu() - value).norm() <= 3e-4 * value.norm(), name


# ---- what the derivatives by hand count on


def both_ways(net: Net, batch: int | None = None) -> tuple[ms.MetaGradient, Any, ms.Task]:
    """A gradient by hand, θ and tasks"""
    module = net.build()
    return gradient_of(module, ms.MAML(), ms.SGD(0.1), 3, batch=batch), ms.parameters(module), net.tasks()


def require_equal(gradient: ms.MetaGradient, meta: Any, tasks: Any, stacked: Any = None) -> None:
    found, expected = gradient(meta, tasks), by_autograd(gradient, meta, tasks if stacked is None else stacked)
    assert gradient.path == BY_HAND
    assert list(found.grad) == list(meta)
    close(found.grad, expected.grad, 1e-9)


def test_parameters_may_come_in_any_order() -> None:
    gradient, meta, tasks = both_ways(NET)
    for given in (meta, dict(reversed(meta.items()))):  # after the first call, too
        require_equal(gradient, given, tasks)


def test_tasks_may_be_a_list() -> None:
    gradient, meta, tasks = both_ways(NET)
    listed = [map_tree(lambda x, i=i: x[i], tasks) for i in range(len(tasks.query[1]))]
    require_equal(gradient, meta, listed, tasks)


@pytest.mark.parametrize("batch", [1, 2])
def test_one_picture_at_a_time_goes_through_pooling(batch: int) -> None:
    require_equal(*both_ways(Net(ways=2, shots=2, size=8, filters=(4, 4), stride=1, pool=2), batch))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda meta, tasks: ({**meta, "more": torch.zeros(1)}, tasks), "only in meta: 'more'"),
        (lambda meta, tasks: (dict(list(meta.items())[1:]), tasks), "only in the module: '0.0.weight'"),
        (
            lambda meta, tasks: ({**meta, "3.bias": torch.zeros(7)}, tasks),
            r"'3.bias' is \(3,\) in the module and \(7,\)",
        ),
        (lambda meta, tasks: (list(meta.values()), tasks), "only in meta: '0', '1', '2' and"),
        (lambda meta, tasks: (meta, of_kind(tasks, torch.uint8)), "pictures are torch.uint8.*Divide bytes by 255"),
        (lambda meta, tasks: (meta, of_kind(tasks, torch.float32)), r"x\.to\(torch.float64\)"),
        (lambda meta, tasks: (meta, map_tree(lambda x: x.numpy(), tasks)), r"tasks: ndarray.*torch\.as_tensor"),
        (lambda meta, tasks: (meta, with_labels(tasks, -100)), "labels from -100 to"),
        (lambda meta, tasks: (meta, with_labels(tasks, 99)), "to 99 must be from 0 to"),
        (lambda meta, tasks: (meta, map_tree(lambda x: x[:0], tasks)), "there is no task"),
        (lambda meta, tasks: (meta, map_tree(lambda x: x[:, :0], tasks)), "0 pictures, which leave a BatchNorm"),
    ],
)
def test_what_is_not_served_is_refused(change: Any, reason: str) -> None:
    gradient, meta, tasks = both_ways(NET)
    with pytest.raises(ms.MetastepError, match=reason):
        gradient(*change(meta, tasks))


def of_kind(tasks: ms.Task, dtype: torch.dtype) -> ms.Task:
    return ms.Task(*((x.to(dtype), y) for x, y in tasks))


def with_labels(tasks: ms.Task, label: int) -> ms.Task:
    x, y = tasks.query
    y = y.clone()
    y[0, 0] = label
    return tasks._replace(query=(x, y))


def test_a_channel_of_one_value_has_no_variance() -> None:
    net = Net(ways=1, shots=1, size=3, filters=(4,), padding=0)  # one picture, of which one position is left
    gradient, meta, tasks = both_ways(net)
    with pytest.raises(ms.MetastepError, match="fewer than two values for each channel"):
        gradient(meta, tasks)


@pytest.mark.parametrize(
    ("options", "reason"), [({"chunk_size": 0}, "chunk_size = 0"), ({"batch": -1}, "batch = -1 must be")]
)
def test_sizes_below_one_are_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ms.MetastepError, match=reason):
        gradient_of(NET.build(), ms.MAML(), **options)
