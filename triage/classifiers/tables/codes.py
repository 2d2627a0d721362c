"""Rules on HTTP statuses, SQLSTATE, errno names and the codes of protocols and databases."""

from __future__ import annotations

from collections.abc import Iterator

from triage.core.taxonomy import Cause, FailureType, Severity

from .rule import LooksAt, Rule

_TYPES = {
    Cause.BAD_REQUEST: FailureType.SCHEMA_MISMATCH,
    Cause.INVALID_ARGUMENTS: FailureType.SCHEMA_MISMATCH,
    Cause.PAYLOAD_TOO_LARGE: FailureType.SCHEMA_MISMATCH,
    Cause.MISSING_RESOURCE: FailureType.HALLUCINATED_STATE,
    Cause.NOT_FOUND: FailureType.HALLUCINATED_STATE,
}
"""The failure types of causes; of all others it is an external fault."""
_CLASS_LENGTH = 2
"""Characters of a class of SQLSTATE."""
_GOES_ON = "\n            "
"""A line that is indented further belongs to the one before it."""


def _section(
    section: str,
    source: str,
    table: str,
    *,
    prefix: str = "",
    looks_at: LooksAt = "code",
    near: tuple[str, ...] = ("42", "OK", "99999"),
) -> Iterator[Rule]:
    """The rules of a table, one a line: name, cause, marks, and the codes without their prefix.

    Marks: `!weak`, a severity, or `!external` for a fault of the other side's whatever the cause. Near
    misses are `near` and the full codes of the line before.
    """
    other: tuple[str, ...] = ()
    for line in table.replace(_GOES_ON, " ").strip().splitlines():
        name, cause, *rest = line.split()
        marks = {word[1:] for word in rest if word[0] == "!"}
        keys = tuple(prefix + word for word in rest if word[0] != "!")
        kind = _TYPES.get(Cause(cause), FailureType.EXTERNAL_FAULT)
        yield Rule(
            f"{section}.{name}",
            FailureType.EXTERNAL_FAULT if "external" in marks else kind,
            Cause(cause),
            looks_at,
            keys,
            next((severity for severity in Severity if severity in marks), None),
            weak="weak" in marks,
            confidence=0.95,
            source=source,
            examples=tuple(map(_example, keys)),
            near_misses=near + other,
        )
        other = tuple(_example(key) for key in keys if len(key) > _CLASS_LENGTH)


def _example(key: str) -> str:
    """A code that fits the key: of a class of statuses or of SQLSTATE one of its members."""
    return f"{key}000" if len(key) == _CLASS_LENGTH else key.replace("xx", "93")


