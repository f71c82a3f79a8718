"""An OpenAI-compatible HTTP server that answers as the test says."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(content: str | None, *, finish: str = "stop", usage: bool = True) -> dict:
    """The body of a chat completion."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": "judge-model",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}],
    }
    return body | ({"usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}} if usage else {})


def verdict(loop: bool, reason: str = "because") -> tuple[int, dict]:
    return 200, answer(json.dumps({"reason": reason, "loop": loop}))


class JudgeServer:
    """Answers each request with `reply(request body, number of the request)`: status, body and perhaps headers."""

    def __init__(self, reply: Callable[[dict, int], tuple], delay: float = 0.0) -> None:
        self.reply, self.delay = reply, delay
        self.requests: list[dict] = []
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.most_at_once = self._now = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    self._respond(*outer._handle(self.path, body, dict(self.headers)))
                except (BrokenPipeError, ConnectionResetError):  # the client's patience ended
                    self.close_connection = True

            def do_GET(self) -> None:
                self._respond(200, {"object": "list", "data": []})

            def _respond(self, status: int, body: dict | str, headers: dict[str, str] | None = None) -> None:
                data = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def _handle(self, path: str, body: dict, headers: dict[str, str]) -> tuple:
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return 404, {"error": {"message": f"no such path {path}"}}
        with self._lock:
            self.requests.append(body)
            self.paths.append(path)
            self.headers.append({name.lower(): value for name, value in headers.items()})
            self.times.append(time.monotonic())
            number = len(self.requests) - 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        time.sleep(self.delay)
        try:
            return self.reply(body, number)
        finally:
            with self._lock:
                self._now -= 1

    @contextmanager
    def running(self):
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


@contextmanager
def serve(reply: Callable[[dict, int], tuple], delay: float = 0.0):
    with JudgeServer(reply, delay).running() as server:
        yield server
