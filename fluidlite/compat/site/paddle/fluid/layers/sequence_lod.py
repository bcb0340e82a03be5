"""``paddle.fluid.layers.sequence_lod``: every layer can be had from here."""

from fluidlite.layers import *
