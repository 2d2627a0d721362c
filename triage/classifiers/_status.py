"""Rules on HTTP statuses, SQLSTATE, errno names and the codes of gRPC, SQLite, AMQP and SMTP."""

from __future__ import annotations

from triage.taxonomy import Cause, FailureType, Severity

from ._rule import LooksAt, Rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_HTTP = "RFC 9110 section 15, and the statuses proxies and model providers add"
_SQL = "ISO 9075 SQLSTATE classes; PostgreSQL appendix A"
_ERRNO = "POSIX errno.h"
_GRPC = "gRPC status codes, google.rpc.Code"
_SQLITE = "sqlite.org/rescode.html"


def _rule(  # noqa: PLR0913 - the columns of a table
    name: str,
    failure_type: FailureType,
    cause: Cause | None,
    keys: str,
    source: str,
    *,
    severity: Severity | None = None,
    near: tuple[str, ...] = (),
    looks_at: LooksAt = "code",
    weak: bool = False,
) -> Rule:
    found = tuple(keys.split())
    examples = tuple(key.replace("xx", "93") for key in found)
    return Rule(
        name, failure_type, cause, looks_at, found, severity, weak=weak, confidence=0.95, source=source,
        examples=examples, near_misses=near,
    )  # fmt: skip


def _http(
    name: str, failure_type: FailureType, cause: Cause, keys: str, severity: Severity | None = None
) -> Rule:
    near = ("200", "302")
    return _rule(
        f"http.{name}", failure_type, cause, keys, _HTTP, severity=severity, near=near, looks_at="status"
    )


