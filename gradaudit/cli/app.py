"""The `gradaudit` program: global options and the table of its commands."""

import os
import sys

import typer

from gradaudit.cli import (
    account,
    attack,
    audit,
    bench,
    calibrate,
    captured,
    console,
    data,
    ldp,
    line_up,
    listing,
    model,
    report,
    run,
    train,
)

app = typer.Typer(
    name="gradaudit",
    help=(
        "Do your federated gradients leak your clients' data, and does your defense "
        "stop it?"
    ),
    epilog="Start with: gradaudit attack --type 2, then: gradaudit audit",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


app.callback()(console.global_options)
app.command("attack", epilog=attack.EPILOG)(attack.attack)
app.command("audit", epilog=audit.EPILOG)(audit.audit)
app.command("train", epilog=train.EPILOG)(train.train)
app.command("run", epilog=run.EPILOG)(run.run)
app.command("report", epilog=report.EPILOG)(report.report)
app.command("list", epilog="Example: gradaudit list defenses")(listing.list_everything)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.command("account", epilog=account.EPILOG)(account.account)
app.command("ldp", epilog=ldp.EPILOG)(ldp.ldp)
app.add_typer(captured.app, name="captured")
app.add_typer(model.app, name="model")
app.command("line-up", epilog=line_up.EPILOG)(line_up.line_up)
app.command("calibrate", epilog=calibrate.EPILOG)(calibrate.calibrate)


def main() -> None:
    """Runs the program.

    An interrupt may leave a compilation running on a thread of jax; ending the process
    at once keeps it from touching what the interpreter's exit has taken away.
    """
    console.speak_any_encoding()
    try:
        app()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except OSError as error:  # the help, onto a full disk
        console.err.print(f"error: standard output can't be written: {error}")
        code = console.EXIT_BAD_INPUT
    code = console.flushed(code)
    if code == console.EXIT_INTERRUPTED:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
