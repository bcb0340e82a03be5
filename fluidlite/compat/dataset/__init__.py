"""``paddle.dataset``: the data of Fluid's examples, from files that the user has put into the cache directory.

Nothing is downloaded: `common.download` finds a file and checks it, or says which file is wanted where.
"""
