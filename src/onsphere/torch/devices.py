"""The old name of `onsphere.torch.find_device`, until reproduction/ uses the public one."""

from typing import Any

from onsphere.torch.running import find_device


def checked_device(owner: object, device: Any) -> Any:
    """Return the device of that name."""
    return find_device(device, owner=owner)
