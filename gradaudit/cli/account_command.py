"""`gradaudit account`: epsilon by every method, and what is really guaranteed."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from gradaudit.cli import console, options
from gradaudit.cli.options import option
from gradaudit.errors import InputError

if TYPE_CHECKING:
    from gradaudit.privacy import Events, Privacy


EPILOG = """\
Examples:

gradaudit account --sigma 6 --q 0.01 --steps 10000

gradaudit account --schedule exponential:sigma0=15,sigma1=4.85 --q 0.01 --steps 10000
--target-epsilon 0.823

gradaudit account --calibrate --target-epsilon 1 --q 0.01 --steps 10000

gradaudit account --defense fed-cdp:clip=4,sigma=6 --dataset mnist

gradaudit account --defense fed-cdp:scope=global --dataset cancer --batches poisson
"""
_NOISE, _DEFENSE, _INVERSE = "The noise itself", "From a defense", "The other way round"

Sigma = Annotated[float | None, option("Noise multiplier of every step.", panel=_NOISE)]
Rate = Annotated[float | None, option("Sampling rate of a step.", "--q", panel=_NOISE)]
Steps = Annotated[int | None, option("How many steps are composed.", panel=_NOISE)]
Schedule = Annotated[
    str | None,
    option("Per step: POLICY:sigma0=A,sigma1=B, or @FILE of sigmas.", panel=_NOISE),
]
Trace = Annotated[
    str | None,
    option("File of each step's sensitivity S; with --noise-std.", panel=_NOISE),
]
NoiseStd = Annotated[
    float | None, option("Noise std, fixed while S changes.", panel=_NOISE)
]
DefenseName = Annotated[
    str | None, option("As fed-cdp:clip=4,sigma=6.", panel=_DEFENSE)
]
Tensors = Annotated[
    int, option("Tensors of the model, each clipped on its own.", panel=_DEFENSE)
]
SamplingName = Annotated[
    str,
    option(
        "Rate of an example as the claim counts it: local (B / examples, the papers' "
        "0.01) or global (times the share of clients).",
        panel=_DEFENSE,
    ),
]
Participations = Annotated[
    int | None,
    option("Rounds that a client really took part in, for the views.", panel=_DEFENSE),
]
DatasetName = Annotated[
    str, option("Whose published setting is used.", panel=options.SETTING)
]
Rounds = Annotated[int | None, option("Rounds, T.", panel=options.SETTING)]
Copies = Annotated[
    int | None,
    option(
        "Clients that hold one example (default: from the partition and the dataset).",
        panel=options.SETTING,
    ),
]
TargetEpsilon = Annotated[
    float | None, option("A budget: at which step is it exhausted?", panel=_INVERSE)
]
Calibrate = Annotated[
    bool, option("Which sigma gives --target-epsilon?", "--calibrate", panel=_INVERSE)
]
TargetAccuracy = Annotated[
    float | None, option("Stop when --log reaches this accuracy.", panel=_INVERSE)
]
Log = Annotated[
    str | None,
    option("Training log, CSV with accuracy and round or step.", panel=_INVERSE),
]
Delta = Annotated[float, option("Delta.")]
Convention = Annotated[str, option("clean, or paper: their rounding and off-by-one.")]
Plot = Annotated[str | None, option("Write epsilon over steps to this file.")]

# What is answered within seconds.
_MOST_STEPS, _MOST_CHANGES, _MOST_EXAMPLES = 10**6, 10**5, 10**8


@console.errors_in_words()
def account(
    context: typer.Context,
    sigma: Sigma = None,
    q: Rate = None,
    steps: Steps = None,
    schedule: Schedule = None,
    trace: Trace = None,
    noise_std: NoiseStd = None,
    defense: DefenseName = None,
    tensors: Tensors = 6,
    sampling: SamplingName = "local",
    participations: Participations = None,
    dataset: DatasetName = "mnist",
    rounds: Rounds = None,
    local_steps: options.LocalSteps = None,
    batch_size: options.BatchSize = None,
    examples: options.Examples = None,
    clients: options.Clients = None,
    clients_per_round: options.ClientsPerRound = None,
    selection: options.SelectionWord = None,
    batches: options.BatchesWord = None,
    partition: options.PartitionWord = None,
    copies: Copies = None,
    target_epsilon: TargetEpsilon = None,
    calibrate: Calibrate = False,
    target_accuracy: TargetAccuracy = None,
    log: Log = None,
    delta: Delta = 1e-5,
    convention: Convention = "clean",
    plot: Plot = None,
    as_json: options.Json = False,
) -> None:
    """Show the privacy spent: all methods side by side, and what holds."""
    _refuse_what_has_no_effect(context, calibrate, defense, trace)
    if calibrate:
        _calibrate(target_epsilon, q, steps, delta, as_json)
        return
    limit = _reached(log, target_accuracy)
    if defense is not None:
        privacy = _privacy(context, defense, limit)
        _answer(context, privacy, privacy.events)
        return
    events = _events(sigma, q, steps, schedule, noise_std, trace)
    _answer(context, None, events if limit is None else events.first(limit))


def _answer(
    context: typer.Context, privacy: "Privacy | None", events: "Events | None"
) -> None:
    from gradaudit import privacy as accounting
    from gradaudit.privacy.calibrate import rounds_within
    from gradaudit.privacy.statement import account_as_plain, privacy_as_plain
    from gradaudit.report import tables_of_privacy

    said = context.params
    delta, convention, target = (
        said[name] for name in ("delta", "convention", "target_epsilon")
    )
    if privacy is not None:
        answers, plain = privacy.claimed, privacy_as_plain(privacy)
    else:
        answers = accounting.account(_finite(events), delta, convention=convention)
        plain = account_as_plain(answers) | {"guarantee": None}
    stops: dict[str, accounting.Stop] = {}
    if target is not None:
        stops = {
            name: accounting.exhausted_at(
                target, _finite(events), delta, name, convention
            )
            for name in accounting.METHODS
        }
        plain["target_epsilon"] = target
        plain["exhausted_at"] = {name: stop.step for name, stop in stops.items()}
        if privacy is not None:
            plain["rounds_within"] = rounds_within(target, privacy.plan, delta)
    if said["plot"] is not None:
        from gradaudit.report.figures_of_privacy import plot_over_steps

        plot_over_steps(said["plot"], _finite(events), delta, convention, target)
        console.err.print(f"wrote {said['plot']}", markup=False)
    shown: list[RenderableType] = []
    if answers is not None:
        shown.append(tables_of_privacy.methods_table(answers, stops, target))
    if privacy is not None:
        shown.append(tables_of_privacy.privacy_table(privacy))
        if target is not None:
            shown.append(
                f"rounds whose accounted epsilon stays within {target:g}: "
                f"{plain['rounds_within']}"
            )
    console.show(plain, shown, said["as_json"])


def _finite(events: "Events | None") -> "Events":
    if events is None:
        raise InputError("this defense has no finite epsilon to plot or to exhaust")
    return events


def _calibrate(
    target: float | None,
    q: float | None,
    steps: int | None,
    delta: float,
    as_json: bool,
) -> None:
    from gradaudit import privacy as accounting
    from gradaudit.report.tables_of_privacy import sigmas_table

    if target is None or q is None or steps is None:
        raise InputError("--calibrate needs --target-epsilon, --q and --steps")
    if not 1 <= steps <= _MOST_STEPS:
        raise InputError(f"--calibrate takes 1..{_MOST_STEPS:,} steps, got {steps:,}")
    found: dict[str, float | str] = {}
    for name in accounting.METHODS:
        try:
            found[name] = accounting.calibrate(target, q, steps, delta, name)
        except InputError as error:
            if "never goes below" not in str(error):
                raise
            found[name] = str(error)
    plain = {
        "target_epsilon": target,
        "q": q,
        "steps": steps,
        "delta": delta,
        "sigma": {n: None if isinstance(v, str) else v for n, v in found.items()},
    }
    console.show(plain, [sigmas_table(found, target, q, steps, delta)], as_json)


def _events(
    sigma: float | None,
    q: float | None,
    steps: int | None,
    schedule: str | None,
    noise_std: float | None,
    trace: str | None,
) -> "Events":
    from gradaudit import privacy as accounting

    if q is None:
        raise InputError("say the sampling rate with --q, or give a --defense")
    given = [value is not None for value in (sigma, schedule, trace)]
    if sum(given) != 1:
        raise InputError(
            "give exactly one of --sigma, --schedule, --trace (or a --defense)"
        )
    if trace is not None:
        if noise_std is None:
            raise InputError("--trace needs --noise-std")
        return accounting.from_sensitivity_trace(noise_std, _numbers(trace), q)
    if schedule is not None and schedule.startswith("@"):
        return accounting.gaussian(_numbers(schedule[1:]), q)
    if steps is None:
        raise InputError("say how many --steps")
    if sigma is not None:
        return accounting.gaussian(sigma, q, steps)
    return accounting.gaussian(_scheduled(str(schedule), steps), q)


def _scheduled(text: str, steps: int) -> list[float]:
    """Returns the values of `POLICY:sigma0=A,sigma1=B`, one per step."""
    from gradaudit.defenses.schedules import decay

    policy, _, rest = text.partition(":")
    try:
        values = {
            key.strip(): float(value)
            for key, _, value in (item.partition("=") for item in rest.split(","))
        }
        start, end = values.pop("sigma0"), values.pop("sigma1")
    except (KeyError, ValueError):
        raise InputError(
            f"--schedule must be POLICY:sigma0=A,sigma1=B or @FILE, got {text!r}"
        ) from None
    if values:
        raise InputError(f"unknown in --schedule: {', '.join(values)}")
    if not steps >= 1:
        raise InputError(f"steps must be at least 1, got {steps}")
    if not steps <= _MOST_CHANGES:
        raise InputError(f"a schedule has at most {_MOST_CHANGES:,} steps")
    sigmas = decay(policy, start, end, steps)
    return [float(sigmas(t)) for t in range(steps)]


def _numbers(path: str) -> tuple[float, ...]:
    from gradaudit.defenses.schedules import Table

    return Table.read(path).values


def _reached(log: str | None, accuracy: float | None) -> int | None:
    if log is None and accuracy is None:
        return None
    if log is None or accuracy is None:
        raise InputError("--log and --target-accuracy belong together")
    from gradaudit.privacy.calibrate import first_reaching, read_log

    return first_reaching(read_log(log), accuracy)


def _privacy(context: typer.Context, defense: str, limit: int | None) -> "Privacy":
    """Returns what a defense claims and releases in its setting, of `limit` rounds."""
    from gradaudit import privacy as accounting
    from gradaudit.data.catalogue import CATALOGUE
    from gradaudit.defenses.parsing import parse
    from gradaudit.federation.setting import paper_setting

    said = context.params
    setting = options.changed_setting(context, paper_setting(said["dataset"]))
    if limit is not None:
        setting = dataclasses.replace(setting, rounds=limit)
    steps = setting.rounds * setting.local_steps
    if not (steps <= _MOST_STEPS and setting.examples <= _MOST_EXAMPLES):
        raise InputError(
            f"{steps:,} local steps on {setting.examples:,} examples are not "
            f"accounted: at most {_MOST_STEPS:,} on {_MOST_EXAMPLES:,}"
        )
    known = CATALOGUE.get(said["dataset"])
    asked = options.told(context, accounting.epsilon) | {
        "defense": parse(defense),
        "setting": setting,
        "sampling": options.word("sampling", said["sampling"], accounting.Sampling),
        "class_sizes": known.class_sizes("train") if known else (),
    }
    return accounting.epsilon(**asked)


def _refuse_what_has_no_effect(
    context: typer.Context, calibrate: bool, defense: str | None, trace: str | None
) -> None:
    """Raises for an option that was given and would be ignored."""
    refuse = functools.partial(options.refuse, context)
    if calibrate:
        refuse("with --calibrate", _DEFENSE, options.SETTING)
        refuse("with --calibrate", "sigma", "schedule", "trace", "noise_std")
        refuse("with --calibrate", "log", "target_accuracy", "convention", "plot")
    elif defense is None:
        refuse("without --defense", _DEFENSE, options.SETTING)
        if trace is None:
            refuse("without --trace", "noise_std")
        else:
            refuse("with --trace, which has its own", "steps")
    else:
        refuse("with --defense: it is derived from it", _NOISE)
