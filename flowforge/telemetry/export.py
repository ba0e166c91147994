"""Where spans go: an OTLP collector, or lines on stderr, as OpenTelemetry's variables say."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Literal, TypeAlias

from flowforge import environment
from flowforge.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

Exporter: TypeAlias = Literal["otlp", "console"]

_ENDPOINTS = (environment.OTEL_ENDPOINT.name, environment.OTEL_TRACES_ENDPOINT.name)


def chosen_exporter(environ: Mapping[str, str], *, is_asked_for: bool) -> Exporter | None:
    """Where the spans of a run go; None: nowhere.

    environ: as OpenTelemetry's specification has it. is_asked_for: `--otel` was given; else a run
    is traced only where a variable names an exporter or an endpoint.
    Raises EngineError EN802 for an exporter that FlowForge does not have.
    """
    if environ.get(environment.OTEL_DISABLED.name, "").strip().lower() == "true":
        return None
    named = environ.get(environment.OTEL_EXPORTER.name, "").strip().lower()
    match named:
        case "otlp" | "console":
            return named
        case "none":
            return None
        case "":
            has_endpoint = any(environ.get(name) for name in _ENDPOINTS)
            return "otlp" if is_asked_for or has_endpoint else None
        case _:
            raise EngineError(
                "EN802",
                f"{environment.OTEL_EXPORTER.name} is {named!r}, expected 'otlp', 'console' or "
                "'none'",
                help="unset it for otlp",
            )


def provider_for(environ: Mapping[str, str], *, is_asked_for: bool) -> TracerProvider | None:
    """What traces a run, or None where nobody asked for it; see `chosen_exporter`.

    Where only variables ask for it and the extra is not installed, one line on stderr says so.
    Raises EngineError EN801, EN802.
    """
    exporter = chosen_exporter(environ, is_asked_for=is_asked_for)
    if exporter is None:
        return None
    try:
        return open_provider(exporter)
    except EngineError as error:
        if is_asked_for:
            raise
        sys.stderr.write(f"no trace: {error.message}; {error.help}\n")
        return None


def open_provider(exporter: Exporter) -> TracerProvider:
    """A provider of tracers; its owner calls `shutdown`, which sends what still waits.

    Its service is called flowforge unless OTEL_SERVICE_NAME says otherwise. Raises EngineError
    EN801 where the extra is not installed.
    """
    library = "opentelemetry.exporter.otlp.proto.http" if exporter == "otlp" else None
    if not _is_installed("opentelemetry.sdk") or (library and not _is_installed(library)):
        raise EngineError(
            "EN801",
            "a trace of the run is asked for, and OpenTelemetry's SDK or exporter is not installed",
            help="install it: pip install 'flowforge[opentelemetry]'; OTEL_SDK_DISABLED=true "
            "runs without a trace",
        )
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = Resource({"service.name": "flowforge"}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=named, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    return provider


def _exporter(exporter: Exporter) -> SpanExporter:
    if exporter == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        # One span a line; stdout is the result's.
        return ConsoleSpanExporter(
            out=sys.stderr, formatter=lambda span: span.to_json(indent=None) + "\n"
        )
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
