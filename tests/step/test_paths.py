"""Which way the meta-gradient is computed, and that every way gives the same."""

from typing import Any

import pytest
import torch
from metastep.step.paths import in_one_pass, mapped, operators_for
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import metastep as ms
from metastep.core.curvature import exact_forward
from metastep.core.trees import map_tree
from metastep.step.chain.chain import chain_of
from tests.core.helpers import relative_error
from tests.step.chain.helpers import Net, close

NET = Net()


def head(name: str) -> bool:
    return name.startswith("3")


SERVED: list[tuple[Any, dict[str, Any]]] = [
    (ms.maml, {}),
    (ms.multi_step, {"window": 2}),
    (ms.truncated, {"depth": 1}),
    (ms.fo_maml, {}),
    (ms.reptile, {}),
    (ms.maml, {"curvature": ms.exact}),
    (ms.imaml, {}),
    (ms.imaml, {"strength": 0.5, "solver": ms.conjugate_gradient(3), "window": 2}),
    (ms.imaml, {"strength": 0.5, "free": True}),
]


@pytest.mark.parametrize(("method", "options"), SERVED)
def test_what_is_written_out_by_hand_equals_the_mapped(method: Any, options: dict[str, Any]) -> None:
    module, tasks, dynamics = NET.build(), NET.tasks(), ms.SGD(0.1, momentum=0.9)
    gradient = ms.meta_gradient(module, method, dynamics, 4, NET.size, **options)
    assert gradient.path == "derivatives by hand, in PyTorch (float64)"
    other = mapped(gradient.estimator, torch.device("cpu"), None, "to compare")
    assert other.path == "autograd, mapped over 4 tasks at a time: to compare"
    found, expected = (way(ms.parameters(module), tasks) for way in (gradient, other))
    close(found.grad, expected.grad, 1e-9)
    close(found.loss, expected.loss, 1e-9)


@pytest.mark.parametrize(("method", "options"), SERVED)
def test_mini_batches_of_the_support_are_the_same_either_way(method: Any, options: dict[str, Any]) -> None:
    net = Net(ways=5, shots=2)
    module, tasks = net.build(), net.tasks()
    dynamics = ms.Adam(0.02, betas=(0.0, 0.999), eps=1e-4)
    gradient = ms.meta_gradient(module, method, dynamics, 5, net.size, batch=4, **options)  # 4, 3 and 3 pictures
    assert gradient.path == "derivatives by hand, in PyTorch (float64)"
    problem = ms.few_shot(module, cross_entropy)
    expected = ms.over_tasks(method(ms.in_batches(problem, 4), dynamics, 5, **options))
    meta = ms.parameters(module)
    found, whole = gradient(meta, tasks), ms.over_tasks(method(problem, dynamics, 5, **options))(meta, tasks)
    close(found.grad, expected(meta, tasks).grad, 1e-9)
    close(found.loss, expected(meta, tasks).loss, 1e-9)
    assert relative_error(found.grad, whole.grad) > 1e-3


@pytest.mark.parametrize(
    ("method", "dynamics", "options", "reason"),
    [
        (ms.imaml, ms.SGD(0.1), {"solver": ms.neumann(3, 0.1)}, "another solver was asked for, which may mix tasks"),
        (ms.hf_maml, ms.SGD(0.1), {}, "hf_maml is not written out by hand"),
        (ms.anil, ms.SGD(0.1), {"head": head}, "anil is not"),
        (ms.maml, ms.SGD(0.1), {"curvature": exact_forward}, "another curvature"),
        (ms.maml, ms.SGD(lambda meta, step: 0.1), {}, "inner rates are not one number each"),
        (ms.maml, ms.StepFunction(lambda p, m, g, meta, t: (p, m)), {}, "StepFunction may look at several entries"),
    ],
)
def test_what_is_not_is_mapped_and_says_why(
    method: Any, dynamics: ms.InnerOptimizer, options: dict[str, Any], reason: str
) -> None:
    path = ms.meta_gradient(NET.build(), method, dynamics, 2, NET.size, **options).path
    assert path.startswith("autograd, mapped over 4 tasks at a time: ")
    assert reason in path


def test_other_nets_are_mapped() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()
    gradient = ms.meta_gradient(net, ms.maml, ms.SGD(0.1), 2, 8, chunk_size=1)
    assert gradient.path == "autograd, mapped over 1 tasks at a time: Flatten → Linear is no block of a chain"
    assert torch.isfinite(gradient(ms.parameters(net), NET.tasks()).loss)
    assert "parameters are torch.bfloat16" in ms.meta_gradient(NET.build().bfloat16(), ms.maml, ms.SGD(0.1), 2, 8).path


def test_numbers_that_are_not_finite_are_named() -> None:
    module, tasks = NET.build(), NET.tasks()
    tasks.support[0][1] = torch.inf
    gradient = ms.meta_gradient(module, ms.maml, ms.SGD(0.1), 2, NET.size)
    with pytest.raises(ms.NonFiniteError, match="task 1: the inner gradient of window 0"):
        gradient(ms.parameters(module), tasks)


