"""``paddle.compat``: text, bytes and numbers of Python 2 and 3."""

from fluidlite.compat.python2 import *
