"""Any nn.Module as a pure function of its parameters, with the switches that second derivatives need."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import batch_norm, pad
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from metastep.core.derivatives import keep_in_place, may_draw
from metastep.core.guards import require_shown, session
from metastep.core.trees import Tree, difference, map_tree, tree_leaves
from metastep.errors import MetastepError

# ---- two layers that published nets need and torch.nn lacks; the hand-written derivatives support both


class SamePad(nn.Module):
    """TensorFlow's SAME for a 3×3 convolution of stride 2: (0, 1) where the input is even, (1, 1) where it is odd.

    `padding=1` gives the same sizes, but on even inputs a grid that is shifted by one pixel.
    """

    @staticmethod
    def around(size: int) -> tuple[int, int]:
        """Return the number of zeros before and behind."""
        return size % 2, 1

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        return pad(x, (*self.around(width), *self.around(height)))


class ShiftNorm(nn.Module):
    """Normalise by the statistics of the batch, then add a shift β for each channel, and no scale γ.

    Finn's code meta-trains β and does not adapt it: `adapt_only(problem, lambda name: "shift" not in name)`.
    """

    def __init__(self, channels: int, eps: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return batch_norm(x, None, None, training=True, eps=self.eps) + self.shift[:, None, None]


def parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return θ: the parameters of a module that are not frozen, by name.

    Args:
        module: Any `nn.Module`.

    Returns:
        The parameters themselves, not copies. Tied weights are there once.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> sorted(ms.parameters(torch.nn.Linear(2, 1)))
        ['bias', 'weight']
    """
    _require_module(module, "ms.parameters(net)")
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def tree_of(meta: Any) -> Tree:
    """Return θ as a tree: of a module, its parameters by name."""
    if isinstance(meta, nn.parallel.DistributedDataParallel | nn.DataParallel):
        raise MetastepError(
            f"meta is a {type(meta).__name__}, which averages over processes only what its own forward computed. Pass "
            "the module that it wraps, .module: ms.MetaStep averages by itself. To have .backward() average, wrap a "
            "module whose forward(tasks) returns gradient.loss(self.net, tasks), and call that."
        )
    if isinstance(meta, nn.Module):
        return parameters(meta)
    leaves = tree_leaves(meta)
    odd = next((_kind(leaf) for leaf in leaves if not _has_gradient(leaf)), None if leaves else "nothing")
    if odd:
        raise MetastepError(
            f"meta has {odd} where floating-point tensors are needed. Give a module, or a tree of tensors such as "
            "ms.parameters(net); make a tensor of a number with torch.tensor(…)."
        )
    if not torch.compiler.is_compiling() and any(map(torch._C._functorch.is_gradtrackingtensor, leaves)):
        raise MetastepError(
            "torch.func differentiates around a MetaGradient, but would find 0: an estimate is a value. "
            "Use estimate.grad, or gradient.loss(meta, tasks).backward()."
        )
    return meta


