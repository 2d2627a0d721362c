from __future__ import annotations

from threading import Barrier, Thread

from support import FakeEnvironment

from strategies.strategy_contexts import answer, context, reason_of
from triage.core import Escalate, Retry
from triage.strategies import CircuitBreaker, circuit_breaker

# the circuit breaker


def test_a_breaker_opens_after_so_many_failures_of_any_run() -> None:
    clock = FakeEnvironment()
    strategy = circuit_breaker(CircuitBreaker(3, 30.0, environment=clock), Retry())
    kinds = [answer(strategy, context(run_id=f"run-{n}")).kind for n in range(4)]
    assert kinds == ["retry", "retry", "escalate", "escalate"]
    clock.now += 10
    reason = reason_of(answer(strategy, context()))
    assert reason == (
        "the circuit is open, opened by 3 failures in a row; a probe is allowed in 20 s"
    )


def test_after_the_cooldown_one_run_probes() -> None:
    clock = FakeEnvironment()
    breaker = CircuitBreaker(1, 30.0, environment=clock)
    strategy = circuit_breaker(breaker, Retry())
    assert answer(strategy, context(run_id="a")).kind == "escalate"
    assert breaker.state == "open"
    clock.now += 30
    assert breaker.state == "half_open"
    kinds = [answer(strategy, context(run_id=name)).kind for name in ("b", "c", "d")]
    assert kinds == ["retry", "escalate", "escalate"]


def test_a_failed_probe_opens_it_again_and_a_success_closes_it() -> None:
    clock = FakeEnvironment()
    breaker = CircuitBreaker(1, 30.0, environment=clock)
    strategy = circuit_breaker(breaker, Retry())
    answer(strategy, context(run_id="a"))
    clock.now += 30
    assert answer(strategy, context(run_id="b")) == Retry()
    clock.now += 1
    assert "allowed in 30 s" in reason_of(answer(strategy, context(run_id="b")))
    assert breaker.state == "open"
    breaker.success()
    assert breaker.state == "closed"


def test_a_silent_probe_gives_its_place_to_another() -> None:
    clock = FakeEnvironment()
    strategy = circuit_breaker(CircuitBreaker(1, 30.0, environment=clock), Retry())
    answer(strategy, context(run_id="a"))
    clock.now += 30
    assert answer(strategy, context(run_id="b")) == Retry()
    clock.now += 30
    assert answer(strategy, context(run_id="c")) == Retry()


def test_a_run_that_gives_up_does_not_hold_the_probe() -> None:
    clock = FakeEnvironment()
    breaker = CircuitBreaker(1, 30.0, environment=clock)
    breaker.failure("a")
    clock.now += 30
    assert answer(circuit_breaker(breaker, Escalate()), context(run_id="b")).kind == "escalate"
    assert answer(circuit_breaker(breaker, Retry()), context(run_id="c")) == Retry()


def test_failures_with_quiet_between_them_are_not_in_a_row() -> None:
    clock = FakeEnvironment()
    breaker = CircuitBreaker(2, 30.0, environment=clock)
    for _ in range(5):
        assert breaker.failure("run") is None
        clock.now += 30
    assert breaker.state == "closed"


def test_a_run_that_does_not_probe_gives_nothing_up() -> None:
    clock = FakeEnvironment()
    breaker = CircuitBreaker(1, 30.0, environment=clock)
    breaker.failure("a")
    clock.now += 30
    assert breaker.failure("b") is None
    breaker.give_up("c")
    assert breaker.failure("c") == 30.0


def test_only_one_of_many_threads_probes() -> None:
    clock = FakeEnvironment()
    breaker = CircuitBreaker(1, 30.0, environment=clock)
    breaker.failure("first")
    clock.now += 30
    together, answers = Barrier(8), list[float | None]()

    def ask(name: str) -> None:
        together.wait()
        answers.append(breaker.failure(name))

    threads = [Thread(target=ask, args=(f"run-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count(None) == 1
