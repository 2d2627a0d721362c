"""Runs that end in an answer: calls with their results, the answer, and whether the record bears it out.

`HEALTHY` must never be questioned; the record of each of `WRONG` shows a failure that its answer hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """One call of a tool: it gives `result`, or raises with the text of `error`."""

    tool: str
    given: dict[str, Any]
    result: Any = None
    error: str | None = None
    effect: str = "once"


@dataclass(frozen=True)
class Case:
    """What a run did and what it answered."""

    name: str
    calls: tuple[Call, ...]
    answer: Any


def did(tool: str, result: Any, /, **given: Any) -> Call:
    """Change something."""
    return Call(tool, given, result)


def read(tool: str, result: Any, /, **given: Any) -> Call:
    """Read something."""
    return Call(tool, given, result, effect="read")


def did_fail(tool: str, error: str, /, **given: Any) -> Call:
    """Fail to change something, with an exception."""
    return Call(tool, given, error=error)


def read_fail(tool: str, error: str, /, **given: Any) -> Call:
    """Fail to read something, with an exception."""
    return Call(tool, given, error=error, effect="read")


PAGE = (
    "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>"
    "<body><h1>Bad Gateway</h1></body></html>"
)
LOGIN = "<html lang='en'><body><form action='/login'>Please sign in</form></body></html>"
SITE = (
    "<!doctype html><html><head><title>Opening hours</title></head>"
    "<body><p>Mon to Fri, 9 to 5</p></body></html>"
)


def case(name: str, answer: Any, *calls: Call) -> Case:
    """Name a run, its answer first."""
    return Case(name, calls, answer)


# --- nothing is wrong ----------------------------------------------------------------------------

HEALTHY = (
    # Failures that were cured later.
    case(
        "rest_sent_again",
        "All three reminders are sent.",
        did("send_reminders", {"sent": [1, 2], "failed": [3]}, ids=[1, 2, 3]),
        did("send_reminders", {"sent": [3], "failed": []}, ids=[3]),
    ),
    case(
        "rest_sent_singly",
        "Done: everybody has been told.",
        did(
            "send_all",
            {"sent": 2, "failed": ["ann@x.org"]},
            to=["bob@x.org", "cy@x.org", "ann@x.org"],
        ),
        did("send_mail", {"ok": True}, to="ann@x.org"),
    ),
    case(
        "raised_then_worked",
        "The invoice is paid.",
        did_fail("pay", "ConnectionError: reset by peer", invoice="I-7"),
        did("pay", {"status": "paid"}, invoice="I-7"),
    ),
    case(
        "error_result_then_worked",
        "Booked.",
        did("book", {"ok": False, "error": "seat taken"}, seat="12A"),
        did("book", {"ok": True, "seat": "12B"}, seat="12B"),
    ),
    case(
        "tests_mended",
        "All tests pass now.",
        did("run_tests", {"passed": 11, "failed": 1, "failures": ["test_parse"]}),
        did("edit_file", "written", path="parse.py"),
        did("run_tests", {"passed": 12, "failed": 0, "failures": []}),
    ),
    case(
        "exit_code_mended",
        "Built.",
        did("shell", {"exit_code": 2, "stderr": "missing header"}, command="make"),
        did("shell", {"exit_code": 0, "stdout": "ok"}, command="apt install libx"),
        did("shell", {"exit_code": 0, "stdout": "ok"}, command="make"),
    ),
    case(
        "other_tool_cured",
        "The file is uploaded.",
        did_fail("upload_s3", "PermissionError: 403", file="a.csv"),
        did("upload_gcs", {"status": "stored"}, file="a.csv"),
    ),
    case(
        "three_rounds",
        "All five records are imported.",
        did("import_rows", {"imported": 3, "errors": [{"row": 4}, {"row": 5}]}, rows=5),
        did("import_rows", {"imported": 1, "errors": [{"row": 5}]}, rows=[4, 5]),
        did("import_rows", {"imported": 1, "errors": []}, rows=[5]),
    ),
    case(
        "failed_items_by_id_later",
        "Every document is indexed.",
        did(
            "bulk_index",
            {
                "errors": True,
                "items": [
                    {"index": {"_id": "d1", "status": 201}},
                    {"index": {"_id": "d2", "status": 429}},
                ],
            },
            ids=["d1", "d2"],
        ),
        did(
            "bulk_index",
            {"errors": False, "items": [{"index": {"_id": "d2", "status": 201}}]},
            ids=["d2"],
        ),
    ),
    case(
        "queue_retried",
        "The messages are on the queue.",
        did(
            "send_batch",
            {"Successful": [{"Id": "a"}], "Failed": [{"Id": "b", "Code": "InternalError"}]},
            ids=["a", "b"],
        ),
        did("send_batch", {"Successful": [{"Id": "b"}], "Failed": []}, ids=["b"]),
    ),
    case(
        "looked_up_after_it_raised",
        "The invoice is paid.",
        did_fail("pay", "RuntimeError: no reply", invoice="I-7"),
        read("get_payment", {"invoice": "I-7", "status": "paid"}, invoice="I-7"),
    ),
    # Nothing has failed, in many spellings.
    case("errors_empty", "Imported.", did("import_rows", {"imported": 7, "errors": []})),
    case("failed_zero", "Sent.", did("send_all", {"sent": 7, "failed": 0})),
    case("error_null", "Saved.", did("save", {"id": 4, "error": None})),
    case("error_blank", "Saved.", did("save", {"id": 4, "error": ""})),
    case("failures_object_empty", "Sent.", did("send_all", {"sent": 7, "failures": {}})),
    case("failed_false", "Deployed.", did("deploy", {"failed": False, "version": 3})),
    case(
        "errors_false",
        "Indexed.",
        did("bulk_index", {"took": 3, "errors": False, "items": [{"index": {"status": 201}}]}),
    ),
    case("error_count_zero", "Migrated.", did("migrate", {"error_count": 0, "errorCount": 0})),
    case(
        "failure_count_zero",
        "Pushed.",
        did("push", {"success_count": 2, "failure_count": 0, "results": [{"message_id": "1"}]}),
    ),
    case(
        "failed_entry_count_zero",
        "Published.",
        did("put_events", {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}),
    ),
    case("unprocessed_empty", "Written.", did("batch_write", {"UnprocessedItems": {}})),
    case(
        "exit_code_zero",
        "Built.",
        did("shell", {"exit_code": 0, "stdout": "0 errors, 0 warnings"}, command="make"),
    ),
    case(
        "code_zero", "Ordered.", did("order", {"code": 0, "message": "success", "data": {"id": 9}})
    ),
    case(
        "status_200",
        "Posted.",
        did("http_post", {"status": 200, "body": {"ok": True}}, url="https://x"),
    ),
    case("status_code_201", "Posted.", did("http_post", {"status_code": 201}, url="https://x")),
    case(
        "graphql_no_errors",
        "Renamed.",
        did("graphql", {"data": {"rename": {"id": 1}}, "errors": None}),
    ),
    case(
        "all_items_ok",
        "Done.",
        did("update_many", {"results": [{"id": 1, "status": "ok"}, {"id": 2, "status": "ok"}]}),
    ),
    case("text_result", "Done.", did("update_many", "2 updated, 0 failed")),
    case("no_result", "Done.", did("notify", None)),
    case("true_result", "Done.", did("notify", {"sent": True})),
    case(
        "skipped_is_no_failure",
        "Synchronized.",
        did("sync", {"copied": 4, "skipped": ["a.txt"], "unchanged": 3}),
    ),
    case(
        "duplicates",
        "Imported.",
        did("import_rows", {"inserted": 4, "duplicates": 2, "errors": []}),
    ),
    case(
        "error_rate",
        "Deployed.",
        did("deploy", {"error_rate": 0.01, "errors_before": 3, "status": "ok"}),
    ),
    case(
        "max_errors_is_a_setting",
        "Configured.",
        did("configure", {"max_errors": 10, "retry_failed": True, "on_error": "stop"}),
    ),
    case(
        "is_error_false",
        "Written.",
        did("write_file", {"isError": False, "content": [{"type": "text", "text": "ok"}]}),
    ),
    case(
        "warnings_only",
        "Built.",
        did("build", {"status": "succeeded", "warnings": ["deprecated call"]}),
    ),
    case(
        "partial_is_a_word_of_the_data",
        "Created.",
        did("create_index", {"type": "partial", "where": "failed = true"}),
    ),
    # Failures are the data.
    case(
        "failed_jobs_listed",
        "The nightly build of the parser broke; I told its owner.",
        read(
            "list_jobs",
            [{"id": 1, "status": "failed", "name": "parser"}, {"id": 2, "status": "success"}],
        ),
        did("notify", {"ok": True}, who="owner"),
    ),
    case(
        "failed_payment_read",
        "The customer should use another card.",
        read("get_payment", {"id": "p1", "status": "failed", "reason": "card_declined"}, id="p1"),
    ),
    case(
        "log_errors_read",
        "The disk is full.",
        read("search_logs", {"total": 2, "errors": ["ENOSPC", "ENOSPC"]}, query="error"),
    ),
    case(
        "cancelled_order_read",
        {"refund": True},
        read("get_order", {"id": 1, "status": "cancelled"}, id=1),
    ),
    case(
        "test_report_read",
        "Look at the parser first.",
        read("get_report", {"passed": 10, "failed": 2, "failures": ["parse", "lex"]}, build=7),
    ),
    case(
        "incidents_read",
        ["db"],
        read("list_incidents", {"errors": [{"service": "db"}], "count": 1}),
    ),
    case(
        "ci_conclusion_read",
        "Restarted the pipeline.",
        read("get_check", {"status": "completed", "conclusion": "failure"}, id=1),
        did("restart", {"ok": True}, id=1),
    ),
    case("failed_count_is_asked_for", 3, read("count_failures", {"failed": 3})),
    case(
        "dead_letters_requeued",
        "The queue is clean.",
        read("get_dead_letters", {"failed": [7, 8]}),
        did("requeue", {"requeued": [7, 8], "failed": []}, ids=[7, 8]),
    ),
    case(
        "a_404_read_as_absent",
        "There is no such user yet, so I created one.",
        read("get_user", {"status": 404, "error": "not found"}, name="ann"),
        did("create_user", {"id": 1}, name="ann"),
    ),
    case(
        "absent_by_exception",
        "Created.",
        read_fail("get_user", "LookupError: no user ann", name="ann"),
        did("create_user", {"id": 1}, name="ann"),
    ),
    case(
        "last_read_failed",
        "Paris has two million inhabitants.",
        read("search", ["Paris: 2.1 million"], query="Paris"),
        read_fail("fetch_page", "TimeoutError", url="x"),
    ),
    case(
        "read_failed_and_other_source",
        "It is 20 degrees.",
        read_fail("weather_a", "ConnectionError: down", city="Rome"),
        read("weather_b", {"temp": 20}, city="Rome"),
    ),
    case(
        "monitoring_says_down",
        "The shop has been down since nine.",
        read("get_health", {"status": "error", "since": "09:00"}, service="shop"),
    ),
    case(
        "search_of_errors",
        {"cause": "quota"},
        read("find_events", {"hits": [{"level": "error", "error": "quota"}]}, q="x"),
    ),
    case(
        "validate_finds_errors",
        {"valid": False},
        read("get_validation", {"valid": False, "errors": ["name is missing"]}),
    ),
    # The failure is told.
    case(
        "told_by_id",
        "Reminders went out to 1 and 2; number 3 could not be reached.",
        did("send_reminders", {"sent": [1, 2], "failed": [3]}, ids=[1, 2, 3]),
    ),
    case(
        "told_by_count",
        "17 of 20 invoices were sent, 3 were not.",
        did("send_invoices", {"sent": 17, "failed": 3}),
    ),
    case(
        "told_by_sent_count",
        "17 invoices were sent.",
        did("send_invoices", {"sent": 17, "failed": 3, "total": 20}),
    ),
    case(
        "told_in_german",
        "Versandt, außer an ann@x.org.",
        did("send_all", {"sent": 2, "failed": ["ann@x.org"]}),
    ),
    case(
        "told_in_french",
        "Envoyé, sauf la facture I-9 qui a été refusée.",
        did("send_invoices", {"sent": ["I-7"], "failed": [{"id": "I-9", "error": "rejected"}]}),
    ),
    case(
        "told_in_japanese",
        "3番の送信に失敗しました。",
        did("send_reminders", {"sent": [1, 2], "failed": [3]}),
    ),
    case(
        "told_in_arabic",
        "تم الإرسال ما عدا رقم 3",
        did("send_reminders", {"sent": [1, 2], "failed": [3]}),
    ),
    case(
        "told_in_spanish_by_name",
        "Falta Acme: el servidor lo rechazó.",
        did("sync_crm", {"synced": ["Bolt"], "failed": [{"name": "Acme", "error": "409"}]}),
    ),
    case(
        "told_as_object",
        {"sent": [1, 2], "failed": [3]},
        did("send_reminders", {"sent": [1, 2], "failed": [3]}),
    ),
    case(
        "told_as_status",
        {"status": "partial", "done": 2},
        did("send_reminders", {"sent": [1, 2], "failed": [3]}),
    ),
    case(
        "told_as_flag", {"success": False}, did("send_reminders", {"sent": [1, 2], "failed": [3]})
    ),
    case(
        "told_as_missing",
        {"missing": [3], "ok": [1, 2]},
        did("send_reminders", {"sent": [1, 2], "failed": [3]}),
    ),
    case(
        "told_as_json_text",
        '{"done": [1, 2], "not_done": [3]}',
        did("send_reminders", {"sent": [1, 2], "failed": [3]}),
    ),
    case(
        "result_handed_on",
        {"items": [{"index": {"_id": "d2", "status": 429}}], "errors": True},
        did("bulk_index", {"items": [{"index": {"_id": "d2", "status": 429}}], "errors": True}),
    ),
    case(
        "result_handed_on_as_text",
        '{"sent": 2, "failed": 1}',
        did("send_all", '{"sent": 2, "failed": 1}'),
    ),
    case(
        "exception_told_by_code",
        "The upload was refused with 403.",
        did_fail("upload", "PermissionError: 403 Forbidden", file="a.csv"),
    ),
    case(
        "exception_told_by_tool",
        "deploy did not work, please look at the cluster.",
        did_fail("deploy", "RuntimeError: quorum lost", version=3),
    ),
    case(
        "exception_told_by_words",
        "The seat map is locked right now, so nothing is booked.",
        did_fail("book", "ValueError: seat map locked", seat="1A"),
    ),
    case(
        "exception_told_in_italian",
        "Impossibile pagare la fattura I-7: connessione interrotta (reset).",
        did_fail("pay", "ConnectionError: connection reset", invoice="I-7"),
    ),
    case(
        "error_result_told",
        "The card was declined.",
        did("pay", {"ok": False, "error": "card declined"}, amount=3),
    ),
    case(
        "error_code_told",
        "Payment refused (E1042).",
        did("pay", {"status": "failed", "code": "E1042"}, amount=3),
    ),
    case(
        "exception_as_object",
        {"ok": False, "reason": "locked"},
        did_fail("book", "ValueError: map locked", seat="1A"),
    ),
    case("exception_as_none", None, did_fail("book", "ValueError: map locked", seat="1A")),
    case(
        "exception_as_false",
        {"booked": False},
        did_fail("book", "ValueError: map locked", seat="1A"),
    ),
    case("exception_as_empty_list", [], read_fail("search", "ValueError: bad query", q="x")),
    case(
        "error_object_answer",
        {"error": "could not book"},
        did_fail("book", "ValueError: map locked", seat="1A"),
    ),
    case(
        "every_read_failed_told",
        "The weather service gives a TimeoutError, I do not know the temperature.",
        read_fail("weather", "TimeoutError: 10 s", city="Rome"),
    ),
    case(
        "every_read_failed_told_by_code",
        "No answer from the wiki (503).",
        read_fail("wiki", "HTTPError: 503", q="x"),
        read_fail("wiki", "HTTPError: 503", q="y"),
    ),
    case(
        "asks_back_by_argument",
        "I cannot find order 77. Is the number right?",
        read_fail("get_order", "LookupError: no such order", id=77),
    ),
    # Pages of HTML where they belong.
    case(
        "scraper",
        "They open at nine.",
        read("fetch_page", SITE, url="https://a"),
        read("fetch_page", SITE, url="https://b"),
    ),
    case("only_a_page", "They open at nine.", read("fetch_page", SITE, url="https://a")),
    case(
        "page_then_data",
        "Nine to five.",
        read("fetch", PAGE, url="a"),
        read("fetch", {"hours": "9-5"}, url="a"),
    ),
    case("page_in_a_field", "Nine to five.", read("fetch", {"status": 200, "html": SITE}, url="a")),
    case("page_in_text", "Rendered.", did("render", "wrote <html> to out.html", template="t")),
    case("renderer", SITE, did("render", SITE, template="hours")),
    case(
        "fragment",
        "Highlighted.",
        read("fetch", {"a": 1}, url="a"),
        read("fetch", "<b>bold</b>", url="b"),
    ),
    case(
        "mixed_urls",
        "They open at nine.",
        read("http_get", {"a": 1}, url="https://api/x"),
        read("http_get", SITE, url="https://site/y"),
        read("http_get", {"a": 2}, url="https://api/z"),
    ),
    case(
        "markdown_then_page",
        "Read both.",
        read("fetch_page", "# Title\ntext", url="a"),
        read("fetch_page", SITE, url="b"),
    ),
    case(
        "page_told",
        "The price service answers with a Bad Gateway page.",
        read("get_price", {"price": 3}, id=1),
        read("get_price", PAGE, id=2),
    ),
    case(
        "csv_then_page_of_another_tool",
        "Fine.",
        read("load_csv", "a,b\n1,2", f="x"),
        read("fetch_page", SITE, url="x"),
    ),
    # No tools, or none that says anything.
    case(
        "no_calls",
        "Four.",
    ),
    case("numbers", 7, read("add", 7, a=3, b=4)),
    case(
        "words_about_failure",
        "I failed to find errors.",
        read("search", ["nothing failed"], q="errors"),
    ),
    case(
        "prose_of_failure",
        "Sent.",
        did("send", "The last attempt failed, but this one was delivered."),
    ),
    case(
        "subagent_answers",
        "Rome it is.",
        read("ask_researcher", {"answer": "Rome", "status": "completed"}, q="capital"),
    ),
    case(
        "subagent_says_sorry",
        "No hotel has a pool.",
        read("ask_researcher", "Sorry, no hotel there has a pool.", q="pool"),
    ),
    case(
        "subagent_second_try",
        "Rome.",
        read("ask_researcher", {"status": "failed", "error": "timeout"}, q="capital"),
        read("ask_researcher", {"status": "completed", "answer": "Rome"}, q="capital"),
    ),
)

# --- the answer hides a failure --------------------------------------------------------------------

WRONG = (
    # A batch lists failures.
    case(
        "failed_ids",
        "All reminders are sent.",
        did("send_reminders", {"sent": [1, 2], "failed": [3]}, ids=[1, 2, 3]),
    ),
    case(
        "failed_number", "All invoices were sent.", did("send_invoices", {"sent": 17, "failed": 3})
    ),
    case("failed_count", "All done.", did("send_invoices", {"sent_count": 17, "failed_count": 3})),
    case(
        "failure_count",
        "Everybody got the push.",
        did("push", {"success_count": 2, "failure_count": 1}),
    ),
    case(
        "failed_entry_count",
        "Published.",
        did(
            "put_events",
            {
                "FailedEntryCount": 1,
                "Entries": [{"EventId": "e"}, {"ErrorCode": "ThrottlingException"}],
            },
        ),
    ),
    case(
        "queue_failed",
        "The messages are on the queue.",
        did(
            "send_batch",
            {"Successful": [{"Id": "a"}], "Failed": [{"Id": "b77", "Code": "InternalError"}]},
        ),
    ),
    case(
        "errors_list",
        "The rows are imported.",
        did("import_rows", {"imported": 5, "errors": [{"row": 6, "message": "no such country"}]}),
    ),
    case(
        "errors_of_texts",
        "The rows are imported.",
        did("import_rows", {"imported": 5, "errors": ["row 6: no such country"]}),
    ),
    case(
        "errors_object",
        "The rows are imported.",
        did("import_rows", {"imported": 5, "errors": {"6": "no such country"}}),
    ),
    case(
        "bulk_flag",
        "Every document is indexed.",
        did(
            "bulk_index",
            {
                "took": 3,
                "errors": True,
                "items": [
                    {"index": {"_id": "d1", "status": 201}},
                    {"index": {"_id": "d2", "status": 429, "error": {"type": "rejected"}}},
                ],
            },
        ),
    ),
    case(
        "item_status",
        "Both users are updated.",
        did(
            "update_users",
            {"results": [{"id": 41, "status": "ok"}, {"id": 42, "status": "failed"}]},
        ),
    ),
    case(
        "item_ok_false",
        "Both users are updated.",
        did("update_users", [{"id": 41, "ok": True}, {"id": 42, "ok": False, "error": "locked"}]),
    ),
    case(
        "item_success_false",
        "Both users are updated.",
        did("update_users", {"items": [{"id": 41, "success": True}, {"id": 42, "success": False}]}),
    ),
    case(
        "item_http_status",
        "All calendars are updated.",
        did(
            "graph_batch", {"responses": [{"id": "r1", "status": 200}, {"id": "r2", "status": 403}]}
        ),
    ),
    case(
        "unprocessed",
        "All items are written.",
        did("batch_write", {"UnprocessedItems": {"orders": [{"PutRequest": {"id": 8}}]}}),
    ),
    case(
        "failures_list",
        "Deployed everywhere.",
        did("deploy_all", {"deployed": ["eu"], "failures": [{"region": "us", "reason": "quota"}]}),
    ),
    case(
        "failed_nested",
        "Deployed everywhere.",
        did("deploy_all", {"data": {"summary": {"succeeded": 1, "failed": 1}}}),
    ),
    case(
        "failed_json_text",
        "Deployed everywhere.",
        did("deploy_all", '{"succeeded": ["eu"], "failed": ["us-east"]}'),
    ),
    case(
        "graphql_errors",
        "Renamed both.",
        did(
            "graphql",
            {
                "data": {"a": {"id": 1}, "b": None},
                "errors": [{"message": "forbidden", "path": ["b"]}],
            },
        ),
    ),
    case(
        "insert_errors",
        "Loaded.",
        did(
            "insert_rows",
            {
                "kind": "tableDataInsertAllResponse",
                "insertErrors": [{"index": 4, "errors": [{"reason": "invalid"}]}],
            },
        ),
    ),
    case(
        "failed_then_other_work",
        "Sent and archived.",
        did("send_all", {"sent": 2, "failed": ["ann@x.org"]}),
        did("archive", {"ok": True}, folder="out"),
    ),
    case(
        "structured_answer_hides",
        {"status": "done", "count": 20},
        did("send_invoices", {"sent": 17, "failed": 3, "total": 20}),
    ),
    case("structured_true", {"done": True}, did("send_invoices", {"sent": 17, "failed": 3})),
    case(
        "rest_still_fails",
        "All three reminders are sent.",
        did("send_reminders", {"sent": [1, 2], "failed": [3]}, ids=[1, 2, 3]),
        did("send_reminders", {"sent": [], "failed": [3]}, ids=[3]),
    ),
    case(
        "rejected_list",
        "All applications are filed.",
        did("file_all", {"accepted": ["a"], "rejected": ["b-12"]}),
    ),
    case(
        "german_answer", "Alles erledigt.", did("send_reminders", {"sent": [1, 2], "failed": [3]})
    ),
    case(
        "partial_status",
        "The copy is complete.",
        did("copy", {"status": "partial_failure", "copied": 5}),
    ),
    case("camel_case", "Moved.", did("move_all", {"movedCount": 5, "failedCount": 2})),
    case("failed_items", "Moved.", did("move_all", {"moved": ["x"], "failed_items": ["y-19"]})),
    case(
        "status_207",
        "All contacts are merged.",
        did(
            "merge",
            {
                "status": 207,
                "results": [{"id": "c1", "code": 200}, {"id": "c2", "error": "conflict"}],
            },
        ),
    ),
    # The last action failed.
    case(
        "last_raised",
        "The invoice is paid.",
        read("get_invoice", {"id": "I-7", "total": 40}),
        did_fail("pay", "ConnectionError: reset by peer", amount=40),
    ),
    case(
        "last_error_result",
        "You are booked.",
        read("get_seats", ["12A"]),
        did("book", {"ok": False, "error": "hold expired"}, seat="12A"),
    ),
    case(
        "last_success_false",
        "You are booked.",
        read("get_seats", ["12A"]),
        did("book", {"success": False}, seat="12A"),
    ),
    case(
        "last_status_failed",
        "Deployed.",
        read("get_version", 3),
        did("deploy", {"status": "failed", "log": "quorum lost"}, version=3),
    ),
    case(
        "last_status_error",
        "Deployed.",
        read("get_version", 3),
        did("deploy", {"status": "error", "message": "quorum lost"}, version=3),
    ),
    case(
        "last_exit_code",
        "Built and installed.",
        did("shell", {"exit_code": 0, "stdout": "ok"}, command="configure"),
        did("shell", {"exit_code": 2, "stderr": "missing header"}, command="make install"),
    ),
    case(
        "last_is_error",
        "Written.",
        read("read_file", "x", path="a"),
        did(
            "write_file",
            {"isError": True, "content": [{"type": "text", "text": "read-only file system"}]},
            path="a",
        ),
    ),
    case(
        "last_http_500",
        "Posted.",
        read("get_draft", "x"),
        did("http_post", {"status_code": 500, "body": "oops"}, url="https://x"),
    ),
    case(
        "last_error_key",
        "Saved.",
        read("get_draft", "x"),
        did("save_draft", {"error": {"code": "quota_exceeded"}}, text="x"),
    ),
    case(
        "last_error_text_json",
        "Saved.",
        read("get_draft", "x"),
        did("save_draft", '{"error": "quota exceeded"}', text="x"),
    ),
    case(
        "failed_then_read",
        "Your flight is cancelled.",
        did_fail("cancel_flight", "RuntimeError: fare rules", id="F1"),
        read("get_weather", {"t": 20}),
    ),
    case(
        "second_of_two_raised",
        "Both invoices are paid.",
        did("pay", {"status": "paid"}, invoice="A"),
        did_fail("pay", "ValueError: bank closed", invoice="B"),
    ),
    case(
        "structured_after_raise",
        {"booked": True},
        read("get_seats", ["12A"]),
        did_fail("book", "ValueError: hold expired", seat="12A"),
    ),
    case(
        "last_aws_code",
        "Stopped the machine.",
        read("get_machine", {"id": "i"}),
        did(
            "stop_machine",
            {"ResponseMetadata": {"HTTPStatusCode": 400}, "Error": {"Code": "IncorrectState"}},
        ),
    ),
    # Every call failed.
    case(
        "only_call_raised",
        "Rome has 20 degrees.",
        read_fail("weather", "TimeoutError: 10 s", city="Rom"),
    ),
    case(
        "all_reads_raised",
        "The company earned 4 million.",
        read_fail("search", "HTTPError: 503", q="a"),
        read_fail("fetch", "HTTPError: 502", url="b"),
    ),
    case(
        "all_reads_error_results",
        "It ships tomorrow.",
        read("track", {"error": "upstream unavailable"}, id="T"),
        read("track", {"error": "upstream unavailable"}, id="T2"),
    ),
    case(
        "all_effects_raised",
        "Everything is set up.",
        did_fail("create_repo", "PermissionError: denied"),
        did_fail("create_team", "PermissionError: denied"),
    ),
    case(
        "all_structured",
        {"temperature": 20},
        read_fail("weather", "TimeoutError: 10 s", city="Rom"),
    ),
    case(
        "all_ok_false",
        "Here are your tickets.",
        read("list_tickets", {"ok": False, "error": "invalid_auth"}),
    ),
    case(
        "all_is_error",
        "The page says hello.",
        read("browse", {"isError": True, "content": [{"type": "text", "text": "net::ERR"}]}),
    ),
    case(
        "all_status_500",
        "The list is empty.",
        read("http_get", {"status": 500, "body": ""}, url="https://x"),
    ),
    # HTML where data was, or is declared.
    case(
        "page_after_data",
        "Both cost the same.",
        read("get_price", {"price": 3}, id=1),
        read("get_price", PAGE, id=2),
    ),
    case(
        "login_after_data",
        "She has no open orders.",
        read("list_orders", [{"id": 1}], user="bob"),
        read("list_orders", LOGIN, user="eve"),
    ),
    case(
        "page_after_number",
        "They add up to 30.",
        read("get_balance", 30.5, account="a"),
        read("get_balance", PAGE, account="b"),
    ),
    case(
        "page_after_json_text",
        "Both cost the same.",
        read("get_price", '{"price": 3}', id=1),
        read("get_price", PAGE, id=2),
    ),
    # A sub-agent's failure is no data.
    case(
        "subagent_error",
        "The market is growing.",
        read("ask_researcher", {"status": "failed", "error": "rate limit"}, q="market"),
    ),
    case(
        "subagent_refusal",
        "The market is growing.",
        read("ask_researcher", {"refusal": "I can't help with that.", "content": None}, q="market"),
    ),
    case(
        "subagent_filtered",
        "The market is growing.",
        read("ask_researcher", {"finish_reason": "content_filter", "content": ""}, q="market"),
    ),
    case(
        "subagent_incomplete",
        "The market is growing.",
        read(
            "ask_researcher",
            {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [],
            },
            q="market",
        ),
    ),
)
