"""``paddle.fluid.data_feeder``."""

from fluidlite.data_feeder import DataFeeder
from fluidlite.dtypes import dtype_name as convert_dtype
