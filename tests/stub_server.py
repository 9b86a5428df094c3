"""An HTTP server on loopback that answers as vLLM's and SGLang's documentation says, around a tiny model.

What goes wrong is told beforehand: each question for scores takes one of `faults`, in order, until none is
left. A fault is a status, "close" (the connection), "hold" (until the other side goes), "html", a function
that changes the answer, or None: nothing goes wrong.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias

from tests.engine.serve import logprobs_of
from tests.tiny import CONTEXT, tiny_decoder, tiny_tokenizer
from turnpoint.types import token_array

Fault: TypeAlias = int | str | Callable[[Any], Any] | None
_SCORES = ("/v1/completions", "/generate")
_SAID = {
    400: {"error": {"message": "This model's maximum context length is 16 tokens"}},
    413: {"error": {"message": "too long"}},
    500: {"error": {"message": "the engine died"}},
    503: {"message": "still loading"},
}


class StubServer:
    """Serves a tiny model in threads of its own until it is closed."""

    def __init__(
        self, api: str = "vllm", *, seed: int = 1, context: int = CONTEXT + 1, tokenizer: Any = None
    ) -> None:
        self.api = api
        self.models = {"tiny": context}
        self.tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
        self.decoder = tiny_decoder(seed=seed)
        self.weight_version = "default"
        self.faults: deque[Fault] = deque()
        self.always: Fault = None  # the fault of each question without one of its own
        self.asked: list[tuple[str, Any]] = []
        self.at_once = self.most_at_once = self.connections = 0
        self._changed, self._computing = threading.Condition(), threading.Lock()
        self._released = threading.Event()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> StubServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops listening; safe to call twice."""
        self._released.set()
        self._http.shutdown()
        self._http.server_close()

    def scores_asked(self) -> list[Any]:
        """Bodies of the questions for scores."""
        return [body for path, body in self.asked if path in _SCORES]

    def count(self, what: str, change: int) -> None:
        with self._changed:
            setattr(self, what, getattr(self, what) + change)
            self.most_at_once = max(self.most_at_once, self.at_once)
            self._changed.notify_all()

    def comes(self, condition: Callable[[], bool]) -> bool:
        """Waits until `condition` about the counts holds; returns whether it does in the end."""
        with self._changed:
            return self._changed.wait_for(condition, timeout=10)

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        """Returns status and JSON."""
        if path == "/v1/models":
            data = [{"id": name, "object": "model", "max_model_len": it} for name, it in self.models.items()]
            return 200, {"object": "list", "data": data}
        if path == "/tokenize":
            return 200, self._tokenized(body)
        if path == "/detokenize":
            text = self.tokenizer.decode(body["tokens"], skip_special_tokens=False)
            return 200, {"prompt": text} if self.api == "vllm" else {"text": text}
        if path == _SCORES[self.api == "sglang"]:
            return self._scored(body)
        return 404, {"detail": "Not Found"}

    def _tokenized(self, body: Any) -> Any:
        if "messages" in body and self.api == "vllm":
            ids = self.tokenizer.apply_chat_template(
                body["messages"],
                add_generation_prompt=body["add_generation_prompt"],
                tokenize=True,
                return_dict=False,
                **body["chat_template_kwargs"],
            )
        else:
            ids = self.tokenizer(body["prompt"], add_special_tokens=body["add_special_tokens"])["input_ids"]
        return {"tokens": list(ids), "count": len(ids), "max_model_len": max(self.models.values())}

    def _scored(self, body: Any) -> tuple[int, Any]:
        ids = body["prompt" if self.api == "vllm" else "input_ids"]
        if len(ids) + 1 > max(self.models.values()):
            return 400, {"error": {"message": f"the prompt has {len(ids)} tokens"}}
        with self._computing:
            law = [None, *logprobs_of(self.decoder, token_array(ids), 1).tolist()]
        if self.api == "vllm":
            places = [
                None
                if value is None
                else {str(token): {"logprob": max(value, -9999.0), "rank": 1, "decoded_token": "?"}}
                for token, value in zip(ids, law, strict=True)
            ]
            return 200, {"choices": [{"index": 0, "text": "a", "prompt_logprobs": places}]}
        start = body["logprob_start_len"]
        entries = [
            [None if value is None or not math.isfinite(value) else value, token, None]
            for token, value in zip(ids[start:], [None, *law[start + 1 :]], strict=True)
        ]
        meta = {"input_token_logprobs": entries, "weight_version": self.weight_version}
        return 200, {"text": "", "meta_info": meta}

    def next_fault(self, path: str) -> Fault:
        if path not in _SCORES:
            return None
        return self.faults.popleft() if self.faults else self.always

    def hold(self, connection: socket.socket) -> None:
        """Waits until the other side has gone or this server is closed."""
        connection.settimeout(0.02)
        while not self._released.is_set():
            with contextlib.suppress(TimeoutError):
                if not connection.recv(1, socket.MSG_PEEK):
                    return

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                stub.count("connections", 1)
                super().setup()

            def finish(self) -> None:
                super().finish()
                stub.count("connections", -1)

            def do_GET(self) -> None:
                self._serve(None)

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                self._serve(json.loads(self.rfile.read(length)))

            def _serve(self, body: Any) -> None:
                stub.count("at_once", 1)
                stub.asked.append((self.path, body))
                fault = stub.next_fault(self.path)
                try:
                    self._reply(body, fault)
                finally:
                    stub.count("at_once", -1)

            def _reply(self, body: Any, fault: Fault) -> None:
                if fault == "hold":
                    stub.hold(self.connection)
                if fault in ("hold", "close"):
                    self.close_connection = True
                    return
                if isinstance(fault, int):
                    self._send(fault, json.dumps(_SAID[fault]))
                    return
                if fault == "html":
                    self._send(200, "<html>It works!</html>")
                    return
                status, tree = stub.answer(self.path, body)
                self._send(status, json.dumps(fault(tree) if callable(fault) else tree))

            def _send(self, status: int, text: str) -> None:
                data = text.encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        return Handler
