"""The `gradaudit` program: global options and the table of its commands."""

import gc
import os
import sys

import typer

from gradaudit.cli import (
    account_command,
    attack_command,
    audit_command,
    bench_command,
    console,
    ldp_command,
    line_up_command,
    list_command,
    own_system_command,
    run_command,
    train_command,
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
app.command("attack", epilog=attack_command.EPILOG)(attack_command.attack)
app.command("audit", epilog=audit_command.EPILOG)(audit_command.audit)
app.command("train", epilog=train_command.EPILOG)(train_command.train)
app.command("run", epilog=run_command.RUN_EPILOG)(run_command.run)
app.command("report", epilog=run_command.REPORT_EPILOG)(run_command.report)
app.command("list", epilog="Example: gradaudit list defenses")(
    list_command.list_everything
)
app.add_typer(list_command.app, name="data")
app.add_typer(bench_command.app, name="bench")
app.command("account", epilog=account_command.EPILOG)(account_command.account)
app.command("ldp", epilog=ldp_command.EPILOG)(ldp_command.ldp)
app.add_typer(own_system_command.captured, name="captured")
app.add_typer(own_system_command.model, name="model")
app.command("line-up", epilog=line_up_command.LINE_UP_EPILOG)(line_up_command.line_up)
app.command("calibrate", epilog=line_up_command.CALIBRATE_EPILOG)(
    line_up_command.calibrate
)


def main() -> None:
    """Runs the program.

    An interrupt may leave a compilation running on a thread of jax; ending the process
    at once keeps it from touching what the interpreter's exit has taken away.
    """
    # What imports and traces make lives to the end: looking through it for garbage as
    # often as usual takes a fifteenth of a command's time.
    gc.set_threshold(50_000, 20, 20)
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
