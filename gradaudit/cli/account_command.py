"""`gradaudit account`: epsilon by every method, and what is really guaranteed."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli import console, options
from gradaudit.cli.console import err, errors_in_words, out, print_json
from gradaudit.errors import InputError

if TYPE_CHECKING:
    from gradaudit.federation.setting import Setting
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


def _option(panel: str, help: str, *flags: str) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=panel or None)


_NOISE, _DEFENSE, _INVERSE = "The noise itself", "From a defense", "The other way round"

Sigma = Annotated[float | None, _option(_NOISE, "Noise multiplier of every step.")]
Rate = Annotated[float | None, _option(_NOISE, "Sampling rate of a step.", "--q")]
Steps = Annotated[int | None, _option(_NOISE, "How many steps are composed.")]
Schedule = Annotated[
    str | None,
    _option(_NOISE, "Per step: POLICY:sigma0=A,sigma1=B, or @FILE of sigmas."),
]
Trace = Annotated[
    str | None, _option(_NOISE, "File of each step's sensitivity S; with --noise-std.")
]
NoiseStd = Annotated[float | None, _option(_NOISE, "Noise std, fixed while S changes.")]
DefenseName = Annotated[str | None, _option(_DEFENSE, "As fed-cdp:clip=4,sigma=6.")]
Tensors = Annotated[
    int, _option(_DEFENSE, "Tensors of the model, each clipped on its own.")
]
SamplingName = Annotated[
    str,
    _option(
        _DEFENSE,
        "Rate of an example as the claim counts it: local (B / examples, the papers' "
        "0.01) or global (times the share of clients).",
    ),
]
Participations = Annotated[
    int | None,
    _option(_DEFENSE, "Rounds that a client really took part in, for the views."),
]
DatasetName = Annotated[
    str, _option(options.SETTING, "Whose published setting is used.")
]
Rounds = Annotated[int | None, _option(options.SETTING, "Rounds, T.")]
Copies = Annotated[
    int | None,
    _option(
        options.SETTING,
        "Clients that hold one example (default: from the partition and the dataset).",
    ),
]
TargetEpsilon = Annotated[
    float | None, _option(_INVERSE, "A budget: at which step is it exhausted?")
]
Calibrate = Annotated[
    bool, _option(_INVERSE, "Which sigma gives --target-epsilon?", "--calibrate")
]
TargetAccuracy = Annotated[
    float | None, _option(_INVERSE, "Stop when --log reaches this accuracy.")
]
Log = Annotated[
    str | None, _option(_INVERSE, "Training log, CSV with accuracy and round or step.")
]
Delta = Annotated[float, _option("", "Delta.")]
Convention = Annotated[
    str, _option("", "clean, or paper: their rounding and off-by-one.")
]
Plot = Annotated[str | None, _option("", "Write epsilon over steps to this file.")]


# What is answered within seconds.
_MOST_STEPS, _MOST_CHANGES, _MOST_EXAMPLES = 10**6, 10**5, 10**8


@dataclasses.dataclass(frozen=True)
class _Question:
    """What every answer needs, however the noise was given."""

    delta: float
    convention: str
    target: float | None
    plot: str | None
    as_json: bool


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
    question = _Question(delta, convention, target_epsilon, plot, as_json)
    with errors_in_words():
        _refuse_what_has_no_effect(context, calibrate, defense, trace)
        if calibrate:
            _calibrate(question, q, steps)
            return
        limit = _reached(log, target_accuracy)
        if defense is None:
            events = _events(sigma, q, steps, schedule, noise_std, trace)
            _answer(question, None, events if limit is None else events.first(limit))
            return
        setting = _setting(
            dataset, rounds=rounds if limit is None else limit,
            local_steps=local_steps, batch_size=batch_size, examples=examples,
            clients=clients, clients_per_round=clients_per_round,
            selection=selection, batches=batches, partition=partition,
        )  # fmt: skip
        privacy = _privacy(
            question, defense, setting, dataset, copies, tensors, sampling,
            participations,
        )  # fmt: skip
        _answer(question, privacy, privacy.events)


def _answer(
    question: _Question, privacy: "Privacy | None", events: "Events | None"
) -> None:
    from gradaudit import privacy as accounting
    from gradaudit.privacy.calibrate import rounds_within
    from gradaudit.privacy.statement import account_as_plain, privacy_as_plain
    from gradaudit.report import tables_of_privacy

    delta, convention, target = question.delta, question.convention, question.target
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
    if question.plot is not None:
        from gradaudit.report.figures_of_privacy import plot_over_steps

        plot_over_steps(question.plot, _finite(events), delta, convention, target)
        err.print(f"wrote {question.plot}", markup=False)
    if question.as_json:
        print_json(plain)
        return
    if answers is not None:
        out.print(tables_of_privacy.methods_table(answers, stops, target))
    if privacy is not None:
        out.print(tables_of_privacy.privacy_table(privacy))
        if target is not None:
            within = plain["rounds_within"]
            out.print(
                f"rounds whose accounted epsilon stays within {target:g}: {within}"
            )


def _finite(events: "Events | None") -> "Events":
    if events is None:
        raise InputError("this defense has no finite epsilon to plot or to exhaust")
    return events


def _calibrate(question: _Question, q: float | None, steps: int | None) -> None:
    from gradaudit import privacy as accounting
    from gradaudit.report import tables_of_privacy

    target, delta = question.target, question.delta
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
    if not question.as_json:
        out.print(tables_of_privacy.sigmas_table(found, target, q, steps, delta))
        return
    sigmas = {
        name: value if isinstance(value, float) else None
        for name, value in found.items()
    }
    print_json(
        {"target_epsilon": target, "q": q, "steps": steps, "delta": delta}
        | {"sigma": sigmas}
    )


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
        if values:
            raise InputError(f"unknown in --schedule: {', '.join(values)}")
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"--schedule must be POLICY:sigma0=A,sigma1=B or @FILE, got {text!r}"
        ) from None
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


def _setting(dataset: str, **changes: Any) -> "Setting":
    """Returns the published setting with what the command line changes."""
    from gradaudit.data.partition import parse_partition
    from gradaudit.federation.setting import Batches, Selection, paper_setting

    read = {
        "selection": lambda text: console.word("selection", text, Selection),
        "batches": lambda text: console.word("batches", text, Batches),
        "partition": parse_partition,
    }
    given = {name: value for name, value in changes.items() if value is not None}
    given |= {name: read[name](given[name]) for name in read if name in given}
    setting = dataclasses.replace(paper_setting(dataset), **given)
    steps = setting.rounds * setting.local_steps
    if not (steps <= _MOST_STEPS and setting.examples <= _MOST_EXAMPLES):
        raise InputError(
            f"{steps:,} local steps on {setting.examples:,} examples are not "
            f"accounted: at most {_MOST_STEPS:,} on {_MOST_EXAMPLES:,}"
        )
    return setting


def _privacy(
    question: _Question,
    defense: str,
    setting: "Setting",
    dataset: str,
    copies: int | None,
    tensors: int,
    sampling: str,
    participations: int | None,
) -> "Privacy":
    from gradaudit import privacy as accounting
    from gradaudit.data.catalogue import CATALOGUE
    from gradaudit.defenses.parsing import parse

    known = CATALOGUE.get(dataset)
    return accounting.epsilon(
        parse(defense),
        setting,
        delta=question.delta,
        tensors=tensors,
        sampling=console.word("sampling", sampling, accounting.Sampling),
        convention=question.convention,
        copies=copies,
        class_sizes=known.class_sizes("train") if known else (),
        participations=participations,
    )


# Parameters that only mean something for one kind of question.
_OF_NOISE = ("sigma", "q", "steps", "schedule", "trace", "noise_std")
_OF_SETTING = (
    *("tensors", "sampling", "participations", "dataset", "rounds", "local_steps"),
    *("batch_size", "examples", "clients", "clients_per_round", "selection"),
    *("batches", "partition", "copies"),
)
_OF_LOGS = ("log", "target_accuracy")


def _refuse_what_has_no_effect(
    context: typer.Context, calibrate: bool, defense: str | None, trace: str | None
) -> None:
    """Raises for an option that was given and would be ignored."""
    refuse = functools.partial(console.refuse, context)
    if calibrate:
        known = ("q", "steps")
        noise = [name for name in _OF_NOISE if name not in known]
        others = (*noise, "defense", *_OF_SETTING, *_OF_LOGS, "convention", "plot")
        refuse(others, "with --calibrate")
    elif defense is None:
        refuse(_OF_SETTING, "without --defense")
        refuse(() if trace else ("noise_std",), "without --trace")
        refuse(("steps",) if trace else (), "with --trace, which has its own")
    else:
        refuse(_OF_NOISE, "with --defense: it is derived from it")
