"""`gradaudit ldp`: how private is a randomized gradient, measured?"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradaudit.cli.console import (
    EXIT_GATE_BROKEN,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    err,
    errors_in_words,
    out,
    print_json,
)
from gradaudit.errors import InputError, require

if TYPE_CHECKING:
    from gradaudit.distinguish import Box


EPILOG = """[bold]Examples[/]

gradaudit ldp --epsilon 0.5,1,2,4 --adversary all --dataset mnist

gradaudit ldp --adversary dummy-gradient --box white --trials 1000000

gradaudit ldp --mechanism fed-cdp:clip=4,sigma=6

gradaudit ldp --mechanism mine.py:randomize --epsilon 1 --gate

Exit codes: 0 done (gate held), 1 refuted (with --gate), 2 bad input,
3 can't tell (with --gate), 130 interrupted (what was done by then is written).
"""


_EPSILONS = "0.5,1,2,4"


def ldp(
    epsilon: Annotated[
        str | None,
        typer.Option(
            help=f"Claimed epsilons, with commas (default: {_EPSILONS}; with "
            "--mechanism: what it claims by itself)."
        ),
    ] = None,
    adversary: Annotated[
        str,
        typer.Option(
            help="all, or of: benign, input-perturbation, parameter-retrogression, "
            "gradient-flip, collusion, dummy-gradient."
        ),
    ] = "all",
    box: Annotated[
        str, typer.Option(help="white (sees the gradient), black (the model), both.")
    ] = "both",
    mechanism: Annotated[
        str | None,
        typer.Option(
            help="Test any mechanism instead: a defense (fed-cdp:clip=4,sigma=6) or "
            "your function (key, vector) -> vector (file.py:function)."
        ),
    ] = None,
    dataset: Annotated[
        str, typer.Option(help="A name of `gradaudit data list`, or a file.")
    ] = "digits",
    model: Annotated[str, typer.Option(help="The network.")] = "ldp-cnn",
    trials: Annotated[
        int | None,
        typer.Option(
            help="Trials per measurement (10000), or of --mechanism (100000)."
        ),
    ] = None,
    measurements: Annotated[int, typer.Option(help="Measurements, averaged.")] = 10,
    clip: Annotated[float, typer.Option(help="The clipping norm L.")] = 1.0,
    clients: Annotated[
        int, typer.Option(help="Clients that one update averages (black box).")
    ] = 1,
    learning_rate: Annotated[
        float, typer.Option(help="Of the server's update (black box).")
    ] = 0.01,
    radius: Annotated[
        float | None, typer.Option(help="Of the ball that the server projects onto.")
    ] = None,
    as_printed: Annotated[
        bool, typer.Option(help="Take the server's factor as printed: 1/d of unbiased.")
    ] = False,
    white_rule: Annotated[
        str, typer.Option(help="cosine (the paper's) or likelihood (the strongest).")
    ] = "cosine",
    norms: Annotated[
        str | None,
        typer.Option(help="Also sweep the dummy gradient's norm, e.g. 0.1,0.5,1,2."),
    ] = None,
    delta: Annotated[float, typer.Option(help="Of a Gaussian --mechanism.")] = 1e-5,
    neighbours: Annotated[
        str | None,
        typer.Option(
            help="What --mechanism must hide: local (any two inputs) or add-remove "
            "(an input and none)."
        ),
    ] = None,
    significance: Annotated[
        float, typer.Option(help="1 - confidence of the lower bounds.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 0,
    out_folder: Annotated[
        pathlib.Path | None,
        typer.Option("--out", help="Result folder (default: gradaudit-ldp)."),
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="Exit 1 if a claim is refuted, 3 if unclear.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print result.json on stdout, nothing else.")
    ] = False,
) -> None:
    """Measure the epsilon that adversaries reach, and judge the one that is claimed.

    Six adversaries against LDP-SGD, or a test of any mechanism's claim.
    """
    with errors_in_words():
        claimed = None if epsilon is None else _numbers("--epsilon", epsilon)
        folder = out_folder or pathlib.Path("gradaudit-ldp")
        if mechanism is not None:
            _audit_mechanism(
                mechanism,
                claimed,
                {
                    "delta": delta,
                    "dataset": dataset,
                    "model": model,
                    "significance": significance,
                    "seed": seed,
                },
                neighbours,
                trials,
                folder,
                gate,
                as_json,
            )
            return
        from gradaudit.distinguish import ADVERSARIES, Server, ldp_audit

        with _progress() as tell:
            report = ldp_audit(
                epsilons=claimed or _numbers("--epsilon", _EPSILONS),
                adversaries=_words(adversary, tuple(ADVERSARIES)),
                boxes=_boxes(box),
                dataset=dataset,
                model=model,
                trials=10_000 if trials is None else trials,
                measurements=measurements,
                clip=clip,
                clients=clients,
                server=Server(learning_rate, radius, as_printed),
                white_rule=white_rule,
                significance=significance,
                norms=_numbers("--norms", norms) if norms else (),
                seed=seed,
                progress=tell,
            )
        report.save(folder)
        if as_json:
            print_json(report.to_dict())
        else:
            from gradaudit.report.tables import cells_table, sweep_table, verdict_lines

            out.print(cells_table(report))
            for line in verdict_lines(report):
                out.print(line)
            if report.sweep:
                out.print(sweep_table(report))
            out.print(f"written to {folder}/ (see figures/epsilon.png)")
        if report.interrupted:
            err.print("[yellow]interrupted: the result covers what was done[/]")
            raise typer.Exit(EXIT_INTERRUPTED)
        _finish(gate, [cell.verdict.value for cell in report.cells])


def _audit_mechanism(
    mechanism: str,
    claimed: tuple[float, ...] | None,
    settings: dict[str, Any],
    neighbours: str | None,
    trials: int | None,
    folder: pathlib.Path,
    gate: bool,
    as_json: bool,
) -> None:
    from gradaudit.distinguish import Neighbours, mechanism_audit

    if claimed is not None and len(claimed) != 1:
        raise InputError(
            f"--mechanism is tested against one epsilon, got {len(claimed)}"
        )
    kinds = {kind.value: kind for kind in Neighbours}
    if neighbours is not None:
        require(
            neighbours in kinds,
            f"--neighbours must be {' or '.join(kinds)}, got {neighbours!r}",
        )
    options: dict[str, Any] = dict(settings)
    if trials is not None:
        options["trials"] = trials
    with _progress() as tell:
        report = mechanism_audit(
            mechanism,
            epsilon=claimed[0] if claimed else None,
            neighbours=kinds[neighbours] if neighbours else None,
            progress=tell,
            **options,
        )
    report.save(folder)
    if as_json:
        print_json(report.to_dict())
    else:
        from gradaudit.report.tables import mechanism_table

        out.print(mechanism_table(report))
    _finish(gate, [report.result.verdict.value])


def _finish(gate: bool, verdicts: list[str]) -> None:
    """Ends with the contract's exit code."""
    if not gate:
        return
    if "refuted" in verdicts:
        err.print("[red]gate broken[/]: a claim is refuted")
        raise typer.Exit(EXIT_GATE_BROKEN)
    if "can't tell" in verdicts:
        err.print("[yellow]inconclusive[/]: too few trials to refute the claim")
        raise typer.Exit(EXIT_INCONCLUSIVE)
    err.print("[green]gate held[/]: no claim is refuted")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar on stderr while trials are played."""
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
    ) as bar:
        task = bar.add_task("compiling", total=None)

        def tell(label: str, done: int, total: int) -> None:
            bar.update(task, description=label, completed=done, total=total)

        yield tell


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise InputError(
            f"{option} must be numbers with commas between them, got {text!r}"
        ) from None


def _words(text: str, everything: tuple[str, ...]) -> tuple[str, ...]:
    if text == "all":
        return everything
    return tuple(word.strip() for word in text.split(","))


def _boxes(text: str) -> tuple["Box", ...]:
    from gradaudit.distinguish import Box

    if text == "both":
        return tuple(Box)
    names = {box.value: box for box in Box}
    require(text in names, f"--box must be white, black or both, got {text!r}")
    return (names[text],)
