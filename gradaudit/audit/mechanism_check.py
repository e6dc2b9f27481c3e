"""Is the noise really on? What captured updates say of what a defense claims.

The finding that people need most: "claimed noise 0.5, measured 0.0004".
"""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dp_accounting import get_epsilon_gaussian

from gradaudit import machine
from gradaudit.audit.captured_files import Capture, find, read_capture
from gradaudit.audit.measured_noise import (
    CONFIDENCE,
    Arrays,
    Estimate,
    Pair,
    measure,
    most_noise,
    pooled,
    repeated,
    shrunk_to,
    usual,
)
from gradaudit.errors import InputError, unknown_name
from gradaudit.record import CLAIMS
from gradaudit.report.result import RunResult
from gradaudit.spec import Spec

TOLERANCE = 0.05  # of a claimed number
_DELTA = 1e-5  # where the claim has none
_STEPS = (("raw", "wire"), ("wire", "server"), ("raw", "server"))  # before, after
_LAWS = {"gaussian": 0.0, "laplace": 3.0}  # excess kurtosis
_TAILS = 0.3
_SURE = 1e-4  # of a wrong word about one of many updates


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a defense claims to do to an update; None is what it does not say."""

    clip: float | None = None
    noise_std: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    sensitivity: float | None = None
    law: str = "gaussian"
    mechanism: str = "the defense"

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Claim":
        """Returns the claim with its noise: stated, or what its epsilon stands for.

        A multiplier is times the clip. An (epsilon, delta) of the classical Gaussian
        mechanism stands for clip * sqrt(2 ln(1.25 / delta)) / epsilon, whatever
        sensitivity somebody typed: one update can change by the clip.
        """
        known = {name: value for name, value in plain.items() if value is not None}
        multiplier = known.pop("noise_multiplier", None)
        claim = cls(**known)
        clip, std = claim.clip, claim.noise_std
        if std is None and multiplier is not None and clip:
            std = multiplier * clip
        if std is None and claim.epsilon and clip:
            delta = claim.delta or _DELTA
            std = clip * math.sqrt(2 * math.log(1.25 / delta)) / claim.epsilon
        return dataclasses.replace(claim, noise_std=std)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that was compared, in words; `against` the claim, or beside it."""

    what: str
    sentence: str
    against: bool


@dataclasses.dataclass(frozen=True)
class MechanismCheck(RunResult):
    """What was claimed, what was measured, and whether they can both be true."""

    claim: Claim
    pairs: tuple[Pair, ...]
    alone: int  # updates of which only what arrived is there
    noise: Estimate  # pooled; from what arrived alone, an upper bound
    clip: Estimate | None  # the bound that was at work, if one was
    findings: tuple[Finding, ...]
    epsilon: float | None  # that the measured noise gives for one update, at delta

    @property
    def verdict(self) -> str:
        """Whether the claim is refuted, consistent, or can't be told."""
        if any(finding.against for finding in self.findings):
            return "refuted"
        silent = self.claim.noise_std is None and self.claim.clip is None
        return "can't tell" if silent or not self.pairs else "consistent"

    def content(self) -> dict[str, Any]:
        """Returns what came out, as result.json has it."""
        return {
            "metrics": {
                "verdict": self.verdict,
                "pairs": len(self.pairs),
                "updates_alone": self.alone,
                "claimed": dataclasses.asdict(self.claim),
                "noise_std": dataclasses.asdict(self.noise),
                "clip": self.clip and dataclasses.asdict(self.clip),
                "epsilon_of_one_update": self.epsilon,
                "delta": self.claim.delta or _DELTA,
                "findings": [dataclasses.asdict(each) for each in self.findings],
            },
        }

    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """Returns pairs.csv, a row for each update before and after."""
        return {
            "pairs.csv": [
                {
                    "update": pair.label,
                    "norm_before": pair.before,
                    "norm_kept": pair.kept,
                    "noise_std": pair.noise.value,
                    "noise_low": pair.noise.low,
                    "noise_high": pair.noise.high,
                    "tails": pair.tails,
                }
                for pair in self.pairs
            ]
        }


