"""``paddle.dataset``: its modules are those of fluidlite themselves, for scripts set their URL, MD5 and DATA_HOME."""

import sys

from fluidlite.compat.dataset import (
    cifar,
    common,
    conll05,
    imdb,
    imikolov,
    mnist,
    movielens,
    sentiment,
    uci_housing,
    wmt14,
    wmt16,
)

_modules = (cifar, common, conll05, imdb, imikolov, mnist, movielens, sentiment, uci_housing, wmt14, wmt16)
sys.modules.update({f"{__name__}.{module.__name__.rpartition('.')[2]}": module for module in _modules})

from paddle.dataset import flowers, image, mq2007, voc2012
