"""No secret is left in the bytes of an event that was redacted, wherever and however it stood in it."""

from __future__ import annotations

import base64
import pickle
import threading
from typing import Any
from urllib.parse import quote

import pytest
from event_values import any_event, errors, json_values
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import in_turn
from tables import table

from triage import (
    Agent,
    Diagnosis,
    ErrorInfo,
    Escalate,
    FailurePolicy,
    FailureType,
    Retry,
    Step,
    Suspend,
)
from triage.core import Evidence, Redactor, TriageEscalationError, UsageError, dumps, events
from triage.core.secret_shapes import HIDDEN
from triage.core.wire import dump, load, redacted

CANARY = "qX7vT2mK9pL4wN8zR3cY6"
"""In every secret below; what stands in the bytes is the leak."""

REGISTERED = f"correct {CANARY} battery"
REDACTOR = Redactor(
    fields=("ssn",),
    patterns=(r"ticket-[A-Za-z0-9]+",),
    values=(REGISTERED,),
    environment=False,
)

SECRETS = [
    f"sk-{CANARY}",
    f"sk_live_{CANARY}",
    f"ghp_{CANARY}",
    f"glpat-{CANARY}",
    f"xoxb-{CANARY}",
    f"AIza{CANARY}{CANARY}",
    f"npm_{CANARY}{CANARY}",
    f"eyJhbGciOiJIUzI1NiJ9.{CANARY}.{CANARY}",
    f"Authorization: Bearer {CANARY}",
    f"{{'Authorization': 'Digest {CANARY}'}}",
    f"Set-Cookie: sid={CANARY}; Path=/",
    f"-----BEGIN RSA PRIVATE KEY-----\nDEK-Info: AES-128\n\n{CANARY}\n-----END RSA PRIVATE KEY-----",
    f"postgres://ann:{CANARY}@db.example/app",
    f"redis://:p@{CANARY}@cache",
    f"https://{CANARY}@git.example/a",
    f"https://a.example/x?page=2&api_key={CANARY}&z=1",
    f"https://a.example/x?X-Amz-Signature={CANARY}",
    f"/download?sig={CANARY}",
    f"OPENAI_API_KEY={CANARY}",
    f'{{"password": "two words {CANARY}"}}',
    f'{{\\"client_secret\\": \\"{CANARY}\\"}}',
    f"ssn: {CANARY}",
    f"ticket-{CANARY}",
    REGISTERED,
]


def _base64(secret: str) -> str:
    return base64.b64encode(secret.encode()).decode()


def _within(secret: str) -> str:
    return base64.b64encode(f'{{"note": "ü", "login": "{secret}"}}'.encode()).decode()


FORMS: list[Any] = [
    str,
    _base64,
    _within,
    lambda secret: base64.urlsafe_b64encode(secret.encode()).decode().rstrip("="),
    lambda secret: f"data={_base64(secret)}",
    lambda secret: quote(secret, safe=""),
    lambda secret: f"see https://b.example/?next={quote(secret, safe='')}",
]
"""How a secret may be written."""

NAMED = ["password", "apiKey", "X-Api-Key", "db_password", "GITHUB_TOKEN", "set-cookie", "S S N"]

written = st.builds(
    lambda form, secret: form(secret), st.sampled_from(FORMS), st.sampled_from(SECRETS)
)
planted: st.SearchStrategy[Any] = st.one_of(
    written,
    st.builds("{}{}{}".format, st.text(max_size=8).map(lambda s: f"{s} "), written, st.just(" .")),
    st.builds(lambda name: {name: CANARY}, st.sampled_from(NAMED)),
    st.builds(lambda name: {name: {"deep": [None, True, CANARY]}}, st.sampled_from(NAMED)),
    st.builds(lambda name: {"name": name, "value": CANARY}, st.sampled_from(NAMED)),
    st.builds(lambda name: [name, CANARY], st.sampled_from(NAMED)),
    st.builds(lambda secret: {secret: 1}, written),
)


def _holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    beside = st.lists(json_values, max_size=2)
    return st.builds(lambda before, item, after: [*before, item, *after], beside, inner, beside) | (
        st.builds(
            lambda rest, name, item: {**rest, name: item},
            st.dictionaries(st.text(max_size=5), json_values, max_size=2),
            st.sampled_from(["data", "result", "args"]),
            inner,
        )
    )


secret_values = st.recursive(planted, _holding, max_leaves=4)
secret_texts = written


