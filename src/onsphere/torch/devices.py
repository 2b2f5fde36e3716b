"""Which device a name means here."""

from __future__ import annotations

from typing import Any

import torch

from onsphere._internal.validation import parameter_error

__all__ = ["checked_device"]


def checked_device(owner: object, device: Any) -> torch.device:
    """The device of a name; "auto" is "cuda" where there is one, else "cpu".

    Examples
    --------
    >>> checked_device("fit", "cpu")
    device(type='cpu')
    """
    if isinstance(device, str) and device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError):
        raise parameter_error(owner, "device", "'auto' or a device that torch finds here", device) from None
