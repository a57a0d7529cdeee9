# SPDX-License-Identifier: Apache-2.0
"""The wheel has the library of one processor and no module that was compiled for one Python. See tools/wheel."""
import os
import re

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


def version():
    """That of the source tree (VERSION of its Makefile), or as tools/wheel says, which builds a copy of this folder."""
    if "EXPERTFS_VERSION" in os.environ:
        return os.environ["EXPERTFS_VERSION"]
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../Makefile")) as makefile:
        return re.search(r"^VERSION := (\S+)$", makefile.read(), re.M).group(1)


setup(version=version(), distclass=Binary, cmdclass={"bdist_wheel": AnyPython})