def mechanism_check(
    captured: str | pathlib.Path, claim: Mapping[str, Any] | None = None
) -> MechanismCheck:
    """Compares what captured updates show of a defense with what it claims.

    Args:
      captured: a folder of updates, as `gradaudit.record` writes them. Pairs that were
        recorded before (`raw`) and after (`wire`) the defense tell most; the rest
        still bounds the noise from above.
      claim: what is claimed, over what the sidecars say: see `gradaudit.record.CLAIMS`.
    """
    for name in claim or ():
        if name not in CLAIMS:
            raise unknown_name("claim", name, CLAIMS)
    captures = [read_capture(folder) for folder in find(captured)]
    said = Claim.of((claimed(captures) or {}) | dict(claim or {}))
    if said.law not in _LAWS:
        raise InputError(f"the law must be {' or '.join(_LAWS)}, got {said.law!r}")
    pairs = pairs_of(captures)
    arrived = [c.moved() for c in captures if c.facts.place != "raw"]
    if pairs:
        noise = pooled(pairs)
    else:
        most = most_noise(arrived)
        noise = Estimate(most, most, most)
    clip = shrunk_to(pairs)
    findings = _findings(said, pairs, noise, clip)
    delta, bound = said.delta or _DELTA, said.clip or (clip.value if clip else None)
    epsilon = None
    if pairs and bound and said.law == "gaussian":
        noisy = any(pair.has_noise for pair in pairs)
        multiplier = noise.value / bound
        epsilon = get_epsilon_gaussian(multiplier, delta) if noisy else math.inf
    return MechanismCheck(
        spec=Spec.of("captured-check", captured=str(captured), claim=claim),
        environment=machine.describe(),
        claim=said,
        pairs=tuple(pairs),
        alone=0 if pairs else len(arrived),
        noise=noise,
        clip=clip,
        findings=tuple(findings),
        epsilon=epsilon,
        limitations=tuple(_limitations(pairs, said)),
    )


def claimed(captures: Sequence[Capture]) -> dict[str, Any] | None:
    """Returns the one claim of all sidecars that make one; None if none does."""
    claims = [dict(c.facts.claim) for c in captures if c.facts.claim]
    for claim in claims[1:]:
        if claim != claims[0]:
            raise InputError(
                f"the updates in {captures[0].folder.parent} make different claims: "
                f"{claims[0]} and {claim}; give each a folder of its own"
            )
    return claims[0] if claims else None


def pairs_of(captures: Sequence[Capture]) -> list[Pair]:
    """Returns the updates that were recorded before and after a defense."""
    by_place: dict[str, dict[Any, Capture]] = collections.defaultdict(dict)
    for capture in captures:
        by_place[capture.facts.place].setdefault(capture.identity, capture)
    for before, after in _STEPS:
        both = [key for key in by_place[before] if key in by_place[after]]
        if both and (None, None) not in both:
            found = [_pair(by_place[before][key], by_place[after][key]) for key in both]
            return [pair for pair in found if pair is not None]
    return _aggregates(by_place["server"], by_place["aggregate"])


def _pair(before: Capture, after: Capture) -> Pair | None:
    """Returns what happened to an update; None if no tensor of it is in both."""
    first, second = before.moved(), after.moved()
    names = [name for name in first if name in second]
    if not all(np.array_equal(before.received[n], after.received[n]) for n in names):
        raise InputError(
            f"{before.folder} and {after.folder} are of one round and client, and "
            "started from different parameters: they are no pair; give each run its "
            "own folder"
        )
    if not names:
        return None
    number, client = after.identity
    return measure(
        f"round {number}, client {client}",
        {name: first[name] for name in names},
        {name: second[name] for name in names},
        after.received,
    )


def _aggregates(
    replies: Mapping[Any, Capture], released: Mapping[Any, Capture]
) -> list[Pair]:
    """Returns the mean of a round's replies beside what was released of it."""
    pairs = []
    for capture in released.values():
        number = capture.facts.round
        parts = [c.moved() for key, c in replies.items() if key[0] == number]
        if number is None or len(parts) != (capture.facts.clients or len(parts)):
            continue
        after = capture.moved()
        mean: Arrays = {
            name: np.asarray(np.mean([part[name] for part in parts], axis=0))
            for name in after
            if all(name in part for part in parts)
        }
        if mean:
            pairs.append(
                measure(f"round {number}, aggregate", mean, after, capture.received)
            )
    return pairs


