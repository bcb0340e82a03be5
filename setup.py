"""Build script; everything static is in pyproject.toml."""

from setuptools import setup

setup()