def _has_gradient(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _kind(leaf: Any) -> str:
    return str(leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__


def _require_module(module: Any, usage: str) -> None:
    if isinstance(module, nn.Module):
        return
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise MetastepError(f"{module.__name__} is the class. Make a module, net = {module.__name__}(…), and {usage}.")
    raise MetastepError(f"{type(module).__name__} is not an nn.Module. Write {usage}.")


def apply(module: nn.Module, params: Tree, inputs: Any) -> Any:
    """Call a module with other parameters than its own.

    Attention runs by its plain kernel, and recurrent layers without cuDNN and oneDNN, since fused kernels cannot be
    differentiated twice. What the module writes into a buffer is discarded.

    Args:
        module: Any `nn.Module`.
        params: Tensors by name, such as φ. Parameters and buffers that are not named keep the module's values.
        inputs: The argument of the module. A tuple is spread over several arguments.

    Returns:
        What the module returns.

    Raises:
        MetastepError: The module has no parameter of a name; or it cannot be differentiated, and the message says why.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> params = {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}
        >>> print(ms.apply(net, params, torch.tensor([[1.0, 2.0]])))
        tensor([[3.]])
    """
    _require_module(module, "ms.apply(net, params, x)")
    if not may_draw() and draws_noise(module):
        raise MetastepError(
            f"{type(module).__name__} draws random numbers (dropout), which a compiled sweep cannot draw again. "
            "Call module.eval(), set the dropout rate to 0, or do not compile."
        )
    if torch.compiler.is_compiling():
        return _traced(module, params, inputs)
    with session(keeps_changes=True) as here:
        inventory = here.inventory(module)
        if not inventory.is_usable:
            _require_plain(inventory.parts)
            inventory.is_usable = True
        recurrent = inventory.is_recurrent
        params = _mapped_like(inputs, {**dict(module.named_parameters()), **params}) if recurrent else params
        lent = inventory.lend(params, here.rest, here.carried)
        keep_in_place(lent)
        try:
            with plain_recurrence() if recurrent else nullcontext(), lent:
                result = module(*inputs) if isinstance(inputs, tuple) else module(inputs)
                if here.rest == "copy":
                    here.written |= lent.written()
        finally:
            here.changes += inventory.changes()
        if here.keeps_changes:
            here.changes.clear()
        else:
            lent.require_unmoved()
    return result


def _traced(module: nn.Module, params: Tree, inputs: Any) -> Any:
    """Call the module under dynamo, which follows functional_call and restores what a module holds by itself."""
    parts = dict(module.named_modules())
    _require_plain(parts)
    recurrent = _is_recurrent(parts)
    params = _mapped_like(inputs, {**dict(module.named_parameters()), **params}) if recurrent else params
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers() if name not in params}
    placed = _in_all_places(module, {**buffers, **params})
    with sdpa_kernel(SDPBackend.MATH), plain_recurrence() if recurrent else nullcontext():
        return functional_call(module, placed, inputs, tie_weights=False)


def _is_recurrent(parts: Mapping[str, nn.Module]) -> bool:
    return any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in parts.values())


def as_module(module: nn.Module, params: Tree) -> nn.Module:
    """Return a copy of a module that holds other parameters, such as those of `MetaGradient.adapt`.

    Args:
        module: The module that the parameters belong to. It stays as it is.
        params: Tensors by name. Parameters and buffers that are not named keep the module's values.

    Returns:
        The copy: a module like any other, with a `state_dict`, ready for `torch.export`.

    Raises:
        MetastepError: The module has no parameter or buffer of a name, or one of another shape.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> net = torch.nn.Linear(2, 1)
        >>> ms.as_module(net, {"bias": torch.tensor([3.0])}).bias.item()
        3.0
    """
    _require_module(module, "ms.as_module(net, params)")
    if not isinstance(params, Mapping):
        raise MetastepError(
            f"params is a {type(params).__name__}. Give tensors by name, as ms.parameters(module) does."
        )
    made = deepcopy(module)
    own = dict((*made.named_parameters(remove_duplicate=False), *made.named_buffers(remove_duplicate=False)))
    for name, value in params.items():
        if name not in own or own[name].shape != value.shape:
            found = f"its own is {tuple(own[name].shape)}" if name in own else "it has none of that name"
            raise MetastepError(
                f"params has {name!r} {tuple(value.shape)}, which {type(module).__name__} cannot hold: {found}. Name "
                "them as ms.parameters(module) does."
            )
        own[name].data = value.detach().clone()
    return made


def _in_all_places(module: nn.Module, tensors: Tree) -> dict[str, Tensor]:
    """Return the tensors by every place that they belong in.

    A part that occurs twice has several names and one place. PyTorch ties by names, and would leave the replaced
    tensors behind in such a part.
    """
    both = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    named, placed = {name: id(own) for name, own in both}, {}
    given = {named[name]: tensor for name, tensor in tensors.items()}
    for path, part in module.named_modules():  # each once
        for local, own in (*part._parameters.items(), *part._buffers.items()):
            if id(own) in given:
                placed[f"{path}.{local}" if path else local] = given[id(own)]
    return placed


@contextmanager
def plain_recurrence() -> Iterator[None]:
    """Use plain recurrent kernels inside: fused ones have no forward mode and no second backward."""
    untouched = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}  # setting tf32 warns on most CPUs
    with torch.backends.cudnn.flags(enabled=False), torch.backends.mkldnn.flags(enabled=False, **untouched):
        yield


def _mapped_like(inputs: Any, params: Tree) -> Tree:
    """Return `params`, mapped by vmap wherever `inputs` are: recurrent kernels write in place, which needs both."""
    sample = tree_leaves(inputs)[0].flatten()[0]
    nothing = (sample != sample).sum() * 0  # 0, also for inputs that are not finite
    return map_tree(lambda p: p + nothing, params)


