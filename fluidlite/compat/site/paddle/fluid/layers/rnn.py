"""``paddle.fluid.layers.rnn``: every layer can be had from here."""

from fluidlite.layers import *
