"""Where and how processes are ended: chosen by a seeded chance among what was killed least, and counted."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import Literal, TypeAlias, get_args

from msgspec.structs import replace

from tests.kills.history import AFTER_SIGNAL, AGAIN, FIRST, WALL, History, Life, Place, Wall
from tests.kills.reports import CLOSING, HOWS, How, Stop

SPINS_MAX = 20_000
"""How long a parent is busy at most before it sends a signal, in turns of an empty loop; about half a millisecond."""

WALL_HOWS: tuple[How, ...] = ("kill", "kill", "term", "term host", "int")
WALL_SHARE = 0.4
RANDOM_LEAD_SHARE = 0.2
CLOSE_SHARE = 0.7
INTENTS = "commit.tool_intents.inside"
DEADLY: tuple[How, ...] = ("kill", "held", "exit")

When: TypeAlias = Literal["a first life", "a recovery", "a close"]
WHENS: tuple[When, ...] = get_args(When)


class Plan:
    """The kills of one work on one disk: what was reached so far, what was killed there, and what to kill next."""

    def __init__(self, seed: str, *, closes: bool = True) -> None:
        """``closes``: whether what is reached in a close is to be killed there; where that is rare, it is luck."""
        self._closes = closes
        self.chance = random.Random(seed)
        self.reached: dict[Place, int] = {}
        """Every row, with how often it was reached at most in one life of that part."""
        self.killed: Counter[Place] = Counter()
        self.hows: Counter[How] = Counter()
        self.whens: Counter[When] = Counter()
        self.processes = 0
        self._led: dict[Place, list[Stop]] = defaultdict(list)
        self._lines: dict[str, int] = defaultdict(lambda: 1)
        self._order = 0

    @property
    def kills(self) -> int:
        """How many processes were ended before they came to their end."""
        return sum(self.hows.values())

    def end_one(self, history: History) -> Life:
        """Let one process of ``history`` begin, and end it somewhere."""
        if self.chance.random() < WALL_SHARE or not self._places(history.part):
            lines = self.chance.randrange(self._lines[history.part] + 1)
            how = self.chance.choice(WALL_HOWS)
            life = history.run_by_the_wall(Wall(how, lines, self.chance.randrange(SPINS_MAX)))
        else:
            life = history.run(*self._stops(history.part, self._next_how()))
        self.count(life)
        return life

    def count(self, life: Life) -> None:
        """Take note of where a process has been and where it was ended."""
        self.processes += 1
        self._lines[life.part] = max(self._lines[life.part], len(life.reports))
        counts = Counter(life.rows())
        for place, count in counts.items():
            self.reached[place] = max(self.reached.get(place, 0), count)
            if place.part.startswith(AFTER_SIGNAL) and life.job.stops and life.job.stops[0].how in CLOSING:
                self._led[place].append(replace(life.job.stops[0], first_closing=True))
        if life.how is not None:
            self.hows[life.how] += 1
            places = life.places()
            self.killed.update(places)
            self.whens[_when(places[0])] += 1

    def missing(self) -> set[str]:
        """The rows that were reached and never killed."""
        killed = {place.row for place in self.killed}
        closes = self._closes
        return {place.row for place in self.reached if closes or not place.part.startswith(AFTER_SIGNAL)} - killed

    def hunt(self) -> tuple[bool, list[Stop]]:
        """How to kill one of the rows that are missing: whether in a recovery, and where to stop the process."""
        row = self.chance.choice(sorted(self.missing()))
        place = self.chance.choice(sorted(each for each in self.reached if each.row == row))
        in_recovery = place.part.endswith(AGAIN)
        if not place.part.startswith(AFTER_SIGNAL):
            return in_recovery, [Stop(self.chance.choice(DEADLY), row, self.chance.randint(1, self.reached[place]))]
        if self._led[place] and self.chance.random() < 0.5:
            return in_recovery, self._while_closing(place)
        return False, [self._at_intents(), Stop(self.chance.choice(DEADLY), row)]

    def aim_at_an_end(self) -> list[Stop]:
        """How to end a first process in a way in which none ended so far: some came to their end before."""
        how = self.chance.choice([each for each in HOWS if each not in self.hows])
        return [Stop(how, self.chance.choice(self._places(FIRST)).row, first_closing=how in CLOSING)]

    def aim_at_a_close(self) -> list[Stop]:
        """How to end a first process while it closes, as one was told to that reached a boundary then."""
        places = self._places(AFTER_SIGNAL + FIRST)
        if not places:
            return [self._at_intents(), Stop(self.chance.choice(DEADLY), "commit.close.before")]
        return self._while_closing(self.chance.choice(places))

    def lead(self, history: History) -> Life:
        """Let a process of ``history`` die before a recovery that is hunted in: mostly while effects are under way."""
        effects = [place for place in self._places(FIRST) if place.row.startswith("effect.")]
        if self.chance.random() < RANDOM_LEAD_SHARE:
            return self.end_one(history)
        place = self.chance.choice(effects)
        life = history.run(Stop(self.chance.choice(DEADLY), place.row, self.chance.randint(1, self.reached[place])))
        self.count(life)
        return life

    def table(self) -> str:
        """What was killed, for people."""
        rows: Counter[str] = Counter()
        for place, count in self.killed.items():
            rows[place.row] += count
        walls = rows.pop(WALL, 0)
        whens = ", ".join(f"in {when} {self.whens[when]}" for when in WHENS)
        lines = [f"{self.kills} kills in {self.processes} processes"]
        lines.append("by kind: " + ", ".join(f"{how} {count}" for how, count in sorted(self.hows.items())))
        lines.append(f"by when: {whens}")
        lines.append(f"by wall time {walls}, at boundaries {self.kills - walls}:")
        lines += [f"  {count:4} {row}" for row, count in sorted(rows.items())]
        return "\n".join(lines)

    def _next_how(self) -> How:
        """Each way to end in turn."""
        self._order += 1
        return HOWS[self._order % len(HOWS)]

    def _stops(self, part: str, how: How) -> list[Stop]:
        """Where to end a process: at what was killed least; now and then while it closes."""
        if how not in CLOSING:
            place = self._least(part)
            return [Stop(how, place.row, self.chance.randint(1, self.reached[place]))]
        if self.chance.random() < CLOSE_SHARE and self._places(AFTER_SIGNAL + part):
            return self._while_closing(self._least(AFTER_SIGNAL + part))
        place = self._least(part)
        nth = self.chance.randint(1, self.reached[place])
        return [Stop(how, place.row, nth, first_closing=self.chance.random() < 0.5)]

    def _while_closing(self, place: Place) -> list[Stop]:
        """Tell a process to close as one was told that reached this row then, and end it there."""
        signals = self._led[place] or [self._at_intents()]
        return [self.chance.choice(signals), Stop(self.chance.choice(DEADLY), place.row)]

    def _at_intents(self) -> Stop:
        """Told to close while effects are intended, which then do not begin, a process writes most in its close."""
        return Stop(self.chance.choice(sorted(CLOSING)), INTENTS, first_closing=True)

    def _places(self, part: str) -> list[Place]:
        return sorted(place for place in self.reached if place.part == part)

    def _least(self, part: str) -> Place:
        rows: Counter[str] = Counter()
        for place, count in self.killed.items():
            rows[place.row] += count
        places = self._places(part)
        least = min(rows[place.row] for place in places)
        return self.chance.choice([place for place in places if rows[place.row] == least])


def _when(place: Place) -> When:
    if place.part.startswith(AFTER_SIGNAL):
        return "a close"
    return "a recovery" if place.part.endswith(AGAIN) else "a first life"
