"""``paddle.fluid.incubate.fleet.base``."""

from paddle.fluid.incubate.fleet.base import fleet_base, mode, role_maker
