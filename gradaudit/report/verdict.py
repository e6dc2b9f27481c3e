"""What an audit says: of each cell, of each place, and in one line.

Three answers, worst first: it *leaks* (shown), it was *not shown to leak* (with how
much could have been missed), or it is *certified below* a bound for anybody.
Nothing is ever called safe.
"""

import math
from collections.abc import Sequence
from typing import Any

from scipy import special

Plain = dict[str, Any]

LEAKS, UNSHOWN, CERTIFIED = "leaks", "not shown to leak", "certified below"
FAILED, MISSING = "failed", "missing"
# Worst first: what is unknown is worse than what was tried in vain.
ORDER = (LEAKS, FAILED, MISSING, UNSHOWN, CERTIFIED)
WORTH = 0.5  # a bound above it says less than "rather not"
_DOUBT = 0.025
_RATE = ("value", "low", "high", "interval")

PLACES = {
    2: "one example's gradient, at the client",
    1: "a client's update, at the client",
    0: "a client's update, at the server",
}
_KNOWS = {
    "curious": "knows the model only",
    "aware": "also knows the defense",
    "informed": "also has candidates",
    "malicious": "also chooses the model's parameters",
}


def verdict_of(cell: Plain, outcome: Plain | None) -> Plain:
    """Returns the verdict on an attack's or a line-up's cell, as audit.json has it."""
    if outcome is None or outcome["status"] == MISSING or outcome["result"] is None:
        kind = FAILED if outcome and outcome["status"] == FAILED else MISSING
        said = "It was not run."
        if outcome and outcome["error"]:
            said = f"It could not be run: {outcome['error']}"
        return _verdict(kind, said)
    result = outcome["result"]
    if cell["kind"] == "line-up":
        return _of_line_up(result)
    if "determined" in result["metrics"]:
        return _of_unseen(cell, result)
    return _of_attack(cell, result)


def _verdict(
    kind: str,
    sentence: str,
    rate: Plain | None = None,
    guess: float | None = None,
    certified: float | None = None,
    tried: str = "nothing",
) -> Plain:
    return {
        "kind": kind,
        "sentence": sentence,
        "rate": rate,
        "guess": guess,
        "certified": certified,
        "tried": tried,
    }


def successes(result: Plain) -> tuple[int, int]:
    """Returns how many victims of an attack were rebuilt, and of how many."""
    won = sum(draw["successes"] for draw in result["draws"])
    return won, result["victims"]["asked"]


def beats(successes: int, trials: int, rate: float, doubt: float = _DOUBT) -> bool:
    """Returns whether so many successes show more than this rate (Clopper-Pearson).

    That these victims leaked does not depend on how networks differ: an interval for
    other networks is wider, and decides how *much* leaks.
    """
    if successes == 0:
        return False
    least = special.betaincinv(successes, trials - successes + 1, doubt)
    return bool(least > rate)


def _of_attack(cell: Plain, result: Plain) -> Plain:
    asr, (won, asked) = result["metrics"]["asr"], successes(result)
    rate = {key: asr[key] for key in _RATE}
    guess = asr["guess"] or 0.0
    bound = (result.get("certificate") or {}).get("value")
    iterations = result["metrics"]["iterations"]["cap"]
    members = result["about"].get("members")
    parts = f" ({', '.join(members)})" if members else ""
    tried = (
        f"{cell['method']}{parts}, {cell['threat']}, at most {iterations} iterations, "
        f"{asked} victims over {len(result['draws'])} "
        f"network{'s' * (len(result['draws']) != 1)}"
    )
    batch = result["about"]["batch_size"] * result["about"]["local_steps"]
    what = "victims" if batch == 1 else f"batches of {batch}"
    rebuilt = (
        f"{won} of {asked} {what} were rebuilt (RMSE <= {asr['threshold']:g}): "
        f"{in_words(rate)}; guessing reaches {guess:.2f}"
    )
    missing = len(result["victims"]["missing"])
    more = f" {missing} were never begun." if missing else ""
    share = result["metrics"]["examples_rebuilt"]
    if batch > 1 and share > 0:
        more = f" {share:.0%} of all examples were rebuilt.{more}"
    if bound is not None and beats(won, asked, bound):
        said = f"{rebuilt}, and the noise would allow {bound:.2f}: it is not on."
        return _verdict(LEAKS, said, rate, guess, None, tried)
    if beats(won, asked, guess):
        return _verdict(LEAKS, f"{rebuilt}.{more}", rate, guess, bound, tried)
    if bound is not None and bound < WORTH:
        said = f"Nobody rebuilds more than {bound:.2g} (certified). {rebuilt}.{more}"
        return _verdict(CERTIFIED, said, rate, guess, bound, tried)
    said = (
        f"{rebuilt}. At 95 % no more than {rate['high']:.2f} are, by what was "
        f"tried.{more}"
    )
    return _verdict(UNSHOWN, said, rate, guess, bound, tried)


