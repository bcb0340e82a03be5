"""``paddle.fluid.executor``."""

from fluidlite.compat.fetched import Executor, as_numpy
from fluidlite.compat.legacy import fetch_var
from fluidlite.compat.legacy import fetch_var as _fetch_var
from fluidlite.dataset_run import FetchHandler
from fluidlite.runtime.scope import Scope, global_scope, scope_guard
