"""`gradaudit account`: epsilon by every method, and what is really guaranteed."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli.console import err, errors_in_words, print_json
from gradaudit.errors import InputError, require
from gradaudit.report import tables as tables

if TYPE_CHECKING:
    from gradaudit.federation.setting import Setting
    from gradaudit.privacy import Account, Events, Privacy


EPILOG = """\
Examples:

gradaudit account --sigma 6 --q 0.01 --steps 10000

gradaudit account --schedule exponential:sigma0=15,sigma1=4.85 --q 0.01 --steps 10000
--target-epsilon 0.823

gradaudit account --calibrate --target-epsilon 1 --q 0.01 --steps 10000

gradaudit account --defense fed-cdp:clip=4,sigma=6 --dataset mnist
"""


_NOISE, _DEFENSE, _INVERSE = "The noise itself", "From a defense", "The other way round"


def account(
    sigma: Annotated[
        float | None,
        typer.Option(help="Noise multiplier of every step.", rich_help_panel=_NOISE),
    ] = None,
    q: Annotated[
        float | None,
        typer.Option("--q", help="Sampling rate of a step.", rich_help_panel=_NOISE),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(help="How many steps are composed.", rich_help_panel=_NOISE),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Sigma per step: POLICY:sigma0=A,sigma1=B, or @FILE with a number "
            "per step.",
            rich_help_panel=_NOISE,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="File with the sensitivity S of every step; with --noise-std.",
            rich_help_panel=_NOISE,
        ),
    ] = None,
    noise_std: Annotated[
        float | None,
        typer.Option(
            help="Noise std that stays fixed while S changes.", rich_help_panel=_NOISE
        ),
    ] = None,
    defense: Annotated[
        str | None,
        typer.Option(
            help="For example fed-cdp:clip=4,sigma=6.", rich_help_panel=_DEFENSE
        ),
    ] = None,
    dataset: Annotated[
        str,
        typer.Option(help="Whose published setting is used.", rich_help_panel=_DEFENSE),
    ] = "mnist",
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds of the training.", rich_help_panel=_DEFENSE),
    ] = None,
    local_steps: Annotated[
        int | None,
        typer.Option(help="Local steps of a round.", rich_help_panel=_DEFENSE),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Examples per local step.", rich_help_panel=_DEFENSE),
    ] = None,
    examples: Annotated[
        int | None, typer.Option(help="Examples per client.", rich_help_panel=_DEFENSE)
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients in all.", rich_help_panel=_DEFENSE)
    ] = None,
    clients_per_round: Annotated[
        int | None, typer.Option(help="Clients per round.", rich_help_panel=_DEFENSE)
    ] = None,
    tensors: Annotated[
        int,
        typer.Option(
            help="Tensors of the model, each clipped on its own.",
            rich_help_panel=_DEFENSE,
        ),
    ] = 6,
    sampling: Annotated[
        str,
        typer.Option(
            help="Rate of an example: local (B / examples, the papers' 0.01) or "
            "global (times the share of clients).",
            rich_help_panel=_DEFENSE,
        ),
    ] = "local",
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="A budget: at which step is it exhausted?", rich_help_panel=_INVERSE
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Which sigma gives --target-epsilon?",
            rich_help_panel=_INVERSE,
        ),
    ] = False,
    target_accuracy: Annotated[
        float | None,
        typer.Option(
            help="Stop when --log reaches this accuracy.", rich_help_panel=_INVERSE
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="Training log, CSV with accuracy and round or step.",
            rich_help_panel=_INVERSE,
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="Delta.")] = 1e-5,
    convention: Annotated[
        str, typer.Option(help="clean, or paper: their rounding and off-by-one.")
    ] = "clean",
    plot: Annotated[
        str | None, typer.Option(help="Write epsilon over steps to this file.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON on stdout.")
    ] = False,
) -> None:
    """Show the privacy spent: all methods side by side, and what holds."""
    with errors_in_words():
        if calibrate:
            _calibrate(target_epsilon, q, steps, delta, as_json)
            return
        privacy = None
        if defense is not None:
            _refuse(sigma=sigma, q=q, steps=steps, schedule=schedule, trace=trace)
            changes = {
                "rounds": rounds,
                "local_steps": local_steps,
                "batch_size": batch_size,
                "examples": examples,
                "clients": clients,
                "clients_per_round": clients_per_round,
            }
            setting = _setting(dataset, changes)
            limit = _reached(log, target_accuracy)
            if limit is not None:
                setting = _setting(dataset, changes | {"rounds": limit})
            privacy = _privacy(defense, setting, delta, tensors, sampling, convention)
            events = privacy.events
        else:
            events = _events(sigma, q, steps, schedule, noise_std, trace)
            limit = _reached(log, target_accuracy)
            events = events if limit is None else events.first(limit)
        _answer(privacy, events, delta, convention, target_epsilon, plot, as_json)


def _answer(
    privacy: "Privacy | None",
    events: "Events | None",
    delta: float,
    convention: str,
    target: float | None,
    plot: str | None,
    as_json: bool,
) -> None:
    from gradaudit import privacy as accounting
    from gradaudit.privacy import statement

    if privacy is not None:
        answers: Account | None = privacy.claimed
        plain = statement.privacy_as_plain(privacy)
    else:
        answers = accounting.account(_finite(events), delta, convention=convention)
        plain = statement.account_as_plain(answers) | {"guarantee": None}
    stops = {}
    if target is not None:
        stops = {
            name: accounting.exhausted_at(
                target, _finite(events), delta, name, convention
            )
            for name in accounting.METHODS
        }
        plain["target_epsilon"] = target
        plain["exhausted_at"] = {name: stop.step for name, stop in stops.items()}
    if plot is not None:
        from gradaudit.report.figures import plot_over_steps

        plot_over_steps(plot, _finite(events), delta, convention, target)
        err.print(f"wrote {plot}")
    if as_json:
        print_json(plain)
        return
    if answers is not None:
        tables.print_methods(answers, stops, target)
    if privacy is not None:
        tables.print_privacy(privacy)


def _finite(events: "Events | None") -> "Events":
    if events is None:
        raise InputError("this defense has no finite epsilon to plot or to exhaust")
    return events


def _calibrate(
    target: float | None, q: float | None, steps: int | None, delta: float, plain: bool
) -> None:
    from gradaudit import privacy as accounting

    if target is None or q is None or steps is None:
        raise InputError("--calibrate needs --target-epsilon, --q and --steps")
    found: dict[str, float | str] = {}
    for name in accounting.METHODS:
        try:
            found[name] = accounting.calibrate(target, q, steps, delta, name)
        except InputError as error:
            if "never goes below" not in str(error):
                raise
            found[name] = str(error)
    if plain:
        sigmas = {
            name: value if isinstance(value, float) else None
            for name, value in found.items()
        }
        print_json(
            {"target_epsilon": target, "q": q, "steps": steps, "delta": delta}
            | {"sigma": sigmas}
        )
        return
    tables.print_sigmas(found, target, q, steps, delta)


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
    require(
        sum(given) == 1,
        "give exactly one of --sigma, --schedule, --trace (or a --defense)",
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
        require(not values, f"unknown in --schedule: {', '.join(values)}")
    except (KeyError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"--schedule must be POLICY:sigma0=A,sigma1=B or @FILE, got {text!r}"
        ) from None
    require(steps >= 1, f"steps must be at least 1, got {steps}")
    sigmas = decay(policy, start, end, steps)
    return [float(sigmas(t)) for t in range(steps)]


def _numbers(path: str) -> tuple[float, ...]:
    from gradaudit.defenses.schedules import Table

    return Table.read(path).values


def _reached(log: str | None, accuracy: float | None) -> int | None:
    from gradaudit.privacy.calibrate import first_reaching, read_log

    if log is None and accuracy is None:
        return None
    if log is None or accuracy is None:
        raise InputError("--log and --target-accuracy belong together")
    return first_reaching(read_log(log), accuracy)


def _setting(dataset: str, changes: dict[str, Any]) -> "Setting":
    import dataclasses

    from gradaudit.federation.setting import paper_setting

    given = {name: value for name, value in changes.items() if value is not None}
    return dataclasses.replace(paper_setting(dataset), **given)


def _privacy(
    text: str,
    setting: "Setting",
    delta: float,
    tensors: int,
    sampling: str,
    convention: str,
) -> "Privacy":
    from gradaudit import privacy as accounting
    from gradaudit.defenses.parsing import parse
    from gradaudit.errors import unknown_name

    known = {member.value: member for member in accounting.Sampling}
    if sampling not in known:
        raise unknown_name("sampling", sampling, known)
    return accounting.epsilon(
        parse(text),
        setting,
        delta=delta,
        tensors=tensors,
        sampling=known[sampling],
        convention=convention,
    )


def _refuse(**options: Any) -> None:
    given = [f"--{name}" for name, value in options.items() if value is not None]
    require(
        not given,
        f"{', '.join(given)} can't be given with --defense: they are derived from it",
    )
