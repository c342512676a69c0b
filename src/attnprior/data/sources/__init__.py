"""Sources of images. Each module reads one original format; `SOURCES` names them."""

from collections.abc import Callable, Mapping

from attnprior.data.sources.cifar import cifar10, cifar100
from attnprior.data.sources.common import Found, Request
from attnprior.data.sources.digits import sklearn_digits
from attnprior.data.sources.flowers import flowers102
from attnprior.data.sources.folder import folder
from attnprior.data.sources.pets import pets
from attnprior.data.sources.stl10 import stl10
from attnprior.data.sources.svhn import svhn
from attnprior.data.sources.tiny_imagenet import tiny_imagenet

SOURCES: Mapping[str, Callable[[Request], Found]] = {
    f.__name__: f
    for f in (sklearn_digits, cifar10, cifar100, svhn, tiny_imagenet, stl10, flowers102, pets, folder)
}
