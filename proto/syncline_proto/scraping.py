"""Metrics over HTTP lie at one path, whatever a library's application answers at others."""

from __future__ import annotations

from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

PATH = "/metrics"


def at_its_path(metrics: WSGIApplication) -> WSGIApplication:
    """The application for a port that serves metrics and nothing else."""

    def answer(environ: WSGIEnvironment, begin: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == PATH:
            return metrics(environ, begin)
        begin("404 Not Found", [("Content-Type", "text/plain")])
        return [f"Metrics are at {PATH}.\n".encode()]

    return answer
