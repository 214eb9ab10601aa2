"""A collector hears of a call under the caller's trace; without one nothing of it is there."""

import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from feltd.api import tracing
from tests.daemon.running import PATIENCE_S, Daemon, Edge, create, people

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-01"


class Collector:
    """OTLP over HTTP on a loopback port: hands out spans as they come."""

    def __init__(self) -> None:
        self.spans: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.services: set[str] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    raw = gzip.decompress(raw)
                for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
                    outer.services |= {
                        one.value.string_value
                        for one in resource.resource.attributes
                        if one.key == "service.name"
                    }
                    for scope in resource.scope_spans:
                        for span in scope.spans:
                            outer.spans.put(span)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def until(self, name: str, trace: str = TRACE) -> dict[str, Any]:
        """Spans of one trace by name, once the named one is there."""
        found: dict[str, Any] = {}
        while name not in found:
            span = self.spans.get(timeout=PATIENCE_S)
            if span.trace_id.hex() == trace:
                found[span.name] = span
        return found


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Daemon]:
    """A daemon that tells the collector at once."""
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    made = Daemon(tmp_path_factory.mktemp("traced") / "feltd.db", "--tick-ms", "100", env=env)
    try:
        yield made.init().start()
    finally:
        made.close()


def test_a_call_is_a_span_of_its_callers_trace(traced: Daemon, collector: Collector) -> None:
    hold = traced.post("/v1/holds", {"scope": "all", "reason": "a look"}, traceparent=TRACEPARENT)
    traced.call("DELETE", f"/v1/holds/{hold['hold_id']}")

    spans = collector.until("place_hold")
    call = spans["place_hold"]
    inside = spans.get("writer place") or collector.until("writer place")["writer place"]
    assert call.parent_span_id.hex() == PARENT
    assert inside.parent_span_id == call.span_id
    told = {one.key: one.value for one in call.attributes}
    assert told["http.response.status_code"].int_value == 201
    assert told["feltd.actor"].string_value.startswith("service:")
    assert collector.services == {"feltd"}
    assert traced.key not in str(call)
    assert TRACE in next(line for line in traced.told().splitlines() if "place_hold" in line)


def test_work_carries_the_trace_to_whoever_takes_it(traced: Daemon, collector: Collector) -> None:
    mesh = people(traced)
    edge = Edge(traced, "edge", mesh.registrar_key, capabilities=["documents.extract"])
    edge.beat()
    create(traced, mesh, "untraced")
    [claim] = edge.pull()
    version, trace, parent, _flags = claim["traceparent"].split("-")

    created = collector.until("create_workload", trace)["create_workload"]
    assert version == "00"
    assert created.span_id.hex() == parent


def test_a_refusal_is_told_with_its_code_and_a_probe_not_at_all(
    traced: Daemon, collector: Collector
) -> None:
    traced.call("GET", "/health", traceparent=OTHER)
    traced.call("GET", "/v1/workloads/none", traceparent=OTHER)

    found = collector.until("get_workload", OTHER.split("-")[1])
    span = found["get_workload"]
    assert set(found) == {"get_workload"}
    told = {one.key: one.value.string_value for one in span.attributes}
    assert told["feltd.code"] == "WORKLOAD_NOT_FOUND"
    assert span.status.code == 0


def test_a_collector_that_is_gone_costs_a_stop_no_more_than_a_second(
    daemons: Callable[..., Daemon],
) -> None:
    daemon = daemons(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9").start()
    daemon.get("/v1/workloads")
    assert daemon.stop() == 0
    assert '"stopped"' in daemon.told()


def test_without_an_endpoint_nothing_is_wrapped_and_nothing_imported() -> None:
    assert type(tracing.begin({})) is tracing.Untraced
    assert type(tracing.begin({tracing.ENDPOINTS[0]: ""})) is tracing.Untraced
    assert type(tracing.begin({tracing.ENDPOINTS[0]: "http://c", "OTEL_SDK_DISABLED": "true"})) is (
        tracing.Untraced
    )
    code = (
        "import sys; import feltd.daemon.run; from feltd.api import tracing; tracing.begin({});"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    ran = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_without_the_extra_it_is_told_and_the_daemon_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert type(tracing.begin({tracing.ENDPOINTS[0]: "http://c"})) is tracing.Untraced
