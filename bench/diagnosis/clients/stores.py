"""Clients of databases and brokers, and the forms data must have."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.diagnosis.cases import (
    AUTH,
    BAD_DATA,
    BAD_QUERY,
    BUSY,
    CONFLICT,
    CONNECTION,
    DB_OBJECT,
    DEPLOYMENT,
    DISK_FULL,
    DNS,
    FORBIDDEN,
    INTEGRITY,
    MISSING,
    MISUSE,
    SERVER,
    TIMEOUT,
    TOO_LARGE,
    UNKNOWN_TOOL,
    Case,
    Label,
    use,
)
from bench.diagnosis.servers import (
    HOST,
    NOWHERE,
    Talk,
    closed_port,
    hang_up,
    lines,
    mute,
    reset,
    wire,
)

from .tables import talked


def cases() -> Iterator[Case]:
    """All cases of these clients."""
    yield from _sqlalchemy()
    yield from _pymysql()
    yield from _redis()
    yield from _kafka()
    yield from _nats()
    yield from _amqp()
    yield from _mqtt()


def _sqlalchemy() -> Iterator[Case]:
    def run(*statements: str) -> object:
        sql = use("sqlalchemy")
        with sql.create_engine("sqlite://").connect() as connection:
            for statement in statements:
                result = connection.execute(sql.text(statement))
            return result.scalar_one()

    seats = "create table seats (no text primary key, row int not null check (row < 40))"

    def locked() -> object:
        sql = use("sqlalchemy")
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/a.db"
            one = sql.create_engine(url).connect()
            one.exec_driver_sql("begin exclusive")
            other = sql.create_engine(url, connect_args={"timeout": 0.1}).connect()
            try:
                return other.exec_driver_sql("create table t (a)")
            finally:
                one.close()

    def read_only() -> object:
        sql = use("sqlalchemy")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.db").touch()
            engine = sql.create_engine(f"sqlite:///file:{folder}/a.db?mode=ro&uri=true")
            return engine.connect().exec_driver_sql("create table t (a)")

    def pool() -> object:
        sql = use("sqlalchemy")
        kept = sql.create_engine(
            "sqlite://", poolclass=sql.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.1
        )
        taken = kept.connect()
        try:
            return kept.connect()
        finally:
            taken.close()

    def stale() -> object:
        sql, orm = use("sqlalchemy"), use("sqlalchemy.orm")
        base = orm.declarative_base()
        columns = {"__tablename__": "seats", "no": sql.Column(sql.Integer, primary_key=True),
                   "version": sql.Column(sql.Integer)}  # fmt: skip
        columns["__mapper_args__"] = {"version_id_col": columns["version"]}
        seat = type("Seat", (base,), columns)
        engine = sql.create_engine("sqlite://", poolclass=sql.StaticPool)
        base.metadata.create_all(engine)
        with orm.Session(engine) as session:
            one = seat(no=1)
            session.add(one)
            session.commit()
            assert one.version == 1
            session.execute(sql.text("update seats set version = 9"))
            one.no = 2
            return session.commit()

    def full() -> object:
        return run(
            "pragma max_page_count = 3", "create table t (a)",
            "insert into t values (zeroblob(90000))", "select 1",
        )  # fmt: skip

    rows: dict[str, tuple[Callable[[], object], Label]] = {
        "table": (lambda: run("select * from flights"), DB_OBJECT),
        "column": (lambda: run(seats, "select colour from seats"), DB_OBJECT),
        "syntax": (lambda: run("selec 1"), BAD_QUERY),
        "twice": (lambda: run(seats, *["insert into seats values ('1A', 1)"] * 2), INTEGRITY),
        "check": (lambda: run(seats, "insert into seats values ('1A', 77)"), INTEGRITY),
        "null": (lambda: run(seats, "insert into seats values ('1A', null)"), INTEGRITY),
        "no row": (
            lambda: run(seats, "select no from seats"),
            Label(("hallucinated_state", "unknown", "schema_mismatch")),
        ),
        "locked": (locked, BUSY),
        "read-only": (
            read_only,
            FORBIDDEN._replace(causes=("permission", "missing_config", "resource_exhausted")),
        ),
        "pool": (pool, BUSY._replace(causes=("timeout", "resource_exhausted", "unavailable"))),
        "version": (stale, CONFLICT),
        "full": (full, DISK_FULL),
        "dialect": (lambda: use("sqlalchemy").create_engine("sybase://h/d"), DEPLOYMENT),
        "driver": (lambda: use("sqlalchemy").create_engine("oracle://h/d"), DEPLOYMENT),
        "address": (
            lambda: use("sqlalchemy").create_engine("no address"),
            Label(("unknown", "external_fault", "schema_mismatch")),
        ),
    }
    for name, (provoke, label) in rows.items():
        yield Case(f"sqlalchemy/{name}", provoke, label)


def _mysql_packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def _mysql_error(code: int, state: str, message: str) -> bytes:
    return b"\xff" + code.to_bytes(2, "little") + f"#{state}{message}".encode()


def _mysql(refusal: bytes | None, *, at_login: bool = False) -> Talk:
    """A MySQL server that refuses the login or the query; None hangs up instead of an answer."""
    greeting = (
        b"\x0a8.0.36\x00" + b"\x01\x00\x00\x00" + b"12345678\x00" + b"\xff\xf7" + b"\x21"
        + b"\x02\x00" + b"\xff\x81" + b"\x15" + b"\x00" * 10 + b"123456789012\x00"
        + b"mysql_native_password\x00"
    )  # fmt: skip
    fine = b"\x00\x00\x00\x02\x00\x00\x00"

    def talk(connection: socket.socket) -> None:
        connection.sendall(_mysql_packet(0, greeting))
        connection.recv(65536)
        connection.sendall(_mysql_packet(2, refusal if at_login and refusal else fine))
        while asked := connection.recv(65536):
            if b"seats" not in asked:
                connection.sendall(_mysql_packet(1, fine))
            elif refusal is None:
                return
            else:
                connection.sendall(_mysql_packet(1, refusal))

    return talk


def _pymysql() -> Iterator[Case]:
    def dial(port: int, **more: Any) -> object:
        connection = use("pymysql").connect(
            host=HOST, port=port, user="u", password="p", database="d", connect_timeout=1,
            read_timeout=1, **more,
        )  # fmt: skip
        with connection.cursor() as cursor:
            return cursor.execute("select no from seats")

    denied = "Access denied for user 'u'@'localhost' (using password: YES)"
    command = "SELECT command denied to user 'u'@'localhost' for table 'seats'"
    deadlock = "Deadlock found when trying to get lock; try restarting transaction"
    parse = "You have an error in your SQL syntax; check the manual near 'seats'"

    def query(code: int, state: str, message: str) -> Talk:
        return _mysql(_mysql_error(code, state, message))

    yield from talked(
        "pymysql",
        dial,
        {
            "login": (_mysql(_mysql_error(1045, "28000", denied), at_login=True), AUTH),
            "database": (
                _mysql(_mysql_error(1049, "42000", "Unknown database 'd'"), at_login=True),
                Label(("hallucinated_state", "external_fault", "schema_mismatch"))),
            "connections": (
                _mysql(_mysql_error(1040, "08004", "Too many connections"), at_login=True),
                SERVER._replace(causes=("overloaded", "unavailable", "resource_exhausted",
                                        "rate_limited", "server_error", "connection"))),
            "denied": (query(1142, "42000", command), FORBIDDEN),
            "table": (query(1146, "42S02", "Table 'd.seats' doesn't exist"), DB_OBJECT),
            "column": (query(1054, "42S22", "Unknown column 'no' in 'field list'"), DB_OBJECT),
            "syntax": (query(1064, "42000", parse), BAD_QUERY),
            "deadlock": (query(1213, "40001", deadlock), CONFLICT),
            "lock wait": (query(1205, "HY000", "Lock wait timeout exceeded"),
                          BUSY._replace(causes=("timeout", "deadlock", "conflict"))),
            "duplicate": (query(1062, "23000", "Duplicate entry '1A' for key 'PRIMARY'"), INTEGRITY),
            "long": (query(1406, "22001", "Data too long for column 'no' at row 1"), BAD_DATA),
            "cut off": (_mysql(None), CONNECTION),
            "mute": (mute, TIMEOUT._replace(causes=("timeout", "connection"))),
        },
    )  # fmt: skip
    yield Case("pymysql/refused", lambda: dial(closed_port()), CONNECTION)
    yield Case(
        "pymysql/name",
        lambda: use("pymysql").connect(host=NOWHERE, connect_timeout=2),
        DNS._replace(causes=("dns", "connection")),
    )


def _redis_server(answer: bytes) -> Talk:
    """A Redis server that gives every command of the user's the same answer."""

    def talk(connection: socket.socket) -> None:
        while asked := connection.recv(65536):
            for word in asked.upper().split(b"\r\n*"):
                own = b"CLIENT" in word or b"HELLO" in word
                connection.sendall(b"+OK\r\n" if own else answer)

    return talk


