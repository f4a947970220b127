"""Tools for testing agents and backends: scripted models, faults, clocks, conformance, invariants.

Nothing in here needs a test runner. Applications use it to inject crashes into their own agents.
"""

from agentlane.testing.clock import CountingIds, ManualClock
from agentlane.testing.conformance import (
    Check,
    ConformanceError,
    Harness,
    Report,
    check_storage,
    conformance_checks,
    dump,
)
from agentlane.testing.faults import FailingStore, FaultPlan, Killed, Point
from agentlane.testing.gates import Gate, GatedStore
from agentlane.testing.invariants import check_invariants, check_nothing_written, check_trace, check_trace_against
from agentlane.testing.matrix import (
    CrashFailure,
    CrashMatrixError,
    CrashReport,
    Depth,
    History,
    Life,
    Scenario,
    Stop,
    crash_matrix,
    library_boundaries,
)
from agentlane.testing.model_checks import (
    ModelCheck,
    ModelConformanceError,
    ModelFailure,
    ModelPlace,
    ModelReport,
    ProviderAnswer,
    check_model,
    model_conformance_checks,
)
from agentlane.testing.models import ScriptedModel
from agentlane.testing.pair import PairingError, check_pairing, require_pairing
from agentlane.testing.playback import ScriptExhausted
from agentlane.testing.recorded import RecordedModel
from agentlane.testing.script import Answer, answer, call, cut, fail, half, hang, hold, raises, raw_call, say, think
from agentlane.testing.trace import Trace

__all__ = [
    "Answer",
    "Check",
    "ConformanceError",
    "CountingIds",
    "CrashFailure",
    "CrashMatrixError",
    "CrashReport",
    "Depth",
    "FailingStore",
    "FaultPlan",
    "Gate",
    "GatedStore",
    "Harness",
    "History",
    "Killed",
    "Life",
    "ManualClock",
    "ModelCheck",
    "ModelConformanceError",
    "ModelFailure",
    "ModelPlace",
    "ModelReport",
    "PairingError",
    "Point",
    "ProviderAnswer",
    "RecordedModel",
    "Report",
    "Scenario",
    "ScriptExhausted",
    "ScriptedModel",
    "Stop",
    "Trace",
    "answer",
    "call",
    "check_invariants",
    "check_model",
    "check_nothing_written",
    "check_pairing",
    "check_storage",
    "check_trace",
    "check_trace_against",
    "conformance_checks",
    "crash_matrix",
    "cut",
    "dump",
    "fail",
    "half",
    "hang",
    "hold",
    "library_boundaries",
    "model_conformance_checks",
    "raises",
    "raw_call",
    "require_pairing",
    "say",
    "think",
]
