"""Rules on HTTP statuses, SQLSTATE, errno names and the codes of protocols and databases."""

from __future__ import annotations

from functools import partial

from triage.core import Cause, FailureType, Severity

from .rule import LooksAt, Rule

_EXTERNAL = FailureType.EXTERNAL_FAULT
_SCHEMA = FailureType.SCHEMA_MISMATCH
_MISSING = FailureType.HALLUCINATED_STATE
_CLASS_LENGTH = 2
"""Characters of a class of SQLSTATE."""


def _rule(
    section: str,
    source: str,
    name: str,
    failure_type: FailureType,
    cause: Cause,
    keys: str,
    *,
    severity: Severity | None = None,
    near: tuple[str, ...] = ("42", "OK", "99999"),
    looks_at: LooksAt = "code",
    weak: bool = False,
) -> Rule:
    """A rule on codes. keys: separated by spaces. near: codes that it must leave alone."""
    found = tuple(keys.split())
    return Rule(
        f"{section}.{name}",
        failure_type,
        cause,
        looks_at,
        found,
        severity,
        weak=weak,
        confidence=0.95,
        source=source,
        examples=tuple(_example(key) for key in found),
        near_misses=near,
    )


def _example(key: str) -> str:
    """A code that fits the key: of a class of statuses or of SQLSTATE one of its members."""
    if len(key) == _CLASS_LENGTH:
        return f"{key}000"
    return key.replace("xx", "93")


_sql = partial(_rule, "sql", "ISO 9075 SQLSTATE classes; PostgreSQL appendix A")
_errno = partial(_rule, "errno", "POSIX errno.h")
_grpc = partial(_rule, "grpc", "gRPC status codes, google.rpc.Code")
_sqlite = partial(_rule, "sqlite", "sqlite.org/rescode.html")
_mysql = partial(_rule, "mysql", "MySQL reference manual, error messages")
_amqp = partial(_rule, "amqp", "AMQP 0-9-1, reply codes")
_smtp = partial(_rule, "smtp", "RFC 5321 and RFC 4954, reply codes")
_ws = partial(_rule, "websocket", "RFC 6455 section 7.4 and the registry of close codes")
_ftp = partial(_rule, "ftp", "RFC 959 section 4.2, reply codes")
_curl = partial(_rule, "curl", "libcurl error codes, curl.se/libcurl/c/libcurl-errors.html")
_clickhouse = partial(_rule, "clickhouse", "ClickHouse, src/Common/ErrorCodes.cpp")
_oracle = partial(_rule, "oracle", "Oracle Database error messages, and python-oracledb's own")
_postgrest = partial(_rule, "postgrest", "PostgREST reference, errors")
_graph = partial(_rule, "graph", "Meta Graph API, error codes")
_imap = partial(_rule, "imap", "RFC 5530, IMAP response codes; RFC 2449 for POP3")
_jsonrpc = partial(_rule, "jsonrpc", "JSON-RPC 2.0 section 5.1, Model Context Protocol")
_http = partial(
    _rule,
    "http",
    "RFC 9110 section 15, and what proxies and providers add",
    looks_at="status",
    near=("200", "302"),
)

