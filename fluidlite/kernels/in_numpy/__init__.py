"""The kernels in numpy: the reference for those in C."""
