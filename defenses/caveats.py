"""Why a noise scale may not be the guarantee that it is accounted as, in sentences."""

from gradaudit.defenses.clipping import Clip
from gradaudit.defenses.norms import Scope
from gradaudit.defenses.sensitivity import Sensitivity

NO_CLIP = (
    "Nothing bounds what one unit can change, so the noise has no sensitivity and "
    "there is no differential privacy guarantee."
)
DATA_DEPENDENT = (
    "The noise scale is the largest norm in the private batch (l2-max): it depends on "
    "the data that it should hide, so the Gaussian mechanism's guarantee does not hold."
)
PER_TENSOR = (
    "Each of the M tensors is clipped to C on its own, so one unit can change the "
    "release by C * sqrt(M) jointly; the claim counts C."
)
ON_BATCH = (
    "One draw hides the batch sum; an adversary who reads single examples (type 2) is "
    "not covered by the claim."
)
UNTIED = (
    "The noise is scaled to {sensitivity:.6g} while the clip allows {clip:.6g}: the "
    "noise multiplier that holds is smaller than the one that is claimed."
)
WRONG_NORM = (
    "The clip bounds the L{clip} norm and the noise is calibrated for L{noise}."
)


def unbounded(t: int) -> None:
    """Returns None, the clip of a mechanism where nothing bounds a unit."""


def caveats(
    clip: Clip | None, sensitivity: Sensitivity, noise_norm: int, on_batch: bool
) -> tuple[str, ...]:
    """Returns the sentences that apply to noise of this sensitivity after this clip."""
    if clip is None:
        return (NO_CLIP,)
    found = []
    if sensitivity.data_dependent:
        found.append(DATA_DEPENDENT)
    if clip.scope is Scope.TENSOR:
        found.append(PER_TENSOR)
    if on_batch:
        found.append(ON_BATCH)
    claimed, allowed = sensitivity.bound(0), clip.bound(0)
    if claimed < allowed * (1 - 1e-9):
        found.append(UNTIED.format(sensitivity=claimed, clip=allowed))
    if clip.norm.value > noise_norm:
        found.append(WRONG_NORM.format(clip=clip.norm.value, noise=noise_norm))
    return tuple(found)
