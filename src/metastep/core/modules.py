"""Any nn.Module as a pure function of its parameters, with the switches that second derivatives need."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from metastep.core.checks import versions
from metastep.core.derivatives import is_differentiated
from metastep.core.hidden import require_shown
from metastep.core.noise import is_recorded
from metastep.core.trees import Tree, difference, map_tree, tree_leaves
from metastep.errors import MetastepError


def parameters_of(module: nn.Module) -> dict[str, Tensor]:
    """θ: the parameters of `module` that are not frozen, by name; tied weights once"""
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def apply(module: nn.Module, params: Tree, inputs: Any) -> Any:
    """module(inputs) with `params` in place of its own; a tuple of inputs is spread over its arguments"""
    if is_recorded() and draws_noise(module):
        raise MetastepError(
            f"{type(module).__name__} draws random numbers (dropout), which a compiled sweep cannot draw again. "
            "Call module.eval(), set the dropout rate to 0, or do not compile."
        )
    parts = dict(module.named_modules())
    _require_plain(parts)
    recurrent = any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in parts.values())
    params = _mapped_like(inputs, {**dict(module.named_parameters()), **params}) if recurrent else params
    # What is written into a buffer is let go of.
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers() if name not in params}
    placed = _in_all_places(module, {**buffers, **params})
    others = [x for part in parts.values() for x in vars(part).values() if isinstance(x, Tensor)]
    before = versions(others)
    with sdpa_kernel(SDPBackend.MATH), plain_recurrence() if recurrent else nullcontext():
        result = functional_call(module, placed, inputs, tie_weights=False)
    if versions(others) != before and is_differentiated():
        raise MetastepError(
            f"{type(module).__name__} writes into a tensor of its own that is no buffer, and would do so again as the "
            "sweep returns to it. Make it one, with self.register_buffer(name, tensor): what is written into it is let "
            "go of."
        )
    return result


@contextmanager
def held(module: nn.Module) -> Iterator[None]:
    """What parts of a module keep of a call is let go of: the next look at a window must find them as they were"""
    parts = [] if torch.compiler.is_compiling() else list(module.modules())
    before = [(kept, dict(kept)) for part in parts for kept in (vars(part), part._buffers)]
    try:
        yield
    finally:
        for kept, earlier in before:
            kept.update(earlier)
            for name in kept.keys() - earlier.keys():
                del kept[name]


def _in_all_places(module: nn.Module, tensors: Tree) -> dict[str, Tensor]:
    """Tied weights are one tensor in several places; a part that occurs twice has several names and one place.

    PyTorch ties by names, and of a part that occurs twice it would leave the replaced tensors behind in the module.
    """
    both = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    named = {name: id(own) for name, own in both}
    if unknown := tensors.keys() - named.keys():
        raise MetastepError(
            f"{type(module).__name__} has no parameter or buffer {min(unknown)!r}. Name them as "
            "metastep.parameters_of(module) does."
        )
    given, placed = {named[name]: tensor for name, tensor in tensors.items()}, {}
    for path, part in module.named_modules():  # each once
        for local, own in (*part._parameters.items(), *part._buffers.items()):
            if id(own) in given:
                placed[f"{path}.{local}" if path else local] = given[id(own)]
    return placed


@contextmanager
def plain_recurrence() -> Iterator[None]:
    """Fused recurrent kernels, as fused attention, have no forward mode and no second backward; plain ones have."""
    untouched = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}  # setting tf32 warns on most CPUs
    with torch.backends.cudnn.flags(enabled=False), torch.backends.mkldnn.flags(enabled=False, **untouched):
        yield


def _mapped_like(inputs: Any, params: Tree) -> Tree:
    """`params`, mapped by vmap wherever `inputs` are: recurrent kernels write in place, which needs both to be"""
    sample = tree_leaves(inputs)[0].flatten()[0]
    nothing = (sample != sample).sum() * 0  # 0, also for inputs that are not finite
    return map_tree(lambda p: p + nothing, params)


def use_batch_statistics(module: nn.Module) -> nn.Module:
    """Let every BatchNorm and InstanceNorm in `module` use the statistics of the batch at hand, always; returns it."""
    for part in module.modules():
        if isinstance(part, _NormBase):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return module


def theta_of(module: nn.Module) -> Callable[[Tree], Tree]:
    """What looks at a given θ: a tensor of another name would be left out without a word, and have no gradient.

    It has the names and shapes of `parameters_of(module)`. What is frozen may be among them; what is frozen later need
    not be.
    """
    own = parameters_of(module)

    def theta(meta: Tree) -> Tree:
        require_shown(meta)
        if _is_like(meta, own):
            return meta
        later, known = parameters_of(module), dict(module.named_parameters())
        named = isinstance(meta, Mapping) and own.keys() & later.keys() <= meta.keys() <= known.keys()
        if not (named and _is_like(meta, {name: known[name] for name in meta})):
            found = str(difference(later, meta, "the module", "meta"))
            compiled = "; torch.compile gives other names: pass the module, and compile the step"
            raise MetastepError(
                f"meta is not θ of this {type(module).__name__}: {found}. Pass metastep.parameters_of(module) of this "
                f"very module{compiled if '_orig_mod.' in found else ''}. What is not to be learned is frozen before "
                "that, with requires_grad_(False); what is not to be adapted is held by metastep.adapt_only; room for "
                "rates that are learned beside it is made by metastep.room_for_rates(problem)."
            )
        return meta

    return theta


def _is_like(meta: Tree, own: dict[str, Tensor]) -> bool:
    return isinstance(meta, Mapping) and meta.keys() == own.keys() and all(meta[n].shape == own[n].shape for n in own)


def require_usable(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        made = f"that is the class: make one of it, {module.__name__}(…)" if isinstance(module, type) else "pass one"
        raise MetastepError(
            f"{module!r} is no nn.Module: {made}. Another function of φ is written as metastep.Problem."
        )
    if not parameters_of(module):
        raise MetastepError(f"{type(module).__name__} has no parameter to learn: all are frozen, or there are none.")
    parts = dict(module.named_modules())
    _require_plain(parts)
    for name, part in parts.items():
        if isinstance(part, _NormBase) and part.training and part.running_mean is not None:
            raise MetastepError(
                f"{type(part).__name__} '{name or 'itself'}' would overwrite its running statistics on the way, which "
                "no pure function can do, and vmap refuses. Use metastep.use_batch_statistics(module), as few-shot "
                "learning does, or module.eval() to hold the statistics it has."
            )


def _require_plain(parts: Mapping[str, nn.Module]) -> None:
    """Not what was made for autograd's own backward: it would do something else here, without a word"""
    for name, part in parts.items():
        if isinstance(part, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
            raise MetastepError(
                f"{type(part).__name__} '{name or 'itself'}' averages gradients in .backward(), which never runs here: "
                "each process would go its own way. Pass what it was made of, .module, and average estimate.grad over "
                "processes, by torch.distributed.all_reduce."
            )
        if isinstance(part, torch.jit.ScriptModule):
            raise MetastepError(
                f"{type(part).__name__} '{name or 'itself'}' is of torch.jit, whose second derivatives PyTorch's "
                "function transforms leave out: the meta-gradient would be wrong. Pass the module that it was scripted "
                "or traced from."
            )


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards each part is in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def draws_noise(module: nn.Module) -> bool:
    """Whether a forward pass draws random numbers"""
    return any(
        part.training
        and (
            (isinstance(part, _DropoutNd) and part.p > 0)
            or (isinstance(part, (nn.RNNBase, nn.MultiheadAttention)) and part.dropout > 0)
        )
        for part in module.modules()
    )