def _findings(
    claim: Claim, pairs: Sequence[Pair], noise: Estimate, clip: Estimate | None
) -> list[Finding]:
    found = [*_of_noise(claim, pairs, noise), *_of_clip(claim, pairs, clip)]
    for first, second, same in repeated(pairs):
        words = f"the noise of {first} and of {second} is the same (correlation "
        words += f"{same:.2f}): a seed is used twice, and their difference has none"
        found.append(Finding("fresh noise", words, True))
    bare = sorted({name for pair in pairs for name in pair.without_noise()})
    if bare:
        words = f"tensors that get less than half of the noise: {', '.join(bare[:5])}"
        found.append(Finding("every tensor", words, claim.noise_std is not None))
    noisy = [pair for pair in pairs if pair.has_noise]
    strange = [p for p in noisy if abs(p.tails - _LAWS[claim.law]) > _tolerated(p)]
    if strange and not bare:
        tails = strange[0].tails
        words = f"what was added does not look {claim.law}: excess kurtosis "
        words += f"{tails:.2f}, expected {_LAWS[claim.law]:g}"
        found.append(Finding("law", words, claim.noise_std is not None))
    return found


def _tolerated(pair: Pair) -> float:
    # The kurtosis of n draws scatters by sqrt(24 / n) if they are Gaussian.
    return max(_TAILS, 6 * math.sqrt(24 / max(pair.added.size, 1)) * 4)


def _of_noise(claim: Claim, pairs: Sequence[Pair], noise: Estimate) -> list[Finding]:
    std = claim.noise_std
    off = bool(pairs) and not any(pair.has_noise for pair in pairs)
    if std is None:
        if not pairs:
            return []
        said = "no noise was added" if off else f"noise of {_shown(noise)} was added"
        return [Finding("noise", f"{said}; none is claimed", False)]
    least = (1 - TOLERANCE) * std
    if not pairs:
        words = f"claimed noise {std:.3g}, at most {noise.high:.3g} can have been added"
        return [Finding("noise", words, noise.high < least)]
    words = f"claimed noise {std:.3g}, measured {_shown(noise)}"
    if off:
        return [Finding("noise", f"{words}: it is off", std > 0)]
    if noise.high < least:
        times = std / noise.value
        return [Finding("noise", f"{words}: {times:.3g} times too small", True)]
    each = [pair for pair in pairs if pair.noise.high < least]
    if each:
        words += f"; but {each[0].label} had only {each[0].noise.value:.3g}"
        return [Finding("noise", words, True)]
    return [Finding("noise", words, False)]


def _of_clip(
    claim: Claim, pairs: Sequence[Pair], clip: Estimate | None
) -> list[Finding]:
    if not pairs:
        return []
    largest = max(pairs, key=lambda pair: pair.bound(_SURE).low)
    apart = any(pair.by_tensor for pair in pairs)
    one_by_one = "; tensors are clipped one by one" if apart else ""
    if claim.clip is None:
        if apart:
            words = f"norms up to {largest.kept:.3g} are sent{one_by_one}"
        elif clip is None:
            words = f"nothing was shrunk: norms up to {largest.before:.3g} were sent"
        else:
            words = f"updates are shrunk to a norm of {_shown(clip)}"
        return [Finding("clip", words, False)]
    allowed = (1 + TOLERANCE) * claim.clip
    words = f"claimed clip {claim.clip:.3g}, and "
    if largest.bound(_SURE).low > allowed:
        words += f"{largest.label} has norm {_shown(largest.bound())}{one_by_one}"
        return [Finding("clip", words, True)]
    if usual(pairs, _SURE).low > allowed:
        words += f"updates have norm {_shown(usual(pairs))} on average{one_by_one}"
        return [Finding("clip", words, True)]
    if apart:
        words = f"claimed clip {claim.clip:.3g}, norms up to {largest.kept:.3g}"
        return [Finding("clip", f"{words}{one_by_one}", False)]
    if clip is None:
        words = f"claimed clip {claim.clip:.3g} was never at work: norms up to "
        return [Finding("clip", f"{words}{largest.before:.3g}", False)]
    words = f"claimed clip {claim.clip:.3g}, measured {_shown(clip)}"
    return [Finding("clip", words, False)]


def _shown(estimate: Estimate) -> str:
    return f"{estimate.value:.3g} [{estimate.low:.3g}, {estimate.high:.3g}]"


def _limitations(pairs: Sequence[Pair], claim: Claim) -> list[str]:
    sentences = [
        f"Intervals are at {CONFIDENCE:.0%} and take the noise to be independent in "
        "every coordinate."
    ]
    if not pairs:
        sentences.append(
            "No update was recorded before and after the defense: what arrived bounds "
            "the noise from above, and says nothing of the clip. Record `raw` and "
            "`wire` to measure both."
        )
    if claim.clip:
        sentences.append(
            "Epsilon is of one update against none (a change of the clip). Between "
            "any two updates, as local privacy means it, the change is twice the clip."
        )
    return sentences