def leaks(text: str) -> bool:
    """Whether the canary is in a text, as it is or in a form it could have been planted in."""
    if CANARY in text:
        return True
    return any(_within_base64(part) for part in text.replace("\\", '"').split('"'))


def _within_base64(part: str) -> bool:
    for word in part.replace("%3D", "=").replace("=", " ").split():
        for skip in range(4):
            some = word[skip:].replace("-", "+").replace("_", "/")
            try:
                data = base64.b64decode(some[: len(some) // 4 * 4])
            except ValueError:
                continue
            if CANARY[2:-4].encode() in data:
                return True
    return False


@table("form", FORMS)
@table("secret", SECRETS)
def test_every_kind_of_secret_is_hidden_in_every_form(secret: str, form: Any) -> None:
    text = form(secret)
    assert leaks(text) or "%" in text  # or the test could not fail
    shown = REDACTOR.text(f"it said {text} and stopped")
    assert not leaks(shown)
    assert HIDDEN in shown
    assert shown.startswith("it said ")


@given(secret_values)
def test_no_secret_is_left_in_a_value(value: Any) -> None:
    clean, changed = REDACTOR.value(value)
    assert changed
    assert not leaks(dumps(events.RunStarted("r", 0, 0.0, "a", task=clean)))
    assert REDACTOR.fields_of(value, "state")
    assert not leaks(" ".join(REDACTOR.fields_of(value, "state")))


@given(secret_values)
def test_what_was_redacted_is_left_as_it_is(value: Any) -> None:
    once, _ = REDACTOR.value(value)
    again, changed = REDACTOR.value(once)
    assert not changed
    assert again is once


@given(secret_values, secret_texts, errors)
def test_no_secret_is_left_in_any_event(value: Any, text: str, error: ErrorInfo) -> None:
    held = {"data": value}
    below = replace(error, message=text, body=value, notes=(text,), hint=held, code=text)
    whole = replace(below, related=(below, replace(error, related=(below,))))
    step = Step(0, text, text, value, value, text, text, text, metadata=held)
    diagnosis = Diagnosis(
        FailureType.UNKNOWN,
        cause=text,
        evidence=(Evidence("r", text),),
        user_message=text,
        technical_details=text,
        hint=text,
        suggestions=(text,),
    )
    of_run, of_attempt = ("r", 0, 1.0), ("r", 0, 1.0, 1)
    journal: list[Any] = [
        events.RunStarted(*of_run, "a", value, held),
        events.AttemptStarted(*of_attempt, hint=text, subgoal=text),
        events.StepRecorded(*of_attempt, 0, step),
        events.StateUpdated(*of_attempt, held),
        events.CallStarted(*of_attempt, "k", "t", "once", value),
        events.CallFinished(*of_attempt, "k", "done", value, error=whole),
        events.SubgoalsDeclared(*of_attempt, (text,)),
        events.SubgoalCompleted(*of_attempt, text),
        events.CompensatorRan(*of_attempt, 1, text, "k", whole),
        events.AttemptFailed(*of_attempt, whole, diagnosis),
        events.ActionChosen(*of_attempt, Retry(text, inject={"x": value}), reason=text),
        events.ActionChosen(*of_attempt, Suspend(text, held)),
        events.PlanMade(*of_run, value),
        events.PlanRouted(*of_run, "planner", text, reason=text),
        events.PlanFailed(*of_run, "step", diagnosis, text, whole),
        events.PlanStepMoved(*of_run, text, "done", text),
        events.ApprovalAsked(*of_run, "k", "s", text, value),
        events.ApprovalGiven(*of_run, "k", "s", "edited", text, text, value),
        events.RunSuspended(*of_attempt, "digest", text, held),
        events.RunFinished(*of_run, "error", value, error=whole),
    ]
    for event in journal:
        clean = redacted(event, REDACTOR)
        assert not leaks(dumps(clean)), type(event).__name__
        assert type(load(dump(clean))) is type(event)
        assert (clean.run_id, clean.seq, clean.time) == (event.run_id, event.seq, event.time)


@given(any_event)
def test_an_event_without_secrets_is_the_same_object(event: Any) -> None:
    plain = Redactor(environment=False)
    clean = redacted(event, plain)
    assume(HIDDEN not in dumps(clean))
    assert clean is event


@given(json_values)
def test_any_json_value_is_taken_and_a_clean_one_given_back(value: Any) -> None:
    clean, changed = REDACTOR.value(value)
    assert changed is (clean is not value)
    assert changed is bool(REDACTOR.fields_of(value))


def test_a_result_that_was_changed_is_not_exact() -> None:
    done = events.CallFinished("r", 0, 0.0, 1, "k", "done", {"token": f"t-{CANARY}"}, typed=True)
    clean = redacted(done, REDACTOR)
    assert isinstance(clean, events.CallFinished)
    assert clean.result == {"token": HIDDEN}
    assert not clean.exact
    assert not clean.typed
    failed = replace(done, result="fine", error=ErrorInfo("E", message=f"password={CANARY}"))
    kept = redacted(failed, REDACTOR)
    assert isinstance(kept, events.CallFinished)
    assert kept.exact


def test_arguments_that_held_secrets_must_be_given_again() -> None:
    started = events.RunStarted(
        "r", 0, 0.0, "a", f"log in with sk-{CANARY}", {"city": "Rome", "password": CANARY}, ("db",)
    )
    clean = redacted(started, REDACTOR)
    assert clean == replace(
        started,
        task=f"log in with {HIDDEN}",
        args={"city": "Rome"},
        unstored=("task", "db", "password"),
    )


def test_an_object_is_judged_by_the_json_it_is_stored_as() -> None:
    class Client:
        def model_dump(self, mode: str) -> dict[str, str]:
            return {"mode": mode, "api_key": CANARY}

    chosen = events.ActionChosen("r", 0, 0.0, 1, Retry(inject={"client": Client()}))
    assert CANARY in dumps(chosen)
    assert CANARY not in dumps(redacted(chosen, REDACTOR))


def test_ids_and_digests_are_left_to_a_greedy_pattern() -> None:
    greedy = Redactor(patterns=(r"\w+",), environment=False)
    event = events.CallStarted("run-1", 4, 1.0, 1, "charge:ab12:0", "charge", "once", "x", "key-1")
    assert redacted(event, greedy) == replace(event, arguments=HIDDEN)


def test_structure_numbers_and_what_is_empty_under_a_secret_name() -> None:
    value = {
        "password": {"new": "a", "old": 12, "at": None, "set": True, "rest": ""},
        "token": 17,
        "pass": 3,
        "cvv": 123,
        "tokens": "many",
        "next_page_token": "p2",
    }
    clean, _ = REDACTOR.value(value)
    assert clean == {
        "password": {"new": HIDDEN, "old": HIDDEN, "at": None, "set": True, "rest": ""},
        "token": 17,
        "pass": 3,
        "cvv": HIDDEN,
        "tokens": "many",
        "next_page_token": "p2",
    }


def test_the_places_of_secrets_are_named_and_the_secrets_are_not() -> None:
    value = {
        "user": {"name": "ann", "password": CANARY},
        "log": ["ok", f"sk-{CANARY}"],
        f"sk-{CANARY}": 1,
    }
    assert REDACTOR.fields_of(value, "state") == (
        "state['user']['password']",
        "state['log'][1]",
        "state['[redacted]']",
    )


def test_two_keys_that_are_secrets_stay_two() -> None:
    clean, _ = REDACTOR.value({f"sk-{CANARY}": 1, f"ghp_{CANARY}": 2})
    assert clean == {HIDDEN: 1, f"{HIDDEN} 2": 2}


def test_a_redactor_travels_and_does_not_show_its_values() -> None:
    copy = pickle.loads(pickle.dumps(REDACTOR))
    assert copy == REDACTOR
    assert copy.text(REGISTERED) == HIDDEN
    assert CANARY not in repr(REDACTOR)


class Names(Redactor):
    """Hides a name in its own way."""

    def text(self, text: str) -> str:
        return super().text(text).replace("Ann", "A.")


def test_a_redactor_of_your_own_travels_as_what_it_is() -> None:
    copy = pickle.loads(pickle.dumps(Names(values=(REGISTERED,))))
    assert copy.text(f"Ann, {REGISTERED}") == f"A., {HIDDEN}"


def test_the_environment_is_hidden_by_the_names_of_its_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "plain words 77")
    monkeypatch.setenv("SHOP_DB_PASS", "correct horse")
    monkeypatch.setenv("SHOP_COMPAT", "since version 7")
    monkeypatch.setenv("TLS_PRIVATE_KEY", "/etc/tls/key.pem")
    monkeypatch.setenv("SHOP_REGION", "middle earth")
    monkeypatch.setenv("SHOP_PASSWORD", "short")
    text = "plain words 77, correct horse, since version 7, /etc/tls/key.pem, middle earth, short"
    kept = "since version 7, /etc/tls/key.pem, middle earth, short"
    assert Redactor().text(text) == f"{HIDDEN}, {HIDDEN}, {kept}"
    assert Redactor(environment=False).text(text) == text
    assert "plain words" not in pickle.dumps(Redactor()).decode("latin-1")


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("/Zx9QwErTyUiOpAsDfGhJkL1zXcVbNm2Qa/7Rst", True),
        ("/Zx9QwErTyUiOpAsDfGhJkL1+XcVbNm2QaRst==", True),
        ("/run/secrets/shop/password/of/the/database/v2", False),
        ("/etc/shop/production-key-of-2026-04.pem", False),
        ("../keys/shop.pem", False),
        ("C:\\keys\\shop.pem", False),
        ("c:/keys/shop.pem", False),
        ("\\\\host\\keys\\shop.pem", False),
    ],
)
def test_a_variable_with_a_path_is_no_secret_but_base64_that_begins_with_a_slash_is(
    value: str, *, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_API_KEY", value)
    assert Redactor().text(f"said {value} to Ann") == f"said {HIDDEN if hidden else value} to Ann"


def test_names_may_be_kept_and_added() -> None:
    redactor = Redactor(fields=("Loyalty-Number",), keep=("session",), environment=False)
    value = {"session": "autumn", "loyaltyNumber": "A 1", "loyalty": "gold"}
    assert redactor.value(value)[0] == {**value, "loyaltyNumber": HIDDEN}
    assert (
        redactor.text('{"loyalty_number": "A 1", "tier": "x"}')
        == f'{{"loyalty_number": "{HIDDEN}", "tier": "x"}}'
    )


def test_registered_numbers_are_hidden_as_numbers() -> None:
    redactor = Redactor(values=("4111111111111111",), environment=False)
    assert redactor.value([4111111111111111, 7]) == ([HIDDEN, 7], True)


@table(
    ("given_", "said"),
    [
        ({"fields": "ssn"}, ("Redactor.fields", "write (text,)")),
        ({"fields": ("--",)}, ("Redactor.fields item", "a letter")),
        ({"keep": (3,)}, ("Redactor.keep item", "text that is not empty")),
        ({"patterns": ("(",)}, ("Redactor.patterns item", "a regular expression")),
        ({"patterns": ("",)}, ("Redactor.patterns item", "not empty")),
        ({"values": "hunter22"}, ("Redactor.values", "write (text,)")),
        ({"values": ("ab3",)}, ("Redactor.values[0]", "at least 4", "fields=(…)")),
        ({"environment": "yes"}, ("Redactor.environment", "True or False")),
    ],
)
def test_a_wrong_option_says_what_is_possible(
    given_: dict[str, Any], said: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as caught:
        Redactor(**given_)
    for words in said:
        assert words in str(caught.value)
    assert "hunter22" not in str(caught.value)
    assert "ab3" not in str(caught.value)


SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"


class Unpicklable(Exception):
    """An exception that holds what no pickle can."""

    def __init__(self) -> None:
        super().__init__(f"refused: password=hunter2secret9 {SECRET}")
        self.lock = threading.Lock()


@pytest.mark.anyio
async def test_the_error_of_a_run_shows_and_carries_away_no_secret() -> None:
    async def work(task: Any, *, record_step: Any, update_state: Any) -> None:
        record_step(
            Step(action="look", tool_input={"password": "hunter2secret9"}, tool_output=SECRET)
        )
        update_state({"seen": {"api_key": "hunter2secret9", "text": SECRET}})
        raise Unpicklable

    agent = Agent(work, FailurePolicy(default=in_turn(Retry(), Escalate("enough"))))
    with pytest.raises(TriageEscalationError) as caught:
        await agent.run({"text": f"use {SECRET}", "password": "hunter2secret9"})
    error = caught.value
    assert error.report is not None
    context = error.context
    assert context is not None
    data = pickle.dumps(error)
    back = pickle.loads(data)
    rich = repr(list(context.__rich_repr__()))
    shown_in = (repr(context), rich, str(error), repr(back.context), data.decode("latin-1"))
    for shown in shown_in:
        assert "hunter2secret9" not in shown
        assert SECRET not in shown
    assert b"Unpicklable object" not in data
    assert back.context.exception is None
    assert back.context.error.type_name == "Unpicklable"
    assert len(back.context.attempt_history) == 1
    assert back.context.trajectory.steps[0].action == "look"
    assert context.state["seen"]["text"] == SECRET
    assert isinstance(context.exception, Unpicklable)
