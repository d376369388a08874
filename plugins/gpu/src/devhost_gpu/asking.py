"""Asking each card on a thread of its own, so that one that hangs keeps nobody waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

DEADLINE = 4.0
"""Seconds all cards together have to answer."""


@dataclass(slots=True)
class _Question:
    thread: threading.Thread
    answer: str | None = None


class Asking:
    """Asks questions that may never be answered. Used by one thread.

    A card that has not answered is not asked again before it has: a hung driver gets one thread, not one a
    minute.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Question] = {}

    def ask(self, questions: Mapping[str, Callable[[], str]], deadline: float = DEADLINE) -> dict[str, str]:
        """What each question was answered with, by name; who gave no answer in time is missing.

        Args:
            questions: calls by the name of what they ask; they do not raise.
            deadline: seconds for all of them.
        """
        asked = {name: self._open.get(name) or self._begin(name, call) for name, call in questions.items()}
        end = time.monotonic() + deadline
        answers = {}
        for name, question in asked.items():
            question.thread.join(max(0.0, end - time.monotonic()))
            if question.answer is not None:
                answers[name] = question.answer
                del self._open[name]
        return answers

    def _begin(self, name: str, call: Callable[[], str]) -> _Question:
        def run() -> None:
            question.answer = call()

        question = _Question(threading.Thread(target=run, name=f"gpu-ask-{name}", daemon=True))
        self._open[name] = question
        question.thread.start()
        return question