def _redis() -> Iterator[Case]:
    def dial(port: int, *command: str) -> object:
        redis = use("redis")
        retry = use("redis.retry").Retry(use("redis.backoff").NoBackoff(), 0)
        client = redis.Redis(host=HOST, port=port, socket_timeout=0.5, retry=retry, protocol=2)
        return client.execute_command(*(command or ("GET", "seat:14C")))

    def error(text: str) -> Talk:
        return _redis_server(f"-{text}\r\n".encode())

    noscript = "NOSCRIPT No matching script. Please use EVAL."
    yield from talked(
        "redis",
        dial,
        {
            "login": (error("NOAUTH Authentication required."), AUTH),
            "password": (error("WRONGPASS invalid username-password pair or user is disabled."), AUTH),
            "command denied": (error("NOPERM this user has no permissions to run 'get'"), FORBIDDEN),
            "loading": (error("LOADING Redis is loading the dataset in memory"), SERVER),
            "memory": (error("OOM command not allowed when used memory > 'maxmemory'."),
                       DISK_FULL._replace(passes=None)),
            "replica": (error("READONLY You can't write against a read only replica."),
                        SERVER._replace(passes=None, causes=())),
            "type": (error("WRONGTYPE Operation against a key holding the wrong kind of value"),
                     Label(("schema_mismatch", "hallucinated_state"))),
            "command": (error("ERR unknown command 'GETT', with args beginning with: 'seat'"),
                        UNKNOWN_TOOL._replace(
                            types=("wrong_tool_called", "schema_mismatch", "unknown"), causes=())),
            "arguments": (error("ERR wrong number of arguments for 'get' command"),
                          Label(("schema_mismatch", "unknown"))),
            "busy script": (error("BUSY Redis is busy running a script."), BUSY),
            "script": (error(noscript), MISSING._replace(
                types=("hallucinated_state", "external_fault", "schema_mismatch"), causes=())),
            "cluster": (error("CLUSTERDOWN The cluster is down"), SERVER),
            "hang-up": (hang_up, CONNECTION),
            "reset": (reset, CONNECTION),
            "mute": (mute, TIMEOUT),
            "other protocol": (_redis_server(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
                               Label(("external_fault", "schema_mismatch"), (), None)),
        },
    )  # fmt: skip
    yield Case("redis/refused", lambda: dial(closed_port()), CONNECTION)
    yield Case("redis/name", lambda: use("redis").Redis(host=NOWHERE).ping(), DNS)

    def lock() -> object:
        with wire(_redis_server(b"$-1\r\n")) as port:
            client = use("redis").Redis(host=HOST, port=port, protocol=2)
            return client.lock("seat", blocking_timeout=0.1).__enter__()

    yield Case("redis/lock", lock, BUSY)


def _kafka() -> Iterator[Case]:
    async def refused() -> object:
        producer = use("aiokafka").AIOKafkaProducer(
            bootstrap_servers=f"{HOST}:{closed_port()}", request_timeout_ms=1000
        )
        try:
            return await producer.start()
        finally:
            await producer.stop()

    yield Case("aiokafka/refused", lambda: asyncio.run(refused()), CONNECTION)

    def raising(name: str, *args: Any) -> Callable[[], object]:
        def provoke() -> object:
            raise getattr(use("aiokafka.errors"), name)(*args)

        return provoke

    # The broker's own errors, as the client makes them of a response's code.
    for name, kind, label in (
        ("topic", "UnknownTopicOrPartitionError",
         MISSING._replace(types=("hallucinated_state", "external_fault"), passes=None)),
        ("denied", "TopicAuthorizationFailedError", FORBIDDEN),
        ("size", "MessageSizeTooLargeError", TOO_LARGE),
        ("leader", "NotLeaderForPartitionError", SERVER._replace(causes=())),
        ("coordinator", "GroupCoordinatorNotAvailableError", SERVER),
        ("clock", "RequestTimedOutError", TIMEOUT),
        ("login", "SaslAuthenticationFailed", AUTH),
        ("group", "RebalanceInProgressError", BUSY),
    ):  # fmt: skip
        yield Case(f"aiokafka/{name}", raising(kind), label)


def _nats() -> Iterator[Case]:
    info = b'INFO {"server_id":"a","version":"2.10.0","max_payload":64,"headers":true}\r\n'

    def server(answer: bytes) -> Talk:
        """Pongs until something is published, then gives the answer."""

        def talk(connection: socket.socket) -> None:
            connection.sendall(info)
            while asked := connection.recv(65536):
                if b"PING" in asked:
                    connection.sendall(b"PONG\r\n")
                if b"PUB" in asked:
                    inbox = asked.split(b"PUB ")[1].split()[1]
                    connection.sendall(answer.replace(b"INBOX", inbox))

        return talk

    def refusing(text: str) -> Talk:
        def talk(connection: socket.socket) -> None:
            connection.sendall(info)
            connection.recv(65536)
            connection.sendall(f"-ERR '{text}'\r\n".encode())
            with suppress(OSError):
                connection.recv(65536)

        return talk

    async def ask(port: int, payload: bytes = b"14C") -> object:
        async def quiet(_: Exception) -> None:
            pass

        client = await use("nats").connect(
            f"nats://{HOST}:{port}", allow_reconnect=False, connect_timeout=1, error_cb=quiet,
            max_reconnect_attempts=0,
        )  # fmt: skip
        try:
            return await client.request("seats.hold", payload, timeout=0.4)
        finally:
            await client.close()

    def dial(port: int) -> object:
        return asyncio.run(ask(port))

    nobody = b"HMSG INBOX 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    yield from talked(
        "nats-py",
        dial,
        {
            "login": (refusing("Authorization Violation"), AUTH),
            "nobody listens": (server(nobody), SERVER._replace(causes=(), passes=None)),
            "no answer": (server(b""), TIMEOUT),
        },
    )

    def large() -> object:
        with wire(server(b"")) as port:
            return asyncio.run(ask(port, b"x" * 100))

    yield Case("nats-py/size", large, TOO_LARGE)


