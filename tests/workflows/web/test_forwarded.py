"""Whose word counts about where a request came from."""

import httpx
import pytest
from fastapi import FastAPI, Request

from latchwork_workflows.web import HttpServer

CLAIM = {"X-Forwarded-For": "10.9.8.7", "X-Forwarded-Proto": "https"}


@pytest.mark.parametrize(
    ("trusted", "expected"),
    [
        ((), ["127.0.0.1", "http"]),
        (("192.0.2.0/24",), ["127.0.0.1", "http"]),
        (("127.0.0.0/8",), ["10.9.8.7", "https"]),
    ],
    ids=["nobody", "another address", "the proxy"],
)
def test_forwarded_headers_are_ignored_unless_a_trusted_proxy_sends_them(trusted, expected, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # which the server below would believe
    app = FastAPI()
    app.state.site = None

    @app.get("/")
    def told(request: Request) -> list[str]:
        return [request.client.host, request.url.scheme]

    server = HttpServer(app, trusted_proxies=trusted)
    server.start()
    try:
        assert httpx.get(server.url, headers=CLAIM).json() == expected
    finally:
        server.close()