STATUS_RULES: tuple[Rule, ...] = (
    _http("rate_limited", _EXTERNAL, Cause.RATE_LIMITED, "429 509"),
    _http("payment", _EXTERNAL, Cause.QUOTA_EXHAUSTED, "402"),
    _http("auth", _EXTERNAL, Cause.AUTH, "401 407 498 511"),
    _http("forbidden", _EXTERNAL, Cause.PERMISSION, "403 451"),
    _http("missing", FailureType.HALLUCINATED_STATE, Cause.NOT_FOUND, "404 410"),
    _http("timeout", _EXTERNAL, Cause.TIMEOUT, "408 504 522 524"),
    _http("conflict", _EXTERNAL, Cause.CONFLICT, "409 412 423"),
    _http("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "413 414 431"),
    _http("not_offered", _EXTERNAL, Cause.BAD_REQUEST, "501 505 508", Severity.CRITICAL),
    _http("storage", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "507"),
    _http("tls", _EXTERNAL, Cause.TLS, "525 526"),
    _http("unreachable", _EXTERNAL, Cause.CONNECTION, "521 523"),
    _http("overloaded", _EXTERNAL, Cause.OVERLOADED, "529"),
    _http("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "421 425 502 503"),
    _http("dependency", _EXTERNAL, Cause.SERVER_ERROR, "424"),
    _http("server_error", _EXTERNAL, Cause.SERVER_ERROR, "500 5xx"),
    _http("bad_request", _SCHEMA, Cause.BAD_REQUEST, "400 405 406 415 422 4xx"),
)

CODE_RULES: tuple[Rule, ...] = (
    # --- SQLSTATE: exact ones first, then the classes (two characters) ---
    _rule("sql.missing_object", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE,
          "42P01 42703 42883 42704 42S02 42S22 42P02 3D 3F 02", _SQL, near=("42601",)),
    _rule("sql.privilege", _EXTERNAL, Cause.PERMISSION, "42501 25006", _SQL, near=("42601",)),
    _rule("sql.timeout", _EXTERNAL, Cause.TIMEOUT, "57014 HYT00 HYT01", _SQL, near=("57P01",)),
    _rule("sql.busy", _EXTERNAL, Cause.CONFLICT, "55P03 55006", _SQL, near=("57014",)),
    _rule("sql.deadlock", _EXTERNAL, Cause.DEADLOCK, "40P01", _SQL, near=("40001",)),
    _rule("sql.disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "53100", _SQL, near=("53300",)),
    _rule("sql.conflict", _EXTERNAL, Cause.CONFLICT, "40 55", _SQL),
    _rule("sql.auth", _EXTERNAL, Cause.AUTH, "28", _SQL),
    _rule("sql.connection", _EXTERNAL, Cause.CONNECTION, "08", _SQL),
    _rule("sql.unavailable", _EXTERNAL, Cause.UNAVAILABLE, "53 57", _SQL),
    _rule("sql.server", _EXTERNAL, Cause.SERVER_ERROR, "58 XX", _SQL),
    _rule("sql.integrity", _SCHEMA, Cause.BAD_REQUEST, "23 44", _SQL),
    _rule("sql.query", _SCHEMA, Cause.BAD_REQUEST, "42 22 21 0A 26 34", _SQL),
    # --- errno ---
    _rule("errno.connection", _EXTERNAL, Cause.CONNECTION,
          "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ENETUNREACH EHOSTUNREACH ENETDOWN EHOSTDOWN ENETRESET ENOTCONN "
          "ESHUTDOWN EADDRNOTAVAIL EIO", _ERRNO, near=("ENOENT",)),
    _rule("errno.dns", _EXTERNAL, Cause.DNS, "EAI", _ERRNO),
    _rule("errno.timeout", _EXTERNAL, Cause.TIMEOUT, "ETIMEDOUT ETIME", _ERRNO),
    _rule("errno.missing", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE,
          "ENOENT ENOTDIR EISDIR EEXIST ENXIO ENODEV ENOTEMPTY", _ERRNO, near=("EACCES",)),
    _rule("errno.permission", _EXTERNAL, Cause.PERMISSION, "EACCES EPERM EROFS", _ERRNO, near=("ENOENT",)),
    _rule("errno.exhausted", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "ENOSPC EDQUOT EMFILE ENFILE ENOMEM EFBIG", _ERRNO),
    _rule("errno.busy", _EXTERNAL, Cause.CONFLICT, "EADDRINUSE EBUSY ETXTBSY EAGAIN EALREADY EINPROGRESS EDEADLK", _ERRNO),
    _rule("errno.name", _SCHEMA, Cause.INVALID_ARGUMENTS, "ENAMETOOLONG EILSEQ", _ERRNO),
    # --- gRPC ---
    _rule("grpc.unavailable", _EXTERNAL, Cause.UNAVAILABLE, "UNAVAILABLE", _GRPC, weak=True),
    _rule("grpc.rate_limited", _EXTERNAL, Cause.RATE_LIMITED, "RESOURCE_EXHAUSTED", _GRPC, weak=True),
    _rule("grpc.timeout", _EXTERNAL, Cause.TIMEOUT, "DEADLINE_EXCEEDED", _GRPC),
    _rule("grpc.auth", _EXTERNAL, Cause.AUTH, "UNAUTHENTICATED", _GRPC),
    _rule("grpc.permission", _EXTERNAL, Cause.PERMISSION, "PERMISSION_DENIED", _GRPC),
    _rule("grpc.missing", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE, "NOT_FOUND", _GRPC, weak=True),
    _rule("grpc.exists", _EXTERNAL, Cause.CONFLICT, "ALREADY_EXISTS FAILED_PRECONDITION", _GRPC,
          severity=Severity.REPLANNING),
    _rule("grpc.conflict", _EXTERNAL, Cause.CONFLICT, "ABORTED", _GRPC),
    _rule("grpc.arguments", _SCHEMA, Cause.BAD_REQUEST, "INVALID_ARGUMENT OUT_OF_RANGE UNIMPLEMENTED", _GRPC, weak=True),
    _rule("grpc.internal", _EXTERNAL, Cause.SERVER_ERROR, "INTERNAL", _GRPC),
    _rule("grpc.data_loss", _EXTERNAL, Cause.SERVER_ERROR, "DATA_LOSS", _GRPC, severity=Severity.CRITICAL),
    # --- SQLite ---
    _rule("sqlite.busy", _EXTERNAL, Cause.CONFLICT,
          "SQLITE_BUSY SQLITE_LOCKED SQLITE_BUSY_SNAPSHOT SQLITE_BUSY_TIMEOUT SQLITE_LOCKED_SHAREDCACHE "
          "SQLITE_BUSY_RECOVERY SQLITE_PROTOCOL", _SQLITE, near=("SQLITE_ERROR",)),
    _rule("sqlite.read_only", _EXTERNAL, Cause.PERMISSION,
          "SQLITE_READONLY SQLITE_AUTH SQLITE_PERM SQLITE_CANTOPEN SQLITE_READONLY_DBMOVED SQLITE_READONLY_DIRECTORY",
          _SQLITE),
    _rule("sqlite.full", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "SQLITE_FULL SQLITE_NOMEM", _SQLITE),
    _rule("sqlite.io", _EXTERNAL, Cause.SERVER_ERROR, "SQLITE_IOERR SQLITE_IOERR_WRITE SQLITE_IOERR_READ", _SQLITE),
    _rule("sqlite.data", _SCHEMA, Cause.BAD_REQUEST,
          "SQLITE_NOTADB SQLITE_MISMATCH SQLITE_TOOBIG SQLITE_RANGE SQLITE_FORMAT SQLITE_CORRUPT SQLITE_CONSTRAINT", _SQLITE),
    # --- AMQP 0-9-1 reply codes and SMTP reply codes ---
    _rule("amqp.auth", _EXTERNAL, Cause.AUTH, "AMQP_403 AMQP_530", "AMQP 0-9-1 constants"),
    _rule("amqp.missing", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE, "AMQP_404 AMQP_312 AMQP_402",
          "AMQP 0-9-1 constants"),
    _rule("amqp.locked", _EXTERNAL, Cause.CONFLICT, "AMQP_405", "AMQP 0-9-1 constants"),
    _rule("amqp.precondition", _SCHEMA, Cause.BAD_REQUEST, "AMQP_406 AMQP_311 AMQP_501 AMQP_502 AMQP_503 AMQP_505",
          "AMQP 0-9-1 constants"),
    _rule("amqp.unavailable", _EXTERNAL, Cause.UNAVAILABLE, "AMQP_320 AMQP_506 AMQP_541 AMQP_313",
          "AMQP 0-9-1 constants"),
    _rule("smtp.unavailable", _EXTERNAL, Cause.UNAVAILABLE, "SMTP_421 SMTP_450 SMTP_451 SMTP_452 SMTP_454", "RFC 5321"),
    _rule("smtp.auth", _EXTERNAL, Cause.AUTH, "SMTP_530 SMTP_534 SMTP_535 SMTP_538", "RFC 4954"),
    _rule("smtp.mailbox", FailureType.HALLUCINATED_STATE, Cause.MISSING_RESOURCE, "SMTP_550 SMTP_551", "RFC 5321"),
    _rule("smtp.too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "SMTP_552", "RFC 5321"),
    _rule("smtp.refused", _EXTERNAL, Cause.PERMISSION, "SMTP_553 SMTP_554", "RFC 5321"),
    _rule("smtp.command", _SCHEMA, Cause.BAD_REQUEST, "SMTP_500 SMTP_501 SMTP_502 SMTP_503 SMTP_504 SMTP_555", "RFC 5321"),
    # --- JSON-RPC ---
    _rule("jsonrpc.method", _SCHEMA, Cause.BAD_REQUEST, "-32601", "JSON-RPC 2.0 section 5.1", weak=True),
    _rule("jsonrpc.arguments", _SCHEMA, Cause.BAD_REQUEST, "-32602 -32600 -32700", "JSON-RPC 2.0 section 5.1", weak=True),
    _rule("jsonrpc.timeout", _EXTERNAL, Cause.TIMEOUT, "-32001", "Model Context Protocol", weak=True),
    _rule("jsonrpc.internal", _EXTERNAL, Cause.SERVER_ERROR, "-32603", "JSON-RPC 2.0 section 5.1", weak=True),
)  # fmt: skip