def _of_unseen(cell: Plain, result: Plain) -> Plain:
    """Of captured updates without a truth: what they determine leaks."""
    found, asked = result["metrics"]["determined"], result["victims"]["asked"]
    rate = {key: found[key] for key in _RATE}
    won = sum(row["determined"] for row in result["metrics"]["updates"])
    tried = (
        f"{cell['method']}, {cell['threat']}, {result['about']['restarts']} starts, "
        f"{asked} updates"
    )
    said = (
        f"{won} of {asked} updates determine what they are of (an answer explains all "
        f"but {found['unexplained_at_most']:.0%}, and independent starts agree on it): "
        f"{in_words(rate)}; nobody compared it with the private data"
    )
    kind = LEAKS if won else UNSHOWN
    return _verdict(kind, f"{said}.", rate, 0.0, None, tried)


def _of_line_up(result: Plain) -> Plain:
    rows = result["metrics"]["cells"]
    first, broken = rows[0], result["metrics"]["certificate_broken"]
    rate, guess = first["measured"], first["guessing"]
    bound = first["certified"]["value"]
    count, looks = first["candidates"], first["looks"]
    tried = f"line-up, {first['line_ups']} times, {looks} look{'s' * (looks != 1)}"
    picked = (
        f"The victim is picked out of {count}: {in_words(rate)}; guessing reaches "
        f"{guess:.2g}"
    )
    if broken:
        said = f"{picked}. That is more than the noise allows: it is not on."
        return _verdict(LEAKS, said, rate, guess, None, tried)
    won = round((rate["value"] or 0.0) * first["line_ups"])
    above = beats(won, first["line_ups"], guess)
    if bound is not None and bound < WORTH:
        said = f"Nobody picks more than {bound:.2g} (certified). {picked}"
        said += ", so that something is learned." if above else "."
        return _verdict(CERTIFIED, said, rate, guess, bound, tried)
    if above:
        return _verdict(LEAKS, f"{picked}.", rate, guess, bound, tried)
    said = f"{picked}. At 95 % no more than {rate['high']:.2f} are, by what was tried."
    return _verdict(UNSHOWN, said, rate, guess, bound, tried)


def in_words(rate: Plain) -> str:
    """Returns a rate with its interval."""
    value = math.nan if rate["value"] is None else rate["value"]
    return f"{value:.2f} [{rate['low']:.2f}, {rate['high']:.2f}]"


def epsilon_in_words(value: float | str) -> str:
    """Returns a number, or the word inf."""
    return value if isinstance(value, str) else f"{value:.3g}"


def worst(cells: Sequence[Plain]) -> Plain | None:
    """Returns the cell (of audit.json) that decides; None of none."""
    return min(cells, key=_badness, default=None)


def _badness(cell: Plain) -> tuple[float, ...]:
    """Sorts the worst first: a picture rebuilt is worse than a picture picked out."""
    verdict = cell["verdict"]
    rate = verdict["rate"] or {"low": 0.0, "high": 1.0}
    by = {
        LEAKS: rate["low"],
        UNSHOWN: rate["high"],
        CERTIFIED: verdict["certified"] or 0.0,
    }
    kind = verdict["kind"]
    return ORDER.index(kind), cell["kind"] == "line-up", -by.get(kind, 0.0)


