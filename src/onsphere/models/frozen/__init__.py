"""HCM in closed form on the features of a network that stays as it is."""

from onsphere.models.frozen.frozen_head import FrozenHead
from onsphere.models.frozen.output_head import OutputHead

__all__ = ["FrozenHead", "OutputHead"]
