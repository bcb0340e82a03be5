"""``paddle.distributed.fleet.base``."""

from paddle.distributed.fleet.base import role_maker