STATUS_RULES: tuple[Rule, ...] = (
    _http("rate_limited", _EXTERNAL, Cause.RATE_LIMITED, "418 429 509"),
    _http("payment", _EXTERNAL, Cause.QUOTA_EXHAUSTED, "402"),
    _http("auth", _EXTERNAL, Cause.AUTH, "401 407 498 511"),
    _http("forbidden", _EXTERNAL, Cause.PERMISSION, "403 451"),
    _http("missing", FailureType.HALLUCINATED_STATE, Cause.NOT_FOUND, "404 410"),
    _http("timeout", _EXTERNAL, Cause.TIMEOUT, "408 504 522 524"),
    _http("conflict", _EXTERNAL, Cause.CONFLICT, "409 412 423"),
    _http("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "413 414 431"),
    _http("not_offered", _EXTERNAL, Cause.BAD_REQUEST, "501 505 508", severity=Severity.CRITICAL),
    _http("storage", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "507"),
    _http("tls", _EXTERNAL, Cause.TLS, "525 526"),
    _http("unreachable", _EXTERNAL, Cause.CONNECTION, "499 521 523"),
    _http("overloaded", _EXTERNAL, Cause.OVERLOADED, "529"),
    _http("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "421 425 502 503"),
    _http("dependency", _EXTERNAL, Cause.SERVER_ERROR, "424"),
    _http("server_error", _EXTERNAL, Cause.SERVER_ERROR, "500 5xx"),
    _http("bad_request", _SCHEMA, Cause.BAD_REQUEST, "400 405 406 415 422 4xx"),
)

# fmt: off
CODE_RULES: tuple[Rule, ...] = (
    _sql("missing_object", _MISSING, Cause.MISSING_RESOURCE,
        "42P01 42703 42883 42704 42S02 42S22 42P02 3D 3F 02", near=("42601",)),
    _sql("privilege", _EXTERNAL, Cause.PERMISSION, "42501 25006", near=("42601",)),
    _sql("timeout", _EXTERNAL, Cause.TIMEOUT, "57014 HYT00 HYT01", near=("57P01",)),
    _sql("busy", _EXTERNAL, Cause.CONFLICT, "55P03 55006", near=("57014",)),
    _sql("deadlock", _EXTERNAL, Cause.DEADLOCK, "40P01", near=("40001",)),
    _sql("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "53100", near=("53300",)),
    _sql("conflict", _EXTERNAL, Cause.CONFLICT, "40 55"),
    _sql("auth", _EXTERNAL, Cause.AUTH, "28"),
    _sql("connection", _EXTERNAL, Cause.CONNECTION, "08", weak=True),
    _sql("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "53 57"),
    _sql("server", _EXTERNAL, Cause.SERVER_ERROR, "58 XX"),
    _sql("integrity", _SCHEMA, Cause.BAD_REQUEST, "23 44"),
    _sql("query", _SCHEMA, Cause.BAD_REQUEST, "42 22 21 0A 26 34"),
    _errno("connection", _EXTERNAL, Cause.CONNECTION,
        "ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ENETUNREACH EHOSTUNREACH ENETDOWN EHOSTDOWN "
        "ENETRESET ENOTCONN ESHUTDOWN EADDRNOTAVAIL EIO ESTALE EREMOTEIO", near=("ENOENT",)),
    _errno("dns", _EXTERNAL, Cause.DNS, "EAI"),
    _errno("timeout", _EXTERNAL, Cause.TIMEOUT, "ETIMEDOUT ETIME"),
    _errno("missing", _MISSING, Cause.MISSING_RESOURCE,
        "ENOENT ENOTDIR EISDIR EEXIST ENXIO ENODEV ENOTEMPTY ESRCH ECHILD", near=("EACCES",)),
    _errno("permission", _EXTERNAL, Cause.PERMISSION, "EACCES EPERM EROFS ENOEXEC", near=("ENOENT",)),
    _errno("exhausted", _EXTERNAL, Cause.RESOURCE_EXHAUSTED,
        "ENOSPC EDQUOT EMFILE ENFILE ENOMEM EFBIG ENOBUFS"),
    _errno("busy", _EXTERNAL, Cause.CONFLICT,
        "EADDRINUSE EBUSY ETXTBSY EAGAIN EALREADY EINPROGRESS EDEADLK"),
    _errno("name", _SCHEMA, Cause.INVALID_ARGUMENTS, "ENAMETOOLONG EILSEQ"),
    _errno("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "E2BIG EMSGSIZE", near=("ENOSPC",)),
    _mysql("auth", _EXTERNAL, Cause.AUTH, "MYSQL_1045 MYSQL_1698 MYSQL_1820 MYSQL_1862"),
    _mysql("permission", _EXTERNAL, Cause.PERMISSION,
        "MYSQL_1044 MYSQL_1129 MYSQL_1130 MYSQL_1142 MYSQL_1143 MYSQL_1227 MYSQL_1290 MYSQL_1370 "
        "MYSQL_1792 MYSQL_1836"),
    _mysql("dns", _EXTERNAL, Cause.DNS, "MYSQL_2005"),
    _mysql("connection", _EXTERNAL, Cause.CONNECTION,
        "MYSQL_2002 MYSQL_2003 MYSQL_2006 MYSQL_2013 MYSQL_2055 MYSQL_1159 MYSQL_1161"),
    _mysql("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "MYSQL_1040 MYSQL_1053 MYSQL_1203"),
    _mysql("rate", _EXTERNAL, Cause.RATE_LIMITED, "MYSQL_1226"),
    _mysql("deadlock", _EXTERNAL, Cause.DEADLOCK, "MYSQL_1213"),
    _mysql("busy", _EXTERNAL, Cause.CONFLICT, "MYSQL_1205 MYSQL_3572 MYSQL_1020"),
    _mysql("timeout", _EXTERNAL, Cause.TIMEOUT, "MYSQL_3024 MYSQL_1969"),
    _mysql("disk", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "MYSQL_1021 MYSQL_1114 MYSQL_1041"),
    _mysql("missing_object", _MISSING, Cause.MISSING_RESOURCE,
        "MYSQL_1146 MYSQL_1054 MYSQL_1049 MYSQL_1051 MYSQL_1091 MYSQL_1109 MYSQL_1305"),
    _mysql("integrity", _SCHEMA, Cause.BAD_REQUEST,
        "MYSQL_1062 MYSQL_1048 MYSQL_1364 MYSQL_1451 MYSQL_1452 MYSQL_1216 MYSQL_1217 "
        "MYSQL_3819"),
    _mysql("query", _SCHEMA, Cause.BAD_REQUEST,
        "MYSQL_1064 MYSQL_1065 MYSQL_1149 MYSQL_1136 MYSQL_1055 MYSQL_1406 MYSQL_1264 "
        "MYSQL_1366 MYSQL_1292 MYSQL_1265 MYSQL_1050 MYSQL_1007"),
    _mysql("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "MYSQL_1153"),
    _grpc("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "UNAVAILABLE", weak=True),
    _grpc("rate_limited", _EXTERNAL, Cause.RATE_LIMITED, "RESOURCE_EXHAUSTED", weak=True),
    _grpc("timeout", _EXTERNAL, Cause.TIMEOUT, "DEADLINE_EXCEEDED"),
    _grpc("auth", _EXTERNAL, Cause.AUTH, "UNAUTHENTICATED"),
    _grpc("permission", _EXTERNAL, Cause.PERMISSION, "PERMISSION_DENIED"),
    _grpc("missing", _MISSING, Cause.MISSING_RESOURCE, "NOT_FOUND", weak=True),
    _grpc("exists", _EXTERNAL, Cause.CONFLICT, "ALREADY_EXISTS", severity=Severity.REPLANNING),
    _grpc("precondition", _EXTERNAL, Cause.CONFLICT,
        "FAILED_PRECONDITION", severity=Severity.REPLANNING, weak=True),
    _grpc("conflict", _EXTERNAL, Cause.CONFLICT, "ABORTED"),
    _grpc("arguments", _SCHEMA, Cause.BAD_REQUEST,
        "INVALID_ARGUMENT OUT_OF_RANGE UNIMPLEMENTED", weak=True),
    _grpc("internal", _EXTERNAL, Cause.SERVER_ERROR, "INTERNAL"),
    _grpc("data_loss", _EXTERNAL, Cause.SERVER_ERROR, "DATA_LOSS", severity=Severity.CRITICAL),
    _sqlite("busy", _EXTERNAL, Cause.CONFLICT,
        "SQLITE_BUSY SQLITE_LOCKED SQLITE_BUSY_SNAPSHOT SQLITE_BUSY_TIMEOUT "
        "SQLITE_LOCKED_SHAREDCACHE SQLITE_BUSY_RECOVERY SQLITE_PROTOCOL", near=("SQLITE_ERROR",)),
    _sqlite("read_only", _EXTERNAL, Cause.PERMISSION,
        "SQLITE_READONLY SQLITE_AUTH SQLITE_PERM SQLITE_CANTOPEN SQLITE_READONLY_DBMOVED "
        "SQLITE_READONLY_DIRECTORY"),
    _sqlite("full", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "SQLITE_FULL SQLITE_NOMEM"),
    _sqlite("io", _EXTERNAL, Cause.SERVER_ERROR, "SQLITE_IOERR SQLITE_IOERR_WRITE SQLITE_IOERR_READ"),
    _sqlite("data", _SCHEMA, Cause.BAD_REQUEST,
        "SQLITE_NOTADB SQLITE_MISMATCH SQLITE_TOOBIG SQLITE_RANGE SQLITE_FORMAT SQLITE_CORRUPT "
        "SQLITE_CONSTRAINT"),
    _amqp("auth", _EXTERNAL, Cause.AUTH, "AMQP_403 AMQP_530"),
    _amqp("missing", _MISSING, Cause.MISSING_RESOURCE, "AMQP_404 AMQP_312 AMQP_402"),
    _amqp("locked", _EXTERNAL, Cause.CONFLICT, "AMQP_405"),
    _amqp("precondition", _SCHEMA, Cause.BAD_REQUEST,
        "AMQP_406 AMQP_311 AMQP_501 AMQP_502 AMQP_503 AMQP_505"),
    _amqp("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "AMQP_320 AMQP_506 AMQP_541 AMQP_313"),
    _smtp("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "SMTP_421 SMTP_450 SMTP_451 SMTP_452 SMTP_454"),
    _smtp("auth", _EXTERNAL, Cause.AUTH, "SMTP_530 SMTP_534 SMTP_535 SMTP_538"),
    _smtp("mailbox", _MISSING, Cause.MISSING_RESOURCE, "SMTP_550 SMTP_551"),
    _smtp("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "SMTP_552"),
    _smtp("refused", _EXTERNAL, Cause.PERMISSION, "SMTP_553 SMTP_554"),
    _smtp("command", _SCHEMA, Cause.BAD_REQUEST,
        "SMTP_500 SMTP_501 SMTP_502 SMTP_503 SMTP_504 SMTP_555"),
    _ws("refused", _EXTERNAL, Cause.PERMISSION, "WS_1008 WS_4001 WS_4003 WS_4401 WS_4403"),
    _ws("too_large", _SCHEMA, Cause.PAYLOAD_TOO_LARGE, "WS_1009"),
    _ws("data", _SCHEMA, Cause.BAD_REQUEST, "WS_1002 WS_1003 WS_1007 WS_1010"),
    _ws("server", _EXTERNAL, Cause.SERVER_ERROR, "WS_1011"),
    _ws("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "WS_1001 WS_1012 WS_1013 WS_1014"),
    _ws("connection", _EXTERNAL, Cause.CONNECTION, "WS_1005 WS_1006"),
    _ws("tls", _EXTERNAL, Cause.TLS, "WS_1015"),
    _imap("auth", _EXTERNAL, Cause.AUTH, "AUTHENTICATIONFAILED AUTHORIZATIONFAILED"),
    _imap("missing", _MISSING, Cause.MISSING_RESOURCE, "NONEXISTENT TRYCREATE"),
    _imap("busy", _EXTERNAL, Cause.CONFLICT, "INUSE IN-USE"),
    _imap("quota", _EXTERNAL, Cause.QUOTA_EXHAUSTED, "OVERQUOTA"),
    _ftp("auth", _EXTERNAL, Cause.AUTH, "FTP_331 FTP_332 FTP_430 FTP_530 FTP_532"),
    _ftp("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "FTP_421 FTP_450 FTP_451"),
    _ftp("connection", _EXTERNAL, Cause.CONNECTION, "FTP_425 FTP_426"),
    _ftp("storage", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "FTP_452 FTP_552"),
    _ftp("command", _SCHEMA, Cause.BAD_REQUEST, "FTP_500 FTP_501 FTP_502 FTP_503 FTP_504 FTP_553"),
    _curl("dns", _EXTERNAL, Cause.DNS, "CURL_5 CURL_6"),
    _curl("connection", _EXTERNAL, Cause.CONNECTION, "CURL_7 CURL_18 CURL_52 CURL_55 CURL_56"),
    _curl("timeout", _EXTERNAL, Cause.TIMEOUT, "CURL_28"),
    _curl("tls", _EXTERNAL, Cause.TLS, "CURL_35 CURL_58 CURL_59 CURL_60 CURL_77 CURL_83"),
    _curl("auth", _EXTERNAL, Cause.AUTH, "CURL_67"),
    _curl("redirects", _EXTERNAL, Cause.BAD_REQUEST, "CURL_47", severity=Severity.CRITICAL),
    _curl("url", _SCHEMA, Cause.BAD_REQUEST, "CURL_1 CURL_3"),
    _clickhouse("auth", _EXTERNAL, Cause.AUTH, "CLICKHOUSE_192 CLICKHOUSE_193 CLICKHOUSE_516"),
    _clickhouse("permission", _EXTERNAL, Cause.PERMISSION,
        "CLICKHOUSE_164 CLICKHOUSE_291 CLICKHOUSE_497"),
    _clickhouse("busy", _EXTERNAL, Cause.UNAVAILABLE,
        "CLICKHOUSE_202 CLICKHOUSE_242 CLICKHOUSE_252 CLICKHOUSE_999"),
    _clickhouse("resources", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "CLICKHOUSE_241 CLICKHOUSE_243"),
    _clickhouse("quota", _EXTERNAL, Cause.RATE_LIMITED, "CLICKHOUSE_201"),
    _clickhouse("timeout", _EXTERNAL, Cause.TIMEOUT, "CLICKHOUSE_159 CLICKHOUSE_160 CLICKHOUSE_209"),
    _clickhouse("connection", _EXTERNAL, Cause.CONNECTION, "CLICKHOUSE_210 CLICKHOUSE_279"),
    _clickhouse("missing", _MISSING, Cause.MISSING_RESOURCE,
        "CLICKHOUSE_16 CLICKHOUSE_47 CLICKHOUSE_60 CLICKHOUSE_81"),
    _clickhouse("query", _SCHEMA, Cause.BAD_REQUEST,
        "CLICKHOUSE_27 CLICKHOUSE_43 CLICKHOUSE_53 CLICKHOUSE_62 CLICKHOUSE_386"),
    _oracle("auth", _EXTERNAL, Cause.AUTH, "ORA-01017 ORA-28000 ORA-28001"),
    _oracle("permission", _EXTERNAL, Cause.PERMISSION, "ORA-01031"),
    _oracle("connection", _EXTERNAL, Cause.CONNECTION,
        "ORA-03113 ORA-03114 ORA-12541 DPY-4011 DPY-6005 DPY-6000"),
    _oracle("timeout", _EXTERNAL, Cause.TIMEOUT, "ORA-12170 DPY-4024"),
    _oracle("unavailable", _EXTERNAL, Cause.UNAVAILABLE,
        "ORA-00018 ORA-00020 ORA-01033 ORA-01034 ORA-12516 ORA-12519 ORA-12520 ORA-12528"),
    _oracle("busy", _EXTERNAL, Cause.CONFLICT, "ORA-00054 ORA-08177"),
    _oracle("deadlock", _EXTERNAL, Cause.DEADLOCK, "ORA-00060"),
    _oracle("storage", _EXTERNAL, Cause.RESOURCE_EXHAUSTED, "ORA-01653 ORA-01654"),
    _oracle("missing", _MISSING, Cause.MISSING_RESOURCE,
        "ORA-00904 ORA-00942 ORA-12505 ORA-12514 DPY-6001 DPY-6003"),
    _oracle("query", _SCHEMA, Cause.BAD_REQUEST, "ORA-00001 ORA-00900 ORA-00933 ORA-00936 ORA-01722"),
    _postgrest("auth", _EXTERNAL, Cause.AUTH, "PGRST300 PGRST301 PGRST302 PGRST303"),
    _postgrest("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "PGRST000 PGRST001 PGRST002 PGRST003"),
    _postgrest("missing", _MISSING, Cause.MISSING_RESOURCE,
        "PGRST116 PGRST200 PGRST202 PGRST204 PGRST205"),
    _postgrest("query", _SCHEMA, Cause.BAD_REQUEST,
        "PGRST100 PGRST101 PGRST102 PGRST103 PGRST106 PGRST108 PGRST118 PGRST201 PGRST203"),
    _graph("rate", _EXTERNAL, Cause.RATE_LIMITED, "GRAPH_4 GRAPH_17 GRAPH_32 GRAPH_341 GRAPH_613"),
    _graph("auth", _EXTERNAL, Cause.AUTH, "GRAPH_102 GRAPH_190"),
    _graph("permission", _EXTERNAL, Cause.PERMISSION, "GRAPH_3 GRAPH_10 GRAPH_200"),
    _graph("unavailable", _EXTERNAL, Cause.UNAVAILABLE, "GRAPH_1 GRAPH_2"),
    _graph("arguments", _SCHEMA, Cause.BAD_REQUEST, "GRAPH_100"),
    _jsonrpc("limit", _EXTERNAL, Cause.RATE_LIMITED, "-32005", weak=True),
    _jsonrpc("method", _SCHEMA, Cause.BAD_REQUEST, "-32601", weak=True),
    _jsonrpc("arguments", _SCHEMA, Cause.BAD_REQUEST, "-32602 -32600 -32700", weak=True),
    _jsonrpc("timeout", _EXTERNAL, Cause.TIMEOUT, "-32001", weak=True),
    _jsonrpc("internal", _EXTERNAL, Cause.SERVER_ERROR, "-32603", weak=True),
)
