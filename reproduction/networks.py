"""The residual networks of the paper's tables, in sizes that onsphere itself does not carry."""

from onsphere.torch import ResNet

__all__ = ["resnet18", "resnet56"]


def resnet18(n_classes: int = 10) -> ResNet:
    """Return a ResNet-18 for 32×32 images: 11.17 million parameters.

    Examples
    --------
    >>> resnet18().n_features
    512
    """
    return ResNet((2, 2, 2, 2), (64, 128, 256, 512), n_classes=n_classes)


def resnet56(n_classes: int = 10) -> ResNet:
    """Return a ResNet-56 for CIFAR with shortcuts of option A: .85 million parameters.

    Examples
    --------
    >>> resnet56().n_features
    64
    """
    return ResNet((9, 9, 9), (16, 32, 64), n_classes=n_classes, shortcut="padded")
