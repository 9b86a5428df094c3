"""Questions to an HTTP server, in JSON: so many at a time, asked again until a deadline, never left hanging.

What a server may be over soon is asked again after growing waits: no connection, a lost one, a status of 5xx,
408 or 429. What it would say again is an error at once: another status, an answer that is no JSON.
Connections are kept while anything is asked, and closed with the last answer.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import httpx2

from turnpoint.errors import EngineError

_FIRST_WAIT = 0.25  # seconds; each further one is twice as long
_LONGEST_WAIT = 15.0
_SHOWN = 200  # characters of what a server says about a refusal
_AGAIN = (408, 429)  # beside all of 5xx


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A path and what is posted there; None: it is only read."""

    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """JSON, and whether it came at the first attempt; if not, the server may be another one than before."""

    value: Any
    undisturbed: bool


class Transport:
    """A server at `url`, asked `in_flight` questions at a time, each for `deadline` seconds at most.

    `name` is who is asked, for errors. A proxy that the environment names is not used: a teacher stands near.
    """

    def __init__(self, *, name: str, url: str, in_flight: int, deadline: float) -> None:
        self.who = f"{name} at {url}"
        self._url = url
        self._in_flight = in_flight
        self._deadline = deadline
        self._line: _Line | None = None

    async def ask(self, question: Question, *, patient: bool = True) -> Reply:
        """Returns the answer; raises EngineError naming server and failure.

        Not `patient`: it is asked once. Cancelling closes the connection.
        """
        failure, attempts = "no answer", 0
        async with self._connected() as line, line.places:
            try:
                async with asyncio.timeout(self._deadline):
                    for attempts in itertools.count(1):
                        try:
                            return Reply(
                                value=await self._once(line.client, question), undisturbed=attempts == 1
                            )
                        except _PassingError as passing:
                            failure = str(passing)
                        if not patient:
                            break
                        await asyncio.sleep(min(_FIRST_WAIT * 2 ** (attempts - 1), _LONGEST_WAIT))
            except TimeoutError:
                failure += f" within {self._deadline:g} seconds"
        tries = f", {attempts} attempts" if attempts > 1 else ""
        raise EngineError(f"{self.who}: {failure} to {question.path}{tries}; look whether it is running")

    async def _once(self, client: httpx2.AsyncClient, question: Question) -> Any:
        method = "GET" if question.body is None else "POST"
        try:
            response = await client.request(method, question.path, json=question.body)
        except httpx2.RequestError as error:
            said = " ".join(str(error).split()) or type(error).__name__
            raise _PassingError(f"no answer ({said})") from error
        status = response.status_code
        if status >= 500 or status in _AGAIN:
            raise _PassingError(f"status {status} ({_said(response)})")
        if status != 200:
            raise EngineError(f"{self.who} refuses {question.path} with status {status}: {_said(response)}")
        try:
            return json.loads(response.content)
        except ValueError as error:
            raise EngineError(
                f"{self.who}: what it answers to {question.path} is no JSON: {response.text[:40]!r}; is "
                f"something else listening there?"
            ) from error

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[_Line]:
        if self._line is None:
            limits = httpx2.Limits(max_connections=self._in_flight)
            # Our deadline is the only one, and it is about a question with all its attempts.
            client = httpx2.AsyncClient(base_url=self._url, limits=limits, timeout=None, trust_env=False)
            self._line = _Line(client=client, places=asyncio.Semaphore(self._in_flight))
        line = self._line
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            if not line.users:
                self._line = None
                await line.client.aclose()


@dataclass(slots=True, kw_only=True)
class _Line:
    """Connections, how many may be used at a time, and how many questions need them."""

    client: httpx2.AsyncClient
    places: asyncio.Semaphore
    users: int = 0


class _PassingError(Exception):
    """What a server may be over soon."""


def _said(response: httpx2.Response) -> str:
    """Returns what a server says about a refusal, in one line: both of ours put it into `message`."""
    text = response.text
    try:
        tree = json.loads(text)
    except ValueError:
        tree = None
    if isinstance(tree, dict):
        fields = cast(dict[str, Any], tree)
        inner = fields.get("error", fields)
        text = str(cast(dict[str, Any], inner).get("message", text) if isinstance(inner, dict) else inner)
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
