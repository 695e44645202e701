"""The first look at a kind of call: everything that a user's functions could do wrong, checked once and in full.

Start, inner losses, an inner step and outer loss of one task run by plain autograd, at a φ and a θ near the given
ones. It refuses or reports random numbers, values that change from call to call, tensors that a module
moves, trainable tensors that are neither φ nor θ, backwards without a second derivative, parts of θ that reach nothing.
Later calls of the kind are not looked at.
"""

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from metastep.core.derivatives import ConstantBackwards, followed, leaves_of, require_followed
from metastep.core.guards import Guarded, Session, opened, require_unwritten, versions
from metastep.core.optimizers import State
from metastep.core.random import drawn_since, generators, other_generators, others_drawn_since, set_generators
from metastep.core.trees import Tree, leaves_by_name, map_tree, norm, subtract, tree_leaves
from metastep.core.windows import InnerLoop, Window, outer_value
from metastep.errors import MetastepError, warn

_ONE_BY_ONE = "Write ms.MetaGradient(…, chunk_size=1), which runs one task after the other without vmap."


class Reads(NamedTuple):
    """What of a problem an estimator differentiates."""

    start: bool = True
    losses: bool = True
    outer: bool = True
    twice: bool = True
    """Whether autograd takes second derivatives of the inner losses."""


ALL = Reads()


class Seen(NamedTuple):
    """Hold what a first look has seen.

    Attributes:
        others: Whether losses draw by Python's or numpy's generators.
        again: Whether a module runs again in its backward.
        modules: The modules applied.
    """

    others: bool
    again: bool
    modules: list[nn.Module]


def first_look(loop: InnerLoop, reads: Reads, meta: Tree, task: Any, mapped: bool) -> Seen:
    """Look at all functions of a problem."""
    before = generators(others=True)
    try:
        with (
            torch.inference_mode(False), followed() as graph, opened(Session(rest="copy")) as here,
            warnings.catch_warnings(),
        ):  # fmt: skip
            warnings.filterwarnings("error", "None of the inputs have requires_grad")  # so says a reentrant checkpoint
            look = _Look(loop, reads, meta, task, mapped, here)
            look.at_all()
            look.require_no_own(here.modules())
    finally:
        set_generators(before)
    look.tell()
    return Seen(look.others, graph.ran_again, here.modules())


