"""A model that gives the answers of a script, and finds its place in it from each request."""

from __future__ import annotations

from collections.abc import Sequence

from agentlane.clock import Clock
from agentlane.data.messages import ModelIdentity
from agentlane.errors import InvalidDefinition
from agentlane.model import ModelLimits, ModelRequest
from agentlane.testing.places import (
    Last,
    given_before,
    index_in_step,
    place_in_script,
    place_in_turns,
    steps,
)
from agentlane.testing.playback import PlayedModel, ScriptExhausted
from agentlane.testing.script import Answer, ScriptAnswer, as_answer, fail
from agentlane.testing.summaries import Summaries, SummaryAnswers, characters


class ScriptedModel(PlayedModel):
    """Gives the answers of a script in order; each conversation (session and lane) goes through it from its start.

        ScriptedModel([
            [say("looking"), call("read_file", path="a.txt")],
            fail("overloaded", retryable=True),
            "done",
        ])

    The place is found from the request, so that a model built anew with the same script goes on where the conversation
    stands. The rules:

    1. An answer *counts* once the conversation holds it. Those that settle well and are not empty are kept there and
       sent with each later request; ``fail``, ``raises``, ``cut``, ``hang`` and empty answers never are.
    2. The script is cut into *steps*, each ending with an answer that is kept. The number of the model's own answers
       in the request (those with its ``identity``) is the number of the step. So an answer that was interrupted, or
       never asked for because the process died, is given again; and answers appended by hand or given by another model
       do not count.
    3. Within a step the attempt says which: attempt 1 gets the first answer, attempt 2 the second, and so on; the last
       of a step is given as often as it is asked for. So ``[hang(), "done"]`` hangs once, and gives "done" after an
       abort and a new prompt, or after a kill and a restart.
    4. A new operation at the same step (its predecessor failed or was aborted) goes on behind what its predecessor got.
       In the same process that is remembered. After a restart it is guessed from what stands behind the last answer:
       each further user message was an operation of its own, which got answers up to one that ends an operation, or
       three that do not. A guess can be wrong where several user messages came at once, or tools ended a batch by
       ``terminate``, and answers that go wrong come next.
    5. A script is for the whole conversation. To go on with another one after a reopen, give another ``identity``.

    With ``turns=`` there is one list for each user message instead, and nothing is guessed: the number of user messages
    is the number of the list, the number of own answers since the last one that of the step in it, and 3 holds. User
    messages that arrive together (a prompt of several messages, steering) each have a list; all but the last are empty.

    Requests for summaries, and what is asked behind one:

    6. A summary uses up no answer of the script. ``summaries`` gives it: a text or a whole answer for all; a list, by
       attempt within each summary (so ``[fail("overloaded", retryable=True), "short"]`` fails once in each); or a
       function of the request. Without it the text is made of the request: how long the transcript is, with a digest.
       All of these are the same in a process that is built anew.
    7. What a summary stands for counts as if it were shown, and the summary itself is no message of a user's. So a
       script goes on behind a compaction. The guess of 4 sees only what is shown. With ``turns=``, messages that an
       agent's projectors make count while they are shown and not behind a summary, so ``answers`` is for such agents.
    8. With ``overflow_chars`` a request for an answer fails with ``context_overflow`` if its messages hold more
       characters of text than that, as of a full window, and no answer is used up. A ``fail("context_overflow")`` in
       the script is an answer like any other: after a kill and a restart behind it, it may be given again.

    One object is for one run of a test: what 4 remembers of a conversation would mislead another one of the same name.
    A request beyond the script raises ``ScriptExhausted`` from the stream, and is listed in ``violations``. See
    ``PlayedModel`` for the rest.
    """

    def __init__(
        self,
        answers: Sequence[ScriptAnswer] = (),
        *,
        turns: Sequence[Sequence[ScriptAnswer]] | None = None,
        summaries: Summaries | None = None,
        overflow_chars: int | None = None,
        identity: ModelIdentity | None = None,
        limits: ModelLimits | None = None,
        deltas: int | None = None,
        delta_ms: int = 0,
        clock: Clock | None = None,
        check_pairs: bool = True,
    ) -> None:
        super().__init__(
            identity=identity or ModelIdentity(provider="scripted", name="scripted"),
            limits=limits,
            deltas=deltas,
            delta_ms=delta_ms,
            clock=clock,
            check_pairs=check_pairs,
        )
        if isinstance(answers, str):
            raise InvalidDefinition("a script is a list of answers; put the text into a list")
        if answers and turns is not None:
            raise InvalidDefinition("a script is one list of answers or turns=, not both")
        self._summaries = SummaryAnswers(summaries)
        self._overflow_chars = overflow_chars
        self._by_turns = turns is not None
        self._turns = []
        start = 0
        for turn in [answers] if turns is None else turns:
            self._turns.append(steps(map(as_answer, turn), start=start))
            start += len(turn)
        self._last: dict[tuple[str, str], Last] = {}

    def _find(self, request: ModelRequest) -> tuple[Answer, str]:
        if request.purpose == "summary":
            return self._summaries.find(request)
        if self._overflow_chars is not None and (found := characters(request.messages)) > self._overflow_chars:
            text = f"the request has {found} characters, and the window {self._overflow_chars}"
            return fail("context_overflow", text), "overflow"
        find = place_in_turns if self._by_turns else place_in_script
        place = find(request.messages, self.identity, request.stands_for)
        turn = self._turns[place.turn - 1] if 0 < place.turn <= len(self._turns) else ()
        if place.answers >= len(turn):
            raise ScriptExhausted(self._where(place.turn, place.answers))
        step = turn[place.answers]
        conversation = request.session_id, request.lane
        guessed = 0 if self._by_turns else given_before(request.messages, step)
        last = self._last[conversation] = index_in_step(step, place, request, self._last.get(conversation), guessed)
        return step.answers[last.index], str(step.start + last.index + 1)

    def _where(self, turn: int, answers: int) -> str:
        if self._by_turns:
            return (
                f"the script has {len(self._turns)} turns and no answer for user message {turn} "
                f"after {answers} answers to it; each user message needs its own list"
            )
        return (
            f"the script is used up: the conversation holds {answers} answers of {self.identity} and the script has no "
            "more; a script is for the whole conversation, or has an identity= of its own"
        )
