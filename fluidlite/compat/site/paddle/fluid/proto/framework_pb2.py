"""``paddle.fluid.proto.framework_pb2``: the messages of programs."""

from fluidlite.proto_gen.framework_pb2 import *
