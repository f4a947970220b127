"""The conformance check for models: whether an adapter keeps the rules M1-M13 of the model protocol.

Say how your provider says things, and run it, with or without a test runner::

    @asynccontextmanager
    async def provider(answers):
        with my_fake_server(map(in_my_format, answers)) as server:
            yield ModelPlace(model=MyModel("m", base_url=server.url), sent=server.bodies)

    report = await check_model(provider)          # raises ModelConformanceError that lists every failure
    print(report)                                 # what passed, and what was skipped for want of a feature

or, one test for each check::

    @pytest.mark.parametrize("check", model_conformance_checks(), ids=str)
    async def test_conformance(check):
        await check_model(provider, only=[check.name])

The rules:

- M1 A stream is frames and, as its last item, one settled message; then it ends, and stays ended.
- M2 Frames show what the message holds: a part starts before its deltas, the deltas together are its text, its end
  has the part that the message has; parts are numbered in their order.
- M3 Texts, calls, ids, names and arguments are those that the provider sent. Arguments that are no object are kept as
  text. The stop reason is the provider's.
- M4 Opaque marks (signatures, redacted reasoning) are kept whole, and go back to the provider as they came.
- M5 Counts are those that the provider gave. One that it did not give is None, never zero.
- M6 A failure is a ``ModelError``, or an answer whose stop reason is ``error``; what passes by itself is retryable, a
  wait that the provider asks for is told, and what was shown and counted before it stands.
- M7 A stream that breaks off, wherever it does, is never an answer that ended well. Reasoning and calls that were not
  whole have no signature and no arguments.
- M8 A cancelled stream ends with the cancellation. The model can be asked again.
- M9 A stream that is closed half way gives nothing more, and may be closed twice. The model can be asked again.
- M10 Nothing is tried again inside: one stream is one request. Nothing is sent before the first item is asked for.
- M11 All of the request is sent: instructions, tools, settings, what was said, calls and their results. It is not
  changed, and can be sent again.
- M12 One model serves several streams at once, and says the same of itself each time it is asked.
- M13 A bound on the answer (``max_output_tokens``) is sent. A request for a summary, which has no tools, is answered.
"""

from agentlane.testing.model_checks.bench import ModelCheck, ModelPlace, ProviderAnswer
from agentlane.testing.model_checks.runner import (
    ModelConformanceError,
    ModelFailure,
    ModelReport,
    check_model,
    model_conformance_checks,
)

__all__ = [
    "ModelCheck",
    "ModelConformanceError",
    "ModelFailure",
    "ModelPlace",
    "ModelReport",
    "ProviderAnswer",
    "check_model",
    "model_conformance_checks",
]
