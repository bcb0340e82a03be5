"""``paddle.fluid.proto``."""

from paddle.fluid.proto import framework_pb2
