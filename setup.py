"""The C source that is compiled with the package: pyproject.toml cannot say it yet."""

import os

from setuptools import Extension, setup

SOURCES = {
    "gradaudit.models._convolution_maps": "gradaudit/models/convolution_maps.c",
    "gradaudit.defenses._normal_numbers": "defenses/normal_numbers.c",
    "gradaudit.defenses._unit_norms": "defenses/unit_norms.c",
}

setup(
    ext_modules=[
        Extension(
            name,
            [source],
            include_dirs=["gradaudit/models"],
            depends=["gradaudit/models/xla_ffi.h", "gradaudit/models/xla_call.h"],
            extra_compile_args=["-O3", "-std=gnu11", "-Wno-psabi", "-fno-math-errno"],
            libraries=[] if os.name == "nt" else ["m"],
            optional=True,  # without a C compiler the package works without it
        )
        for name, source in SOURCES.items()
    ]
)
