"""Runs as OpenTelemetry traces, made from their events; needs the extra `opentelemetry`."""