# fmt: off
STATUS_RULES: tuple[Rule, ...] = (
    *_section("http", "RFC 9110 section 15, and what proxies and providers add", """
        rate_limited rate_limited                    418 429 509
        payment      quota_exhausted                 402
        auth         auth                            401 407 498 511
        forbidden    permission                      403 451
        missing      not_found                       404 410
        timeout      timeout                         408 504 522 524
        conflict     conflict                        409 412 423
        too_large    payload_too_large               413 414 431
        not_offered  bad_request !external !critical 501 505 508
        storage      resource_exhausted              507
        tls          tls                             525 526
        unreachable  connection                      499 521 523
        overloaded   overloaded                      529
        unavailable  unavailable                     421 425 502 503
        dependency   server_error                    424
        server_error server_error                    500 5xx
        bad_request  bad_request                     400 405 406 415 422 4xx
        """, near=("200", "302"), looks_at="status"),
)
CODE_RULES: tuple[Rule, ...] = (
    *_section("sql", "ISO 9075 SQLSTATE classes; PostgreSQL appendix A", """
        missing_object missing_resource   42P01 42703 42883 42704 42S02 42S22 42P02 3D 3F 02
        privilege      permission         42501 25006
        timeout        timeout            57014 HYT00 HYT01
        busy           conflict           55P03 55006
        deadlock       deadlock           40P01
        disk           resource_exhausted 53100
        conflict       conflict           40 55
        auth           auth               28
        connection     connection !weak   08
        unavailable    unavailable        53 57
        server         server_error       58 XX
        integrity      bad_request        23 44
        query          bad_request        42 22 21 0A 26 34
        """),
    *_section("errno", "POSIX errno.h", """
        connection connection         ECONNREFUSED ECONNRESET ECONNABORTED EPIPE ENETUNREACH
            EHOSTUNREACH ENETDOWN EHOSTDOWN ENETRESET ENOTCONN ESHUTDOWN EADDRNOTAVAIL EIO ESTALE EREMOTEIO
        dns        dns                EAI
        timeout    timeout            ETIMEDOUT ETIME
        missing    missing_resource   ENOENT ENOTDIR EISDIR EEXIST ENXIO ENODEV ENOTEMPTY ESRCH ECHILD
        permission permission         EACCES EPERM EROFS ENOEXEC
        exhausted  resource_exhausted ENOSPC EDQUOT EMFILE ENFILE ENOMEM EFBIG ENOBUFS
        busy       conflict           EADDRINUSE EBUSY ETXTBSY EAGAIN EALREADY EINPROGRESS EDEADLK
        name       invalid_arguments  ENAMETOOLONG EILSEQ
        too_large  payload_too_large  E2BIG EMSGSIZE
        """),
    *_section("mysql", "MySQL reference manual, error messages", """
        auth           auth               1045 1698 1820 1862
        permission     permission         1044 1129 1130 1142 1143 1227 1290 1370 1792 1836
        dns            dns                2005
        connection     connection         2002 2003 2006 2013 2055 1159 1161 1927
        unavailable    unavailable        1040 1053 1203
        rate           rate_limited       1226
        deadlock       deadlock           1213
        busy           conflict           1205 3572 1020
        timeout        timeout            3024 1969
        disk           resource_exhausted 1021 1114 1041
        missing_object missing_resource   1146 1054 1049 1051 1091 1109 1305
        integrity      bad_request        1062 1048 1364 1451 1452 1216 1217 3819
        query          bad_request        1064 1065 1149 1136 1055 1406 1264 1366 1292 1265 1050 1007
        too_large      payload_too_large  1153
        """, prefix="MYSQL_"),
    *_section("grpc", "gRPC status codes, google.rpc.Code", """
        unavailable  unavailable !weak          UNAVAILABLE
        rate_limited rate_limited !weak         RESOURCE_EXHAUSTED
        timeout      timeout                    DEADLINE_EXCEEDED
        auth         auth                       UNAUTHENTICATED
        permission   permission !weak           PERMISSION_DENIED
        missing      missing_resource !weak     NOT_FOUND
        exists       conflict !replanning       ALREADY_EXISTS
        precondition conflict !replanning !weak FAILED_PRECONDITION
        conflict     conflict                   ABORTED
        arguments    bad_request !weak          INVALID_ARGUMENT OUT_OF_RANGE UNIMPLEMENTED
        internal     server_error               INTERNAL
        data_loss    server_error !critical     DATA_LOSS
        """),
    *_section("sqlite", "sqlite.org/rescode.html", """
        busy      conflict           BUSY LOCKED BUSY_SNAPSHOT BUSY_TIMEOUT LOCKED_SHAREDCACHE
            BUSY_RECOVERY PROTOCOL
        read_only permission         READONLY AUTH PERM CANTOPEN READONLY_DBMOVED READONLY_DIRECTORY
        full      resource_exhausted FULL NOMEM
        io        server_error       IOERR IOERR_WRITE IOERR_READ
        data      bad_request        NOTADB MISMATCH TOOBIG RANGE FORMAT CORRUPT CONSTRAINT
        """, prefix="SQLITE_"),
    *_section("amqp", "AMQP 0-9-1, reply codes", """
        auth         auth             403 530
        missing      missing_resource 404 312 402
        locked       conflict         405
        precondition bad_request      406 311 501 502 503 505
        unavailable  unavailable      320 506 541 313
        """, prefix="AMQP_"),
    *_section("smtp", "RFC 5321 and RFC 4954, reply codes", """
        unavailable unavailable       421 450 451 452 454
        auth        auth              530 534 535 538
        mailbox     missing_resource  550 551
        too_large   payload_too_large 552
        refused     permission        553 554
        command     bad_request       500 501 502 503 504 555
        """, prefix="SMTP_"),
    *_section("websocket", "RFC 6455 section 7.4 and the registry of close codes", """
        refused     permission        1008 4001 4003 4401 4403
        too_large   payload_too_large 1009
        data        bad_request       1002 1003 1007 1010
        server      server_error      1011
        unavailable unavailable       1001 1012 1013 1014
        connection  connection        1005 1006
        tls         tls               1015
        """, prefix="WS_"),
    *_section("imap", "RFC 5530, IMAP response codes; RFC 2449 for POP3", """
        auth    auth             AUTHENTICATIONFAILED AUTHORIZATIONFAILED
        missing missing_resource NONEXISTENT TRYCREATE
        busy    conflict         INUSE IN-USE
        quota   quota_exhausted  OVERQUOTA
        """),
    *_section("ftp", "RFC 959 section 4.2, reply codes", """
        auth        auth               331 332 430 530 532
        unavailable unavailable        421 450 451
        connection  connection         425 426
        storage     resource_exhausted 452 552
        command     bad_request        500 501 502 503 504 553
        """, prefix="FTP_"),
    *_section("curl", "libcurl error codes, curl.se/libcurl/c/libcurl-errors.html", """
        dns        dns                             5 6
        connection connection                      7 18 52 55 56
        timeout    timeout                         28
        tls        tls                             35 58 59 60 77 83
        auth       auth                            67
        redirects  bad_request !external !critical 47
        url        bad_request                     1 3
        """, prefix="CURL_"),
    *_section("clickhouse", "ClickHouse, src/Common/ErrorCodes.cpp", """
        auth       auth               192 193 516
        permission permission         164 291 497
        busy       unavailable        202 242 252 999
        resources  resource_exhausted 241 243
        quota      rate_limited       201
        timeout    timeout            159 160 209
        connection connection         210 279
        missing    missing_resource   16 47 60 81
        query      bad_request        27 43 53 62 386
        """, prefix="CLICKHOUSE_"),
    *_section("oracle", "Oracle Database error messages, and python-oracledb's own", """
        auth        auth               ORA-01017 ORA-28000 ORA-28001
        permission  permission         ORA-01031
        connection  connection         ORA-03113 ORA-03114 ORA-12541 DPY-4011 DPY-6005 DPY-6000
        timeout     timeout            ORA-12170 DPY-4024
        unavailable unavailable        ORA-00018 ORA-00020 ORA-01033 ORA-01034 ORA-12516 ORA-12519
            ORA-12520 ORA-12528
        busy        conflict           ORA-00054 ORA-08177
        deadlock    deadlock           ORA-00060
        storage     resource_exhausted ORA-01653 ORA-01654
        missing     missing_resource   ORA-00904 ORA-00942 ORA-12505 ORA-12514 DPY-6001 DPY-6003
        query       bad_request        ORA-00001 ORA-00900 ORA-00933 ORA-00936 ORA-01722
        """),
    *_section("postgrest", "PostgREST reference, errors", """
        auth        auth             300 301 302 303
        unavailable unavailable      000 001 002 003
        missing     missing_resource 116 200 202 204 205
        query       bad_request      100 101 102 103 106 108 118 201 203
        """, prefix="PGRST"),
    *_section("graph", "Meta Graph API, error codes", """
        rate        rate_limited 4 17 32 341 613
        auth        auth         102 190
        permission  permission   3 10 200
        unavailable unavailable  1 2
        arguments   bad_request  100
        """, prefix="GRAPH_"),
    *_section("jsonrpc", "JSON-RPC 2.0 section 5.1, Model Context Protocol", """
        limit     rate_limited !weak -32005
        method    bad_request !weak  -32601
        arguments bad_request !weak  -32602 -32600 -32700
        timeout   timeout !weak      -32001
        internal  server_error !weak -32603
        """),
)
# fmt: on