def use_batch_statistics(module: nn.Module) -> nn.Module:
    """Let every BatchNorm and InstanceNorm use the statistics of the current batch, in training and evaluation.

    Running statistics cannot be differentiated through, so that `few_shot` refuses a module that tracks them.

    Args:
        module: Changed in place.

    Returns:
        The same module.

    Example:
        >>> import torch
        >>> import metastep as ms
        >>> ms.use_batch_statistics(torch.nn.BatchNorm1d(3))
        BatchNorm1d(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=False)
    """
    _require_module(module, "ms.use_batch_statistics(net)")
    for part in module.modules():
        if isinstance(part, _NormBase):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return module


def theta_of(module: nn.Module) -> Callable[[Tree], Tree]:
    """Return a function that refuses a θ of other names or shapes than `parameters(module)`.

    A tensor of another name would be silently left out, and have no gradient. Frozen parameters may be among them;
    those that are frozen later may be missing.
    """
    own = parameters(module)

    def theta(meta: Tree) -> Tree:
        require_shown(meta)
        if _is_like(meta, own):
            return meta
        later, known = parameters(module), dict(module.named_parameters())
        named = isinstance(meta, Mapping) and own.keys() & later.keys() <= meta.keys() <= known.keys()
        if not (named and _is_like(meta, {name: known[name] for name in meta})):
            found = str(difference(later, meta, "the module", "meta"))
            compiled = " torch.compile changes the names: pass the module, and compile the step."
            raise MetastepError(
                f"meta is not θ of this {type(module).__name__}: {found}. Pass the module of the problem, or "
                f"ms.parameters(module).{compiled if '_orig_mod.' in found else ''} To leave a parameter out of θ, "
                "freeze it first with requires_grad_(False). To keep it from being adapted, use ms.methods.ANIL(head). "
                "To learn rates too, use ms.MetaSGD() and make meta with gradient.init(module)."
            )
        return meta

    return theta


def _is_like(meta: Tree, own: dict[str, Tensor]) -> bool:
    return isinstance(meta, Mapping) and meta.keys() == own.keys() and all(meta[n].shape == own[n].shape for n in own)


def require_usable(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        made = f"It is the class. Call it: {module.__name__}(…)" if isinstance(module, type) else "Pass one"
        raise MetastepError(f"{module!r} is not an nn.Module. {made}, or write any function of φ as an ms.Problem.")
    if not parameters(module):
        raise MetastepError(
            f"{type(module).__name__} has no parameter to learn: all are frozen, or there are none. Unfreeze some with "
            "requires_grad_(True)."
        )
    parts = dict(module.named_modules())
    _require_plain(parts)
    for name, part in parts.items():
        if isinstance(part, _NormBase) and part.training and part.running_mean is not None:
            raise MetastepError(
                f"{type(part).__name__} '{name or 'itself'}' would overwrite its running statistics in the inner loop, "
                "but the sweep needs a pure function. Call ms.use_batch_statistics(module), as few-shot learning does, "
                "or module.eval() to keep the statistics that it has."
            )


def _require_plain(parts: Mapping[str, nn.Module]) -> None:
    """Refuse what was made for autograd's own backward: it would silently do something else here."""
    for name, part in parts.items():
        if isinstance(part, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            raise MetastepError(
                f"{type(part).__name__} '{name or 'itself'}' averages gradients in .backward(), which never runs here, "
                "so the processes would diverge. Pass the module that it wraps, .module, and update θ with "
                "ms.MetaStep, which averages over processes; or average estimate.grad by torch.distributed.all_reduce."
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise MetastepError(
                f"{type(part).__name__} '{name or 'itself'}' is of torch.jit. PyTorch's function transforms leave its "
                "second derivatives out, so the meta-gradient would be wrong. Pass the module that it was scripted or "
                "traced from."
            )


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put the module into evaluation mode inside; afterwards each part is in its earlier mode."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def draws_noise(module: nn.Module) -> bool:
    """Return whether a forward pass draws random numbers."""
    return any(
        part.training
        and (
            (isinstance(part, _DropoutNd) and part.p > 0)
            or (isinstance(part, (nn.RNNBase, nn.MultiheadAttention)) and part.dropout > 0)
        )
        for part in module.modules()
    )
