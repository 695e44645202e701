"""Modules that do what a sweep does not expect, each with the module that computes the same in the plain way."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint


class Plain(nn.Module):
    """Two layers"""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4, dtype=torch.float64), nn.Linear(4, 2, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(self.a(x)))


class Stepped(Plain):
    """One more, as a step of Euler's method"""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return self.b(self.step(torch.tanh(self.a(x))))

    def step(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.tanh(self.field(x))


class Checkpointed(Plain):
    def __init__(self, reentrant: bool = False) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        return self.b(checkpoint(lambda x: torch.tanh(self.a(x)), x, use_reentrant=self.reentrant))


class Again(torch.autograd.Function):
    """Calls the module again in its backward"""

    @staticmethod
    def forward(ctx: Any, net: Any, again: bool, x: Tensor, *params: Tensor) -> Tensor:
        ctx.net, ctx.again = net, again
        ctx.save_for_backward(x, *params)
        with torch.no_grad():
            return net.step(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        x, graph = ctx.saved_tensors[0], ctx.again and torch.is_grad_enabled()
        with torch.enable_grad():
            x = x.view_as(x) if graph else x.detach().requires_grad_()
            parameters = tuple(ctx.net.field.parameters())
            found = torch.autograd.grad(ctx.net.step(x), (x, *parameters), gradient, create_graph=graph)
        return None, None, *found


class Adjoint(Stepped):
    """again: whether its backward can be differentiated again; that of odeint_adjoint cannot"""

    def __init__(self, again: bool) -> None:
        super().__init__()
        self.again = again

    def forward(self, x: Tensor) -> Any:
        return self.b(Again.apply(self, self.again, torch.tanh(self.a(x)), *self.field.parameters()))


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, net: Any, x: Tensor) -> Tensor:
        ctx.net = net
        ctx.save_for_backward(x)
        with torch.no_grad():
            return net.step(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            torch.autograd.backward(ctx.net.step(x), gradient)
        return None, x.grad


class Reversible(Stepped):
    def forward(self, x: Tensor) -> Any:
        return self.b(Reverse.apply(self, torch.tanh(self.a(x))))


def replaced(teacher: nn.Linear, student: nn.Linear) -> None:
    teacher.weight = nn.Parameter(0.9 * teacher.weight + 0.1 * student.weight, requires_grad=False)


MOVES: dict[str, Callable[[Any, Any], Any]] = {
    "data =": lambda t, s: setattr(t.weight, "data", 0.9 * t.weight.data + 0.1 * s.weight.data),
    "data.mul_": lambda t, s: t.weight.data.mul_(0.9).add_(s.weight.data, alpha=0.1),
    "copy_": lambda t, s: t.weight.copy_(0.9 * t.weight + 0.1 * s.weight),
    "lerp_": lambda t, s: t.weight.lerp_(s.weight, 0.1),
    "set_": lambda t, s: t.weight.set_((0.9 * t.weight + 0.1 * s.weight).detach()),
    "foreach": lambda t, s: torch._foreach_lerp_([t.weight], [s.weight], 0.1),
    "load_state_dict": lambda t, s: t.load_state_dict({n: x.detach() for n, x in s.state_dict().items()}),
    "a new parameter": replaced,
}


class Teacher(Plain):
    """A momentum encoder, as in MoCo, BYOL and DINO"""

    def __init__(self, move: str) -> None:
        super().__init__()
        self.teacher, self.move = deepcopy(self.a).requires_grad_(False), move

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            MOVES[self.move](self.teacher, self.a)
        return self.b(torch.tanh(self.a(x)) + self.teacher(x))


class Drawing(Plain):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (1 + self.draw())


class OfItsOwn(Plain):
    def __init__(self, generator: Any) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, x: Tensor) -> Any:
        own = self.generator
        drawn = torch.rand((), generator=own) if isinstance(own, torch.Generator) else own.random()
        return super().forward(x) * (1 + float(drawn))


class Object:
    def __init__(self, w: Tensor) -> None:
        self.w = w


READS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a list": (lambda w: [w], lambda held: held[0]),
    "a tuple": (lambda w: (w,), lambda held: held[0]),
    "a dict": (lambda w: {"w": w}, lambda held: held["w"]),
    "nested containers": (lambda w: {"w": [(w, 1)]}, lambda held: held["w"][0][0]),
    "an object": (Object, lambda held: held.w),
    "a closure": (lambda w: lambda: w, lambda held: held()),
    "a set": (lambda w: {w}, lambda held: next(iter(held))),
}


