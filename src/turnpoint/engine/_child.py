"""What runs in the process of a `ProcessWorker`; started by it as `python -m`."""

from __future__ import annotations

import contextlib
import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any


def main() -> None:
    """Serves calls until the other end of the pipe is gone."""
    connection, descriptor = Connection(int(sys.argv[1])), int(sys.argv[2])
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has ended
        content = connection.recv_bytes()  # before anything slow, so that the parent need not wait
        try:
            worker = _load(content, descriptor)
        except Exception as error:  # noqa: BLE001 - the parent reports it
            _reply(connection, None, error)
            return
        _reply(connection, None, None)
        while True:
            name, *arguments = connection.recv()
            try:
                value = {"ready": worker.ready, "step": worker.step, "renew": worker.renew}[name](*arguments)
            except Exception as error:  # noqa: BLE001 - the parent reports it and goes on
                _reply(connection, None, error)
            else:
                _reply(connection, value, None)


def _load(content: bytes, descriptor: int) -> Any:
    from turnpoint.models.attention import register
    from turnpoint.models.shared import load_shared

    register()
    decoder, serve = load_shared(content, descriptor)
    return serve(decoder)


def _reply(connection: Connection, value: Any, error: Exception | None) -> None:
    try:
        connection.send((value, error))
    except (pickle.PicklingError, TypeError, AttributeError):  # an error that cannot travel
        connection.send((None, RuntimeError(f"{type(error).__name__}: {error}")))


if __name__ == "__main__":
    main()