def _amqp() -> Iterator[Case]:
    async def connect(port: int, host: str = HOST) -> object:
        return await use("aio_pika").connect(f"amqp://a:b@{host}:{port}/", timeout=1)

    yield Case("aio-pika/refused", lambda: asyncio.run(connect(closed_port())), CONNECTION)
    yield Case(
        "aio-pika/name",
        lambda: asyncio.run(connect(5672, NOWHERE)),
        DNS._replace(causes=("dns", "connection")),
    )
    yield from talked(
        "aio-pika",
        lambda port: asyncio.run(connect(port)),
        {
            "mute": (mute, TIMEOUT),
            "hang-up": (hang_up, CONNECTION),
            "other version": (
                lines(b"AMQP\x00\x00\x08\x00"),
                Label(("external_fault", "schema_mismatch"), (), None)),
        },
    )  # fmt: skip

    def closing(name: str, *args: Any) -> Callable[[], object]:
        def provoke() -> object:
            raise getattr(use("aiormq.exceptions"), name)(*args)

        return provoke

    # What the client raises of a channel that the broker closes.
    access = "ACCESS_REFUSED - access to queue 'seats' in vhost '/' refused for user 'a'"
    login = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."
    for name, kind, text, label in (
        ("queue", "ChannelNotFoundEntity", "NOT_FOUND - no queue 'seats' in vhost '/'", MISSING),
        ("denied", "ChannelAccessRefused", access, FORBIDDEN),
        ("locked", "ChannelLockedResource", "RESOURCE_LOCKED - cannot obtain exclusive access", BUSY),
        ("arguments", "ChannelPreconditionFailed", "PRECONDITION_FAILED - inequivalent arg 'durable'",
         Label(("schema_mismatch", "external_fault", "hallucinated_state"), ())),
        ("login", "ProbableAuthenticationError", login, AUTH),
    ):  # fmt: skip
        yield Case(f"aio-pika/{name}", closing(kind, text), label)


def _mqtt() -> Iterator[Case]:
    def client() -> Any:
        mqtt = use("paho.mqtt.client")
        return mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)

    yield Case("paho-mqtt/refused", lambda: client().connect(HOST, closed_port()), CONNECTION)
    yield Case("paho-mqtt/name", lambda: client().connect(NOWHERE), DNS)
    yield Case(
        "paho-mqtt/topic",
        lambda: client().publish("lamps/#", "on"),
        MISUSE,
    )

    def unsent() -> object:
        return client().publish("lamps/1", "on").wait_for_publish()

    yield Case("paho-mqtt/not connected", unsent,
               Label(("unknown", "external_fault"), (), None))  # fmt: skip
