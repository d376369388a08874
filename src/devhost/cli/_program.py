"""Calls the command that is asked for, and turns whatever comes of it into an exit code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from typing import NoReturn

import click

from devhost.backend import descriptors
from devhost.backend.errors import ConfigError, DevhostError

from ._root import OutputFailed, root


def call() -> NoReturn:
    """Runs the command of ``sys.argv`` and ends the process."""
    try:
        match sys.argv[1:2]:
            case ["run"]:
                pass  # it needs as many, and says so in its log's format
            case ["kubelet" | "demo"]:
                descriptors.provide(descriptors.SERVING)
            case _:
                descriptors.provide(descriptors.COMMAND)
        sys.exit(root(prog_name="devhost", standalone_mode=False))
    except ConfigError as error:
        for complaint in error.complaints:
            click.echo(complaint, err=True)
        sys.exit(error.exit_code)
    except DevhostError as error:
        click.echo(f"devhost: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if (failed := descriptors.exhausted(error)) is None:
            raise
        click.echo(f"devhost: {failed}", err=True)
        sys.exit(failed.exit_code)
    except OutputFailed as failure:
        # What is still buffered would be written, and fail again, at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if failure.error.errno == errno.EPIPE:  # the reader has seen enough (`devhost discover | head`)
            sys.exit(0)
        click.echo(f"devhost: cannot write the output: {failure.error.strerror}", err=True)
        sys.exit(1)
