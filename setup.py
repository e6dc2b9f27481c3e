"""The C source that is compiled with the package: pyproject.toml cannot say it yet."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "gradaudit.models._convolution_maps",
            ["gradaudit/models/convolution_maps.c"],
            depends=["gradaudit/models/xla_ffi.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-Wno-psabi"],
            optional=True,  # without a C compiler the package works without it
        )
    ]
)
