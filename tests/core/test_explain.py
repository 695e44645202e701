"""What PyTorch cannot do with a program, as people write it: the error says what helps, and that does."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import metastep as ms
from metastep.core.tasks import stack
from metastep.core.trees import map_tree
from tests.core.as_written import gradient_of
from tests.core.helpers import first, randn, relative_error
from tests.core.test_errors import TASKS, UNIT, Around, Looking, linear, looking, mapped, refused


def of_loss(loss: Any, module: nn.Module, batch: Any, curvature: Any = ms.curvature.exact, mapped: bool = False) -> Any:
    """A loss(module, params, batch) of one's own, inside and outside"""
    own = ms.Problem(
        lambda meta, task: meta,
        ms.every_window(lambda params, meta, batch: loss(module, params, batch)),
        lambda params, meta, task: loss(module, params, task.query),
    )
    return of_task(gradient_of(own, 2, ms.MAML(curvature)), module, ms.Task(batch, batch), mapped)


def of_task(gradient: Any, module: nn.Module, task: ms.Task, mapped: bool) -> Any:
    meta = ms.parameters(module)
    return replace(gradient, chunk_size=2)(meta, [task, task]) if mapped else gradient.estimator(meta, task)


def by_functional_call(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    out = functional_call(module, params, (x,))
    return (out[0] if isinstance(out, tuple) else out).square().mean()  # type: ignore[no-any-return]


def by_apply(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    out = ms.apply(module, params, x)
    return (out[0] if isinstance(out, tuple) else out).square().mean()  # type: ignore[no-any-return]


class Flash(nn.Module):
    """Chooses its kernel itself"""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)


def slope_by_autograd(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    (slope,) = torch.autograd.grad(ms.apply(module, params, x).sum(), x, create_graph=True)
    return slope.square().mean()


def slope_of_a_leaf(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    return slope_by_autograd(module, params, x.detach().requires_grad_())


def slope_by_backward(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
    ms.apply(module, params, x).sum().backward()
    return x.grad.square().mean()  # type: ignore[union-attr]


def remembered() -> Any:
    kept: list[torch.Tensor] = []

    def loss(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
        kept.append(ms.apply(module, params, x).mean())
        return sum(kept[-2:]).square()  # type: ignore[union-attr]

    return loss


class Words(nn.Module):
    """As models of transformers are: inputs and results by name"""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4, **options), nn.Linear(4, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
        mask = 1 if attention_mask is None else attention_mask.unsqueeze(-1)
        return TextOutput(logits=self.head((self.embedding(input_ids) * mask).mean(1)))


class TextOutput(OrderedDict[str, torch.Tensor]):
    pass


class ByName(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model(**batch)


def of_words(net: nn.Module, x: Any, mapped: bool = False, loss: Any = lambda p, y: p["logits"].mean()) -> Any:
    return of_task(gradient_of(ms.few_shot(net, loss)), net, ms.Task((x, LABELS), (x, LABELS)), mapped)


ATTENTION, LSTM = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.LSTM(4, 4, batch_first=True)
SEQUENCE = torch.linspace(-1, 1, 24).reshape(2, 3, 4)
WORDS, LABELS = torch.arange(6).reshape(2, 3), torch.arange(2)
NAMED = {"input_ids": WORDS, "attention_mask": torch.ones(2, 3)}


def padded(**options: Any) -> Any:
    """A transformer that is judged as it is used, with a padding mask"""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1, **options)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.encoder(x, src_key_padding_mask=mask).mean(1)  # type: ignore[no-any-return]

    net, x = Padded().eval(), (torch.randn(2, 3, 4), torch.tensor([[False, False, True]] * 2))
    return of_words(net, x, True, lambda p, y: F.cross_entropy(p, y))


def measured_by_an_if() -> Any:
    """By a method that measures outside of any derivative"""
    net = nn.Linear(2, 1).double()
    problem = ms.few_shot(net, F.mse_loss, {"above": lambda p, y: torch.ones(()) if p.sum() > 0 else torch.zeros(())})
    return gradient_of(problem, 2, ms.Reptile())(net, TASKS)


def compiled_apart() -> Any:
    net = nn.Linear(2, 1).double()
    problem = ms.few_shot(torch.compile(net, backend="eager"), F.mse_loss)  # type: ignore[arg-type]
    return gradient_of(problem).estimator(ms.parameters(net), first(TASKS))


BAD: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "item": (lambda: looking(lambda x: x.max().item()), [".item()", "vmap", "torch.where", "chunk_size=1"]),
    "if": (lambda: looking(lambda x: 1.0 if x.sum() > 0 else -1.0), ["or an if", "vmap", "chunk_size=1"]),
    "a mask": (lambda: looking(lambda x: x[x > 0].mean()), ["indexing with a boolean mask", "vmap"]),
    "an array on the way": (lambda: looking(lambda x: float(x.numpy().max())), [".numpy()", "ms.apply("]),
    "no batching rule": (
        lambda: mapped(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 1).double())),
        ["the operator div.out", "vmap", "spectral_norm", "module.eval()"],
    ),
    "several devices": (lambda: ms.few_shot(nn.DataParallel(UNIT), F.mse_loss), ["DataParallel 'itself'", ".module,"]),
    "a part for several devices": (
        lambda: ms.apply(nn.Sequential(nn.DataParallel(UNIT)), {}, torch.ones(1, 1)), ["DataParallel '0'", "all_reduce"]
    ),
    "a scripted module": (
        lambda: ms.few_shot(torch.jit.script(UNIT), F.mse_loss), ["ScriptModule 'itself'", "scripted or traced from"]
    ),
    "a part that is scripted": (
        lambda: of_loss(by_apply, nn.Sequential(torch.jit.script(UNIT)), torch.ones(1, 1)), ["ScriptModule '0'"]
    ),
    "a scripted module, called otherwise": (
        lambda: of_loss(by_functional_call, torch.jit.script(UNIT), torch.ones(1, 1)),
        ["torch.jit", "ms.apply(module, params, x)"],
    ),
    "theta of what was compiled": (compiled_apart, ["_orig_mod.", "compile the step"]),
    "a fused recurrence, forward mode": (
        lambda: of_loss(by_functional_call, LSTM, SEQUENCE, ms.curvature.exact_forward), ["mkldnn_rnn", "ms.apply("]
    ),
    "a fused recurrence, mapped": (
        lambda: of_loss(by_functional_call, LSTM, SEQUENCE, mapped=True), ["workspace", "ms.apply("]
    ),
    "a recurrence without apply, mapped": (
        lambda: of_loss(by_functional_call, nn.GRU(4, 4), SEQUENCE, mapped=True), ["in place", "ms.apply("]
    ),
    "attention by its own kernel": (
        lambda: of_loss(by_apply, Flash(), SEQUENCE), ["If you already do", "sdpa_kernel", "CentralDifference()"]
    ),
    "a slope by autograd": (
        lambda: of_loss(slope_by_autograd, UNIT, torch.ones(3, 1)), ["does not require grad", "torch.func.grad(lambda"]
    ),
    "a slope by autograd, of a leaf": (
        lambda: of_loss(slope_of_a_leaf, UNIT, torch.ones(3, 1), mapped=True),
        ["requires_grad_()", "torch.func.grad(", "vjp or jvp", "chunk_size=1"],
    ),
    "a slope by backward": (
        lambda: of_loss(slope_by_backward, UNIT, torch.ones(3, 1), ms.curvature.exact_forward, mapped=True),
        ["backward() called", "torch.func.grad(", "chunk_size=1"],
    ),
    "nonzero": (lambda: looking(lambda x: x[torch.where(x > 0)].mean()), ["nonzero gives a shape", "torch.where(mask"]),
    "unique": (lambda: looking(lambda x: len(x.unique())), ["_unique2 gives a shape", "chunk_size=1"]),
    "masked_select": (lambda: looking(lambda x: x.masked_select(x > 0).mean()), ["masked_select gives a shape"]),
    "a slice up to a tensor": (lambda: looking(lambda x: x[: (x > 0).sum()].sum()), ["x[:n]", "chunk_size=1"]),
    "an if in a metric": (measured_by_an_if, ["or an if", "torch.where"]),
    "an embedding of sparse gradients": (lambda: of_words(Words(sparse=True), WORDS), ["Leave sparse=True out"]),
    "the same, mapped": (lambda: of_words(Words(sparse=True), WORDS, True), ["Leave sparse=True out"]),
    "an embedding that is held small": (lambda: of_words(Words(max_norm=1.0), WORDS, True), ["Leave max_norm out"]),
    "inputs by name": (lambda: of_words(Words(), NAMED), ["dict was given", "return self.model(**batch)"]),
    "inputs by name, of pictures": (
        lambda: of_words(nn.Conv2d(1, 1, 1), {"x": torch.ones(2, 1, 3, 3)}), ["dict was given", "self.model(**batch)"]
    ),
    "inputs by name, looked at": (
        lambda: of_words(Around(lambda layer, x: layer(x) if x.dim() else x), NAMED), ["dict was given", "(**batch)"]
    ),
    "results by name": (
        lambda: of_words(Words(), WORDS, loss=F.cross_entropy), ["TextOutput was given", 'out["logits"]']
    ),
    "a mean over calls": (
        lambda: of_loss(remembered(), UNIT, torch.ones(3, 1), mapped=True),
        ["the same value for the same φ"],
    ),
    "a padding mask": (padded, ["nested tensor", "enable_nested_tensor=False"]),
}  # fmt: skip

if not torch.backends.mkldnn.is_available():
    BAD = {name: row for name, row in BAD.items() if not name.startswith("a fused recurrence")}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:bias of φ")
@pytest.mark.parametrize("name", BAD)
def test_the_remedy(name: str) -> None:
    refused(*BAD[name])


def test_what_the_message_recommends_works() -> None:
    assert linear(F.huber_loss)(ms.curvature.exact).loss.isfinite()
    assert linear(lambda a, b: torch.cdist(a, b).mean())(ms.curvature.CentralDifference()).loss.isfinite()
    assert mapped(nn.utils.parametrizations.spectral_norm(nn.Linear(2, 1).double()).eval()).loss.isfinite()
    assert of_loss(by_functional_call, ATTENTION, SEQUENCE, mapped=True).loss.isfinite()
    for net in (ATTENTION, LSTM, nn.GRU(4, 4)):
        assert of_loss(by_apply, net, SEQUENCE, mapped=True).loss.isfinite()
    assert of_loss(by_apply, Flash(), SEQUENCE, ms.curvature.CentralDifference()).loss.isfinite()
    assert of_words(ByName(Words()), NAMED, True).loss.isfinite()
    assert padded(enable_nested_tensor=False).loss.isfinite()


@pytest.mark.filterwarnings("ignore:2.bias of φ")  # no slope by x depends on it
@pytest.mark.parametrize("curvature", [ms.curvature.exact, ms.curvature.exact_forward])
def test_slopes_in_a_loss_are_differentiated_again(curvature: Any) -> None:
    def slope(module: nn.Module, params: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: ms.apply(module, params, x).sum())(x).square().mean()

    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1)).double(), randn(5, 1)
    phi = meta = ms.parameters(net)
    for step in range(3):  # the last is the outer loss
        x = x.detach().requires_grad_()  # φ must not depend on it
        (by_x,) = torch.autograd.grad(functional_call(net, phi, (x,)).sum(), x, create_graph=True)
        grads = torch.autograd.grad(
            by_x.square().mean(), list((phi if step < 2 else meta).values()), create_graph=True, materialize_grads=True
        )
        phi = {name: p - 0.1 * g for (name, p), g in zip(phi.items(), grads, strict=True)}
    swept = of_loss(slope, net, x.detach(), curvature, mapped=True).grad
    assert relative_error(list(swept.values()), [g.detach() for g in grads]) < 1e-12


@pytest.mark.parametrize("look", [lambda x: x.max().item(), lambda x: 1.0 if x.sum() > 0 else -1.0])
def test_tasks_that_cannot_be_mapped_are_taken_one_by_one(look: Any) -> None:
    net = Looking(look)
    problem, meta = ms.few_shot(net, F.mse_loss), ms.parameters(net)
    tasks = [map_tree(lambda x, i=i: x[i], TASKS) for i in range(3)]
    swept = gradient_of(problem, chunk_size=1)(meta, TASKS)
    reference = gradient_of(problem, 2, ms.methods.Reference()).estimator
    stored = stack([reference(meta, task).grad for task in tasks])
    assert relative_error(swept.grad, {name: grad.mean(0) for name, grad in stored.items()}) < 1e-9
    assert swept.metrics["loss"].shape == (3,)
