"""The command line, `tablegate`."""

import signal


def main() -> None:
    """Run the command that the command line names."""
    # To import it takes a while, in which Ctrl-C ends this without a word, and not with a stack trace.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heard:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tablegate.gateway.cli.main import main as run

    try:
        if is_heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # before there is a command that would end with it, or after its end
        raise SystemExit(128 + signal.SIGINT) from None
    finally:
        if is_heard:  # Python's own end takes a while, too
            signal.signal(signal.SIGINT, signal.SIG_DFL)