class _Look:
    def __init__(self, loop: InnerLoop, reads: Reads, meta: Tree, task: Any, mapped: bool, here: Session) -> None:
        self._loop, self._reads, self._mapped, self._here = loop, reads, mapped, here
        self._task = task = map_tree(lambda x: x.clone() if isinstance(x, Tensor) else x, task)
        self._meta = _beside(meta)
        self._known = {id(x) for x in tree_leaves((self._meta, task))}
        self._reached: set[int] = set()
        self._strangers: dict[int, tuple[Tensor, str]] = {}
        self._used: dict[str, bool] = {}  # parts of φ, and whether a loss depends on them
        self.others, self._carries = False, False

    def at_all(self) -> None:
        state = self._called("the start of a problem", lambda: self._loop.begin(self._meta, self._task), drawing=False)
        self._trace([*tree_leaves(state.params), *tree_leaves(state.memory)], "the start", self._reads.start)
        for window in _one_of_each(self._loop.windows(self._task)):
            at_step = self._at_window(window, state)
        params = self._params(state.params)
        if hasattr(self._loop.problem.outer_loss, "gradients_by_hand"):
            self._take_all(params)
        else:
            outer = partial(outer_value, self._loop.problem, params, self._meta, self._task)
            value = self._called("the outer loss", outer)[0]
            self._trace([value], "the outer loss", self._reads.outer, params, lambda: outer()[0])
        self._at_later_steps(at_step)

    def _params(self, params: Tree) -> Tree:
        made = _beside(params)
        self._known |= {id(x) for x in tree_leaves(made)}
        return made

    def _take_all(self, params: Tree) -> None:
        """A loss that brings its derivatives is taken to depend on everything"""
        self._used |= dict.fromkeys(leaves_by_name(params), True)
        self._reached |= {id(leaf) for leaf in tree_leaves(self._meta)}

    def _at_window(self, window: Window, state: State) -> Callable[[int], None]:
        """Look at one inner loss and the step after it. Return what looks at the same step as a later one."""
        params = self._params(state.params)
        gradient = map_tree(torch.ones_like, params)
        if isinstance(window.loss, Guarded):
            gradient = self._at_loss(window, params)
        else:
            self._take_all(params)
        self._at_step(state._replace(params=params), gradient)
        return partial(self._at_step, state._replace(params=params), gradient)

    def _at_later_steps(self, at_step: Callable[[int], None]) -> None:
        """Look for parts of θ that reach later steps alone, as a rate may that is a function of the step."""
        wanted = {id(leaf) for leaf in tree_leaves(self._meta) if leaf.requires_grad}
        for step in range(1, sum(self._loop.lengths)):
            if wanted <= self._reached:
                return
            at_step(step)

    def _at_step(self, state: State, gradient: Tree, later: int = 0) -> None:
        state = state._replace(step=state.step + later)
        advance = partial(self._loop.inner.advance, state, gradient, self._meta, 1)
        moved = self._called("an inner optimizer, or a rate of it,", advance, drawing=False)
        self._trace(tree_leaves(moved.params), "an inner step", uses=True)

    def _at_loss(self, window: Window, params: Tree) -> Tree:
        """Look at one inner loss, and return its gradient."""
        before, kept = generators(others=True), _copied((params, self._meta))
        value = self._called("an inner loss", lambda: _again(window.loss)(params, self._meta, window.batch))
        set_generators(before)
        later = _again(window.loss)(params, self._meta, window.batch)
        _require_same(value, later)
        _require_unmoved((params, self._meta), kept)
        self._trace([value], "an inner loss", self._reads.losses, params, lambda: later)
        drew = drawn_since(before)
        set_generators(before)
        self._carries = self._carries or self._reads_what_it_writes(window, params, value.detach())
        set_generators(before)
        with _WithoutDropout() if drew else nullcontext():  # torch.func's dropout draws in another way
            plain = self._derivatives(window, params)
            set_generators(before)
            if self._mapped and not (self._is_mappable(window, params, plain) or drew):
                raise MetastepError(
                    "an inner loss has other derivatives where tasks are mapped by vmap than by plain autograd. "
                    "Functions of torch.jit.script, once_differentiable backwards, and autograd.Functions that call a "
                    f"module again in their backward do that. {_ONE_BY_ONE}"
                )
        return plain[0]

    def _reads_what_it_writes(self, window: Window, params: Tree, value: Tensor) -> bool:
        """Return whether the loss is another one where the buffers that modules write into hold other numbers."""
        here, self._here.carried = self._here, {i: _another(x.detach()) for i, x in self._here.written.items()}
        try:
            if not here.carried:
                return False
            later = _again(window.loss)(params, self._meta, window.batch).detach()
            return bool((later - value).abs() > 10 * torch.finfo(value.dtype).eps * value.abs())
        finally:
            here.carried = {}

    def _derivatives(self, window: Window, params: Tree) -> tuple[Tree, ...]:
        """Return the gradient, and its products if second derivatives are taken."""
        leaves, spec = torch.utils._pytree.tree_flatten(params)
        meta, twice = tree_leaves(self._meta), self._reads.twice
        with followed() as graph:
            value = _again(window.loss)(params, self._meta, window.batch)
            if not value.requires_grad:
                return (map_tree(torch.zeros_like, params),)
            constants = ConstantBackwards(value) if twice else None
            with graph.in_place():
                slopes = torch.autograd.grad(value, leaves, create_graph=twice, materialize_grads=True)
            _require_returned(leaves)
            found = torch.utils._pytree.tree_unflatten([g.detach() for g in slopes], spec)
            if constants is None:
                return (found,)
            constants.refuse()
            require_followed(slopes)
            pairs = [(g, g.detach()) for g in slopes if g.requires_grad]
            if not pairs:
                return found, [torch.zeros_like(x) for x in (*leaves, *meta)]
            outputs, along = zip(*pairs, strict=True)
            with graph.in_place():
                products = torch.autograd.grad(outputs, [*leaves, *meta], along, materialize_grads=True)
        return found, list(products)

    def _is_mappable(self, window: Window, params: Tree, plain: tuple[Tree, ...]) -> bool:
        """Compare with the derivatives of torch.func, which vmap needs, and which some functions leave out silently."""
        loss = _again(window.loss)
        held, meta = map_tree(torch.Tensor.detach, params), map_tree(torch.Tensor.detach, self._meta)
        slope = torch.func.grad(loss.twice)
        try:
            if len(plain) == 1:
                mapped: tuple[Tree, ...] = (slope(held, meta, window.batch),)
            else:
                found, pull = torch.func.vjp(lambda p, m: slope(p, m, window.batch), held, meta)[:2]
                mapped = found, tree_leaves(pull(map_tree(torch.Tensor.detach, found)))
        except MetastepError:
            raise
        except Exception:  # the call itself says what cannot be mapped
            return True
        return all(_close(a, b) for a, b in zip(mapped, plain, strict=True))

    def _called(self, what: str, function: Callable[[], Any], drawing: bool = True) -> Any:
        before, written = other_generators(), versions(self._task)
        value = function()
        require_unwritten(self._task, written)
        if others_drawn_since(before):
            self.others = True
            if not drawing:
                raise MetastepError(
                    f"{what} draws random numbers by Python's or numpy's generators, and would draw others when it is "
                    "differentiated. Draw them before the call and put them into the task."
                )
            if self._mapped:
                raise MetastepError(
                    f"{what} draws random numbers by Python's or numpy's generators, which would be the same for all "
                    f"tasks that vmap computes at once. Draw by torch. {_ONE_BY_ONE}"
                )
        return value

    def _trace(
        self,
        values: Iterable[Tensor],
        what: str,
        uses: bool,
        params: Tree = (),
        again: Callable[[], Tensor] | None = None,
    ) -> None:
        """Note which tensors that require grad the values depend on, and which of φ.

        A loss may make leaves of its own, to take gradients by its inputs. It makes others when it is called `again`.
        """
        values = list(values)
        found = leaves_of(values)
        named = leaves_by_name(params)
        for name, leaf in named.items():
            self._used[name] = self._used.get(name, False) or id(leaf) in found
        computed = leaves_of(value for value in values if value.grad_fn is not None)  # a start may be a constant
        strangers = {i: leaf for i, leaf in found.items() if i not in self._known and i in computed}
        lasting = leaves_of([again()]) if strangers and again else strangers
        self._strangers |= {i: (x, what) for i, x in strangers.items() if i in lasting and i not in self._strangers}
        if uses:
            self._reached |= found.keys()

    def require_no_own(self, modules: list[nn.Module]) -> None:
        """Refuse parameters of an applied module that are used past its arguments."""
        own: dict[int, str] = {}
        for module in modules:
            own |= {
                id(p): f"the parameter {name!r} of {type(module).__name__}" for name, p in module.named_parameters()
            }
        for i, (_, what) in self._strangers.items():
            if i in own and what.endswith("loss"):
                raise MetastepError(
                    f"{what} uses {own[i]} itself and not what stands for it, so the meta-gradient would lack its "
                    "part. Read θ and φ from the arguments of the function. In forward, read a parameter as an "
                    "attribute (self.weight), not through a closure or an object that holds it, and do not create one "
                    "there. Call a module whose parameters are θ or φ by ms.apply(module, params, x)."
                )

    def tell(self) -> None:
        """Warn of what is allowed, and rarely meant."""
        for leaf, what in list(self._strangers.values())[:1]:
            warn(
                f"{what} depends on a tensor {tuple(leaf.shape)} that requires grad and is neither φ nor θ. It is a "
                "constant here. Call a module by ms.apply(module, meta, x) if θ holds its parameters, or freeze it "
                "with requires_grad_(False).",
            )
        named = {name: leaf for name, leaf in leaves_by_name(self._meta).items() if leaf.requires_grad}
        lost = [name for name, leaf in named.items() if id(leaf) not in self._reached]
        if len(named) > len(lost) > 0 and self._loop.first is None:  # a gradient of zeros is reported by its values
            warn(
                f"{_few(lost)} of meta: nothing that this method differentiates depends on it, so its meta-gradient is "
                "0. Look for a start or a loss that is detached. If θ is only in the inner losses, use ms.MultiStep or "
                "ms.MAML instead of first order.",
            )
        if self._carries:
            warn(
                "a module writes into its buffers in forward, and reads them in its next call, as spectral_norm and "
                "momentum encoders do. Every call in an inner loop starts from the buffers as they are now, and what "
                "it writes is discarded. A loop that keeps them has other results. Call module.eval() to leave them.",
            )
        idle = [name for name, used in self._used.items() if not used]
        if len(self._used) > len(idle) > 0:
            warn(
                f"{_few(idle)} of φ: no loss depends on it, so it never moves. Freeze it with requires_grad_(False) if "
                "that is meant.",
            )


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class _WithoutDropout(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "dropout" in getattr(function, "__name__", "") and args and isinstance(args[0], Tensor):
            return args[0]
        return function(*args, **(kwargs or {}))


def _again(loss: Any) -> Guarded:
    """The same loss, which has drawn nothing yet"""
    return Guarded(loss.loss)


def _beside(tree: Tree) -> Tree:
    """Leaves of new graphs, near the given values: what is computed with other tensors shows itself"""

    def moved(x: Tensor) -> Tensor:
        x = x.detach().clone()
        if not (x.is_floating_point() or x.is_complex()):
            return x
        return (x + 0.01 * torch.rand_like(x) * (x.abs() + 0.01)).requires_grad_()

    return map_tree(lambda x: moved(x) if isinstance(x, Tensor) else x, tree)


def _another(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return x + 0.1 * torch.rand_like(x) * (x.abs() + 1)
    return x if x.dtype == torch.bool else x + 1


def _one_of_each(windows: list[Window]) -> list[Window]:
    """Windows whose losses are made by the same code on batches of the same shapes are alike"""
    kinds: dict[Any, Window] = {}
    for window in windows:
        shapes = tuple((x.shape, x.dtype) for x in tree_leaves(window.batch) if isinstance(x, Tensor))
        loss = window.loss.loss if isinstance(window.loss, Guarded) else window.loss
        kinds.setdefault((_made_by(loss), shapes), window)
    return list(kinds.values())


def _made_by(function: Any, depth: int = 4) -> Any:
    """The code of a function, and of the functions that it closes over"""
    code = getattr(function, "__code__", None)
    if code is None or depth == 0:
        return type(function) if code is None and not callable(function) else id(function)
    held = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return code, *(_made_by(value, depth - 1) for value in held if callable(value))


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _require_same(value: Tensor, again: Tensor) -> None:
    value, again = value.detach(), again.detach()
    if not _close([value], [again]):
        raise MetastepError(
            f"an inner loss was {value.item():.9g}, and then {again.item():.9g} for the same φ, θ and batch. It must "
            "give the same value for the same φ, since the sweep evaluates it again. It draws by a generator of its "
            "own (torch.Generator, numpy.random.Generator, random.Random), keeps values from call to call, or reads a "
            "clock. Draw by the global generators, and put what else changes into the task."
        )


def _copied(tree: Tree) -> Tree:
    return map_tree(lambda x: x.detach().clone(), tree)


def _require_unmoved(params: Tree, kept: Tree) -> None:
    if not all(
        bool((a == b).logical_or(b.isnan()).all()) for a, b in zip(*map(tree_leaves, (params, kept)), strict=True)
    ):
        raise MetastepError(
            "a loss writes into φ or θ, as p.data.mul_(…) does. The sweep returns to it, and would find other numbers. "
            "Compute a new tensor instead, or write the change as an ms.StepFunction."
        )


def _require_returned(leaves: list[Tensor]) -> None:
    if any(leaf.grad is not None for leaf in leaves):
        raise MetastepError(
            "a backward adds to .grad instead of returning gradients, as torch.autograd.backward inside of an "
            "autograd.Function does (reversible nets). They would be missing here. Use the net without a backward of "
            "its own."
        )


def _close(a: Tree, b: Tree) -> bool:
    """Up to what two orders of the same sums make of it"""
    pairs = zip(tree_leaves(a), tree_leaves(b), strict=True)
    numbers = [(x.detach(), y.detach()) for x, y in pairs if x.is_floating_point()]
    if not all(bool(x.isfinite().all()) and bool(y.isfinite().all()) for x, y in numbers):
        return True  # where numbers end, another check says so
    allowed = 10 * max((torch.finfo(x.dtype).eps for x, _ in numbers), default=0.0) ** 0.5
    first, second = [x for x, _ in numbers], [y for _, y in numbers]
    return bool(norm(subtract(first, second)) <= allowed * norm(second))
