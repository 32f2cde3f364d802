"""What operators need: credentials and encryption of a store, log lines, explanations of lines, moving a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast._lazy import lazy_names

if TYPE_CHECKING:
    from standfast.audit import (
        Actor,
        AuditPage,
        AuditRecord,
        accept_loss,
        export_store,
        fence_store,
        import_store,
        thaw_store,
    )
    from standfast.locks.inspect import Explanation, LineSummary
    from standfast.locks.line_history import PastHold
    from standfast.log_hook import LogHook, StructlogHook
    from standfast.logs import JsonFormatter
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.stores.protocol import StoreSize
    from standfast.telemetry.exporters import OpenTelemetryMetrics, PrometheusMetrics
    from standfast.telemetry.otlp import OtlpSpans
    from standfast.telemetry.traces import TracingHook
    from standfast.workflows.capacity import WorkerLimits
    from standfast.workflows.sweeper import Retention

__all__ = [
    "Actor",
    "AuditPage",
    "AuditRecord",
    "Credentials",
    "Explanation",
    "JsonFormatter",
    "Keyring",
    "LineSummary",
    "LogHook",
    "OpenTelemetryMetrics",
    "OtlpSpans",
    "PastHold",
    "PrometheusMetrics",
    "Retention",
    "StoreSize",
    "StructlogHook",
    "TracingHook",
    "WorkerLimits",
    "accept_loss",
    "export_store",
    "fence_store",
    "import_store",
    "thaw_store",
]

# A fixed table, never data: which module each public name comes from.
_HOMES = {
    "Actor": "standfast.audit",
    "AuditPage": "standfast.audit",
    "AuditRecord": "standfast.audit",
    "Credentials": "standfast.stores.address",
    "Explanation": "standfast.locks.inspect",
    "JsonFormatter": "standfast.logs",
    "Keyring": "standfast.stores.encryption",
    "LineSummary": "standfast.locks.inspect",
    "LogHook": "standfast.log_hook",
    "OpenTelemetryMetrics": "standfast.telemetry.exporters",
    "OtlpSpans": "standfast.telemetry.otlp",
    "PastHold": "standfast.locks.line_history",
    "PrometheusMetrics": "standfast.telemetry.exporters",
    "Retention": "standfast.workflows.sweeper",
    "StoreSize": "standfast.stores.protocol",
    "StructlogHook": "standfast.log_hook",
    "TracingHook": "standfast.telemetry.traces",
    "WorkerLimits": "standfast.workflows.capacity",
    "accept_loss": "standfast.audit",
    "export_store": "standfast.audit",
    "fence_store": "standfast.audit",
    "import_store": "standfast.audit",
    "thaw_store": "standfast.audit",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES, globals())