class Holding(Plain):
    """Reads a parameter where it also stands"""

    def __init__(self, where: str) -> None:
        super().__init__()
        hold, self.read = READS[where]
        self.held = hold(self.a.weight)

    def forward(self, x: Tensor) -> Any:
        return self.b(torch.tanh(x @ self.read(self.held).T + self.a.bias))


def swish(x: Tensor) -> Tensor:
    return torch.tanh(x) * x.sigmoid()


class Activated(Plain):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Any:
        return self.b(self.activation(self.a(x)))


class Once(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.tanh(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return (1 - ctx.saved_tensors[0] ** 2) * gradient


class OnceMapped(Plain):
    def forward(self, x: Tensor) -> Any:
        return self.b(Once.apply(self.a(x)))


class Counting(Plain):
    """Keeps much of each call"""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.log, self.statistics, self.seen = 0, [0], {"calls": [0]}, {0}  # type: ignore[var-annotated]

    def forward(self, x: Tensor) -> Any:
        self.calls += 1
        self.log.append(self.calls)
        self.statistics["calls"][0] += 1
        self.seen.add(self.calls)
        self.last = x
        self.a.register_forward_hook(lambda module, inputs, output: None)
        return super().forward(x)


class Caching(Plain):
    """Makes tensors at the first call of a shape"""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[Any, Tensor] = {}

    def forward(self, x: Tensor) -> Any:
        if x.shape not in self.cache:
            self.cache[x.shape] = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype) + 0 * x.sum()
        return super().forward(x + 0 * self.cache[x.shape])


def normed() -> nn.Module:
    net = Plain()
    nn.utils.parametrizations.weight_norm(net.a)
    return net


def hooked() -> nn.Module:
    net = Plain()
    net.a.register_forward_hook(lambda module, inputs, output: 1.5 * output)
    return net


SERVED: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "counts its calls": (Counting, Plain),
    "caches by shape": (Caching, Plain),
    "weight norm": (normed, normed),
    "a hook": (hooked, hooked),
    **{f"a parameter in {w}": (lambda w=w: Holding(w), Plain) for w in list(READS)[:4]},  # type: ignore[misc]
}
ONE_BY_ONE: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {  # and why not mapped
    "checkpoint": (Checkpointed, Plain, "saved tensor hooks.*chunk_size=1"),
    "a backward that calls again": (lambda: Adjoint(again=True), Stepped, "setup_context.*chunk_size=1"),
    "a scripted function": (
        lambda: Activated(torch.jit.script(swish)),
        lambda: Activated(swish),
        "other derivatives.*torch.jit.script.*chunk_size=1",
    ),
    "noise of Python": (lambda: Drawing(random.random), lambda: Drawing(random.random), "Python's.*chunk_size=1"),
    "noise of numpy": (lambda: Drawing(np.random.rand), lambda: Drawing(np.random.rand), "numpy's.*chunk_size=1"),
}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "an adjoint": (lambda: Adjoint(again=False), "backward of Again, an autograd.Function, returns constants.*odeint"),
    "a reversible net": (Reversible, r"adds to \.grad instead of returning"),
    "a reentrant checkpoint": (lambda: Checkpointed(reentrant=True), "use_reentrant=False"),
    "a backward that is differentiated once": (OnceMapped, "once_differentiable"),
    **{f"a teacher moved by {m}": (lambda m=m: Teacher(m), r"moves its parameter 'teacher\.") for m in MOVES},  # type: ignore[misc]
    **{f"a parameter in {w}": (lambda w=w: Holding(w), "'a.weight'.* itself") for w in list(READS)[4:]},  # type: ignore[misc]
    "a generator of torch": (lambda: OfItsOwn(torch.Generator()), "for the same φ, θ and batch"),
    "a generator of numpy": (lambda: OfItsOwn(np.random.default_rng(0)), "for the same φ, θ and batch"),
    "a generator of Python": (lambda: OfItsOwn(random.Random(0)), "for the same φ, θ and batch"),
}
