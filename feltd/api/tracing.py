"""Spans of calls for an OpenTelemetry collector, where the operator names one. Extra `otel`.

Without OTEL_EXPORTER_OTLP_ENDPOINT nothing of it is imported and nothing is wrapped: it costs
nothing. With it a call is a span under the caller's trace, and each operation it hands to the
writer a span inside. Work that a call creates carries the trace on to whoever takes it. Spans go
out on a thread of the library, are dropped when it cannot keep up, and hold no body and no bearer.
"""

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import structlog

from feltd import __version__
from feltd.api.calllog import members
from feltd.api.gate import App
from feltd.api.request import Message, Receive, Scope, Send
from feltd.store.writer import Writer

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
#: What probes ask every few seconds.
UNTRACED = frozenset({"/health", "/v1/health", "/health/ready", "/metrics"})
#: A stop waits this long for the last spans to be sent.
CLOSE_S = 1.0

log = structlog.get_logger("feltd.tracing")


class Untraced:
    """Nobody wants spans: everything stays as it is."""

    def around(self, app: App) -> App:
        """The application itself."""
        return app

    def writer(self, writer: Writer) -> Writer:
        """The writer itself."""
        return writer

    async def close(self) -> None:
        """Nothing."""


def begin(env: Mapping[str, str] = os.environ) -> "Untraced":
    """Tracing as the environment asks for it; a warning where the extra is not installed."""
    off = env.get("OTEL_SDK_DISABLED", "").lower() == "true"
    off = off or env.get("OTEL_TRACES_EXPORTER", "").lower() == "none"
    if off or not any(env.get(name) for name in ENDPOINTS):
        return Untraced()
    try:
        return Traced(_provider(env))
    except ImportError:
        log.warning("tracing is not installed", remedy="pip install 'feltd[otel]'")
        return Untraced()


def _provider(env: Mapping[str, str]) -> "TracerProvider":
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = env.get("OTEL_SERVICE_NAME") or "service.name" in env.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    told = {"service.version": __version__} | ({} if named else {"service.name": "feltd"})
    # Not at exit of the process: a collector that hangs must not keep a stop waiting.
    provider = TracerProvider(resource=Resource.create(told), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class Traced(Untraced):
    """Spans through one provider of the library."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._trace = trace
        self._tracer = provider.get_tracer("feltd", __version__)
        self._context = TraceContextTextMapPropagator()

    def around(self, app: App) -> App:
        """The application, each call of it in a span."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in UNTRACED:
                await app(scope, receive, send)
            else:
                await self._call(app, scope, receive, send)

        return traced

    async def _call(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        status = 0

        async def seen(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        came = {
            name.decode(): text.decode("latin-1")
            for name, text in scope["headers"]
            if name in (b"traceparent", b"tracestate")
        }
        with self._tracer.start_as_current_span(
            "call",
            context=self._context.extract(came),
            kind=self._trace.SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            # From here on the call's place in its trace is this span: in logs, and in the work it
            # creates.
            now: dict[str, str] = {}
            self._context.inject(now)
            others = [one for one in scope["headers"] if one[0] != b"traceparent"]
            scope["headers"] = [*others, (b"traceparent", now["traceparent"].encode())]
            try:
                await app(scope, receive, seen)
            finally:
                self._tell(span, scope, status)

    def _tell(self, span: Any, scope: Scope, status: int) -> None:
        told = members(scope)
        span.update_name(told["operation"])
        span.set_attribute("http.request.method", scope.get("method", ""))
        span.set_attribute("http.response.status_code", status)
        for name in ("request_id", "actor"):
            if name in told:
                span.set_attribute(f"feltd.{name}", told[name])
        refused = scope.get("feltd.refusal")
        if refused is not None:
            span.set_attribute("feltd.code", refused.code)
        if status >= 500 or not status:
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR))

    def writer(self, writer: Writer) -> Writer:
        """The writer, each operation of a call in a span from the wait to the answer."""
        return cast(Writer, _TracedWriter(writer, self._tracer))

    async def close(self) -> None:
        """Send what is left, for at most CLOSE_S."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            if not loop.is_closed():
                loop.call_soon_threadsafe(sent.set)

        threading.Thread(target=shut_down, name="feltd-tracing", daemon=True).start()
        try:
            async with asyncio.timeout(CLOSE_S):
                await sent.wait()
        except TimeoutError:
            log.warning("the last spans were not sent in time")


class _TracedWriter:
    """A writer whose `submit` is a span; everything else is the writer's own."""

    def __init__(self, writer: Writer, tracer: Any) -> None:
        self._writer = writer
        self._tracer = tracer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    async def submit(self, op: Any, cmd: Any, **how: Any) -> Any:
        """See Writer.submit. A refusal is an answer, no failure of the span."""
        name = f"writer {getattr(op, '__name__', 'operation')}"
        with self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False
        ):
            return await self._writer.submit(op, cmd, **how)
