"""``paddle.fluid.data_feed_desc``."""

from fluidlite.compat.data_feed_desc import DataFeedDesc