class OnGpu(Tensor):
    """What a test without a GPU can show"""

    is_cuda = True


def on_gpu(dtype: torch.dtype) -> Tensor:
    return torch.zeros(1, dtype=dtype).as_subclass(OnGpu)


def test_operators_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(NET.build(), NET.size)
    assert operators_for(chain, on_gpu(torch.float64))[1] == "in PyTorch (float64)"
    monkeypatch.setattr("metastep.step.paths.find_spec", lambda name: None)
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
@pytest.mark.parametrize(("method", "options"), SERVED)
def test_kernels_on_a_gpu_equal_the_mapped(method: Any, options: dict[str, Any], net: Net) -> None:
    """Few and small maps: of many, some entry is so near to 0 that float32 finds it on the other side"""
    decay = 0.0 if method is ms.imaml else 1e-4
    module, dynamics = net.build(), ms.SGD(0.01, momentum=0.9, weight_decay=decay)
    problem = ms.few_shot(module, cross_entropy)
    expected = ms.over_tasks(method(problem, dynamics, 4, **options))(ms.parameters(module), net.tasks())
    module = module.float().cuda()
    gradient = ms.meta_gradient(module, method, dynamics, 4, net.size, **options)
    assert "Triton kernels (float32)" in gradient.path
    tasks = map_tree(lambda x: x.cuda().float() if x.is_floating_point() else x.cuda(), net.tasks())
    found = gradient(ms.parameters(module), tasks).grad
    for name, value in expected.grad.items():
        if not name.endswith("0.bias"):  # before BatchNorm: 0 by hand, rounding by autograd
            assert (found[name].cpu() - value).norm() <= 3e-4 * value.norm(), name


# ---- what the derivatives by hand count on


def both_ways(net: Net, batch: int | None = None) -> tuple[Any, Any, Any, ms.Task]:
    """By hand and mapped, θ and tasks"""
    module = net.build()
    gradient = ms.meta_gradient(module, ms.maml, ms.SGD(0.1), 3, net.size, batch=batch)
    assert gradient.path.startswith("derivatives by hand")
    return gradient, ms.over_tasks(gradient.estimator), ms.parameters(module), net.tasks()


def test_parameters_may_come_in_any_order() -> None:
    gradient, other, meta, tasks = both_ways(NET)
    for given in (meta, dict(reversed(meta.items()))):  # after the first call, too
        found, expected = gradient(given, tasks), other(given, tasks)
        assert list(found.grad) == list(given)
        close(found.grad, expected.grad, 1e-9)


def test_tasks_may_be_a_list() -> None:
    gradient, other, meta, tasks = both_ways(NET)
    listed = [map_tree(lambda x, i=i: x[i], tasks) for i in range(len(tasks.query[1]))]
    close(gradient(meta, listed).grad, other(meta, tasks).grad, 1e-9)


@pytest.mark.parametrize("batch", [1, 2])
def test_one_picture_at_a_time_goes_through_pooling(batch: int) -> None:
    net = Net(ways=2, shots=2, size=8, filters=(4, 4), stride=1, pool=2)
    gradient, other, meta, tasks = both_ways(net, batch)
    close(gradient(meta, tasks).grad, other(meta, tasks).grad, 1e-9)


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
        (lambda meta, tasks: (NET.build(), tasks), r"meta: Sequential.*parameters\(module\)"),
        (lambda meta, tasks: (meta, of_kind(tasks, torch.uint8)), "pictures are torch.uint8.*divide by 255"),
        (lambda meta, tasks: (meta, of_kind(tasks, torch.float32)), r"x\.to\(torch.float64\)"),
        (lambda meta, tasks: (meta, map_tree(lambda x: x.numpy(), tasks)), r"pictures: ndarray.*torch\.as_tensor"),
        (lambda meta, tasks: (meta, with_labels(tasks, -100)), "labels from -100 to"),
        (lambda meta, tasks: (meta, with_labels(tasks, 99)), "to 99: they must be from 0 to"),
        (lambda meta, tasks: (meta, map_tree(lambda x: x[:0], tasks)), "there is no task"),
        (lambda meta, tasks: (meta, map_tree(lambda x: x[:, :0], tasks)), "0 pictures, which leave a BatchNorm"),
    ],
)
def test_what_is_not_served_is_refused(change: Any, reason: str) -> None:
    gradient, _, meta, tasks = both_ways(NET)
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
    gradient, _, meta, tasks = both_ways(net)
    with pytest.raises(ms.MetastepError, match="fewer than two values for each channel"):
        gradient(meta, tasks)


@pytest.mark.parametrize(
    ("options", "reason"), [({"chunk_size": 0}, "chunk_size = 0"), ({"batch": -1}, "mini-batches of -1 pictures")]
)
def test_sizes_below_one_are_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(ms.MetastepError, match=reason):
        ms.meta_gradient(NET.build(), ms.maml, ms.SGD(0.1), 3, NET.size, **options)  # type: ignore[arg-type]
