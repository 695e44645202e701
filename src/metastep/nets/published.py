"""The nets of published code: variants of Conv4 that differ in their blocks and in how they start."""

from functools import partial
from typing import Any

from torch import nn

from metastep.core.registry import register
from metastep.nets import blocks
from metastep.nets.conv4 import Conv4, Layer, kaiming, layer_init, normal, xavier

_MINI: dict[str, Any] = {"channels": 3, "filters": 32, "size": 84}


def _xavier_normal_head(layer: Layer) -> None:
    (normal if isinstance(layer, nn.Linear) else xavier)(layer)


# Finn et al. 2017. Their code meta-trains β and does not adapt it, see ShiftNorm.
register("net", "finn_omniglot")(
    partial(Conv4, block=blocks.strided_same_shift, init=_xavier_normal_head, mean_positions=True)
)
register("net", "finn_mini")(partial(Conv4, **_MINI, block=blocks.pooled_shift, init=xavier))

# MAML-Pytorch, which the paper of Multi-step estimation builds on
register("net", "dragen_omniglot")(partial(Conv4, block=blocks.strided_unpadded, init=kaiming))
register("net", "dragen_mini")(partial(Conv4, **_MINI, block=blocks.pooled_unpadded, init=kaiming))

# Nichol et al. 2018
register("net", "reptile_omniglot")(partial(Conv4, block=blocks.strided_same, init=xavier))
register("net", "reptile_mini")(partial(Conv4, **_MINI, block=blocks.pooled_same, init=xavier))

# Rajeswaran et al. 2019
_narrow_uniform = layer_init(partial(nn.init.xavier_uniform_, gain=1.73), partial(nn.init.uniform_, a=0.0, b=0.05))
register("net", "imaml_omniglot")(partial(Conv4, block=blocks.strided_extra_row, init=_narrow_uniform))