def headline(cells: Sequence[Plain], claims: Sequence[Plain]) -> Plain:
    """Returns the verdict on the whole: the worst cell that is no control decides."""
    subjects = [cell for cell in cells if not cell["defense"]["control"]]
    controls = [cell for cell in cells if cell["defense"]["control"]]
    decides = worst(subjects)
    kinds = [cell["verdict"]["kind"] for cell in subjects]
    return {
        "verdict": MISSING if decides is None else decides["verdict"]["kind"],
        "sentence": _sentence(decides, len(subjects)),
        "cell": None if decides is None else decides["id"],
        "claims": list(claims),
        "control": _control(controls),
        "counts": {kind: kinds.count(kind) for kind in ORDER},
    }


def _sentence(cell: Plain | None, among: int) -> str:
    if cell is None:
        return "Nothing was attacked."
    known = cell["threat"]["name"] if cell["threat"] else ""
    knows = _KNOWS.get(known.partition("+")[0], f"is {known}")
    return (
        f"Under {cell['defense']['text']}, an adversary that {knows} and reads "
        f"{cell['place']}: {cell['verdict']['sentence']} (The worst of {among} cells.)"
    )


def _control(cells: Sequence[Plain]) -> str | None:
    """Says whether the attacks work at all where nothing stops them."""
    run = [cell for cell in cells if cell["verdict"]["kind"] not in (FAILED, MISSING)]
    if not run:
        return "What leaks without a defense was not run." if cells else None
    leaks = [cell for cell in run if cell["verdict"]["kind"] == LEAKS]
    left = len(cells) - len(run)
    more = f" ({left} more were not run.)" if left else ""
    if len(leaks) == len(run):
        return f"Without a defense every place leaks: the attacks work here.{more}"
    if leaks:
        silent = [c["name"] for c in run if c["verdict"]["kind"] != LEAKS]
        return (
            f"Without a defense {len(leaks)} of {len(run)} places leak; where they "
            f"do not ({'; '.join(silent)}), a defense can't be credited.{more}"
        )
    return (
        "Without a defense nothing was shown to leak either: these attacks are too "
        f"weak here to say anything about the defenses.{more}"
    )


def places(cells: Sequence[Plain]) -> list[Plain]:
    """Returns the worst cell of each place, threat and defense."""
    groups: dict[tuple[int, str, str], list[Plain]] = {}
    for cell in cells:
        key = cell["type"], cell["threat"]["name"], cell["defense"]["text"]
        groups.setdefault(key, []).append(cell)
    rows = []
    for (leakage, threat, defense), group in groups.items():
        chosen = worst(group) or group[0]
        rows.append(
            {
                "type": leakage,
                "threat": threat,
                "defense": defense,
                "verdict": chosen["verdict"]["kind"],
                "sentence": chosen["verdict"]["sentence"],
                "cell": chosen["id"],
            }
        )
    return rows


def claims_of(
    defense: str, accounting: Plain | None, mechanism: Plain | None
) -> list[str]:
    """Returns what a defense claims that is no guarantee, as sentences."""
    found = []
    if accounting is not None and not accounting["guarantee"]["valid"]:
        epsilon = accounting["epsilon"]
        claimed = epsilon_in_words(epsilon["claimed"])
        holds = epsilon_in_words(epsilon["effective"])
        reasons = " ".join(accounting["guarantee"]["reasons"])
        said = f"The claim of epsilon = {claimed} is no guarantee."
        if claimed == "inf":
            said = "There is no guarantee to claim."
        ending = f"What holds is epsilon = {holds}."
        if holds == "inf":
            ending = "No finite epsilon holds."
        found.append(f"{said} {reasons} {ending}")
    if mechanism is not None and "findings" in mechanism.get("metrics", {}):
        for each in mechanism["metrics"]["findings"]:
            sentence = each["sentence"]
            if each["against"]:
                found.append(f"{sentence[:1].upper()}{sentence[1:]}.")
    elif mechanism is not None:
        result = mechanism["result"]
        bound, exact = result["lower_bound"], result["closed_form"]
        # Above what the parts themselves amount to: then it is not what they say.
        if exact is not None and bound > exact * 1.001:
            found.append(
                f"The noise of one release is not what it says: trials prove epsilon "
                f">= {bound:.2f} where it amounts to {exact:.2f}."
            )
    return found
