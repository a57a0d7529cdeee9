# SPDX-License-Identifier: Apache-2.0
"""The wheel has the library of one processor and no module that was compiled for one Python. See tools/wheel."""
import os

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Binary(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(version=os.environ.get("EXPERTFS_VERSION", "0"), distclass=Binary, cmdclass={"bdist_wheel": AnyPython})
