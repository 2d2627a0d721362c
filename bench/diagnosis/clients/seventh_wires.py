"""gRPC services, databases, brokers, machines, browsers and MCP servers of the seventh set.

Postgres, MariaDB, Redis, RabbitMQ and Mosquitto are real ones on loopback; where one does not run, its
cases are left out. The others are answered, or run, in this process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import textwrap
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stderr
from functools import cache
from pathlib import Path
from typing import Any

from bench.diagnosis.cases import (
    AUTH,
    BAD_DATA,
    BAD_QUERY,
    BAD_REQUEST,
    BUSY,
    CONFIG,
    CONNECTION,
    CONTENT_FILTER,
    CONTEXT,
    DB_OBJECT,
    DEPLOYMENT,
    DNS,
    FORBIDDEN,
    INTEGRITY,
    MISSING,
    MISUSE,
    MODEL,
    QUOTA,
    RATE,
    SERVER,
    TIMEOUT,
    TOOL_ARGS,
    TOOL_TIMEOUT,
    UNKNOWN,
    WRONG_METHOD,
    Absent,
    Case,
    Label,
    use,
)
from bench.diagnosis.servers import (
    HOST,
    NOWHERE,
    Reply,
    Talk,
    closed_port,
    hang_up,
    mute,
    web,
    wire,
)

from .tables import talked

_DENIED = FORBIDDEN._replace(causes=("permission", "auth"))
_TABLE = "triage_wires_books"
_Rows = Mapping[str, tuple[Callable[[], object], Label]]


def cases() -> Iterator[Case]:
    """All cases, by library."""
    for client, rows in (
        ("xai", _xai()),
        ("pymilvus", _milvus()),
        ("psycopg2", _psycopg2()),
        ("asyncmy", _asyncmy()),
        ("coredis", _coredis()),
        ("surrealdb", _surreal()),
        ("amqpstorm", _amqpstorm()),
        ("aiomqtt", _aiomqtt()),
        ("django", _django()),
        ("asyncua", _asyncua()),
        ("mcp-adapters", _mcp()),
        ("drission", _browser()),
    ):
        for name, (provoke, label) in rows.items():
            yield Case(f"{client}/{name}", provoke, label)
    yield from talked(
        "pymodbus", _modbus, {"mute": (mute, TIMEOUT), "closed": (hang_up, CONNECTION)}
    )
    yield Case("pymodbus/refused", lambda: _modbus(closed_port()), CONNECTION)


def _there(port: int) -> None:
    """Raises Absent where no real server listens."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError as error:
        raise Absent(f"a server on port {port}") from error


@contextmanager
def _grpc(answer: Callable[[Any, Any], Any], services: Callable[[Any], None] | None = None) -> Any:
    """A gRPC server whose every method, or whose services, `answer`; yields the port."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    grpc = use("grpc")

    class Any_(grpc.GenericRpcHandler):  # type: ignore[misc, name-defined]
        def service(self, _: object) -> object:
            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(2))
    if services is None:
        server.add_generic_rpc_handlers((Any_(),))
    else:
        services(server)
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def _xai_at(port: int, timeout: float = 5) -> object:
    client = use("xai_sdk").Client(
        api_key="x", api_host=f"localhost:{port}", timeout=timeout,
        channel_options=[("grpc.enable_retries", 0)],
    )  # fmt: skip
    chat = client.chat.create(model="grok-9")
    chat.append(use("xai_sdk.chat").user("hello"))
    return chat.sample()


def _xai() -> _Rows:
    def told(status: str, details: str, *trailers: tuple[str, str]) -> Callable[[], object]:
        def answer(_: object, context: Any) -> object:
            context.set_trailing_metadata(trailers)
            return context.abort(getattr(use("grpc").StatusCode, status), details)

        def provoke() -> object:
            with _grpc(answer) as port:
                return _xai_at(port)

        return provoke

    def late() -> object:
        with _grpc(lambda *_: use("time").sleep(2)) as port:
            return _xai_at(port, timeout=0.5)

    spent = "Your team has used all available credits or reached its monthly spending limit."
    return {
        "key": (told("UNAUTHENTICATED", "Incorrect API key provided: x."), AUTH),
        "credits": (told("RESOURCE_EXHAUSTED", spent), QUOTA),
        "rights": (
            told("PERMISSION_DENIED", "Your API key may not call this endpoint."),
            FORBIDDEN,
        ),
        "model": (told("NOT_FOUND", "The model grok-9 does not exist or is not yours."), MODEL),
        "long": (
            told(
                "INVALID_ARGUMENT",
                "This model's maximum prompt length is 131072 but the request contains 140210 tokens.",
            ),
            CONTEXT,
        ),
        "filter": (
            told(
                "PERMISSION_DENIED", "Content violates usage guidelines. Failed check: SAFETY_CHECK"
            ),
            CONTENT_FILTER,
        ),
        "rate": (told("RESOURCE_EXHAUSTED", "Too many requests for team 7"), RATE),
        "delay": (
            told("RESOURCE_EXHAUSTED", "Too many requests", ("retry-after", "6")),
            RATE.after(6),
        ),
        "pushback": (
            told("UNAVAILABLE", "Try again", ("grpc-retry-pushback-ms", "1500")),
            SERVER.after(1.5),
        ),
        "full": (told("UNAVAILABLE", "Service temporarily at capacity."), SERVER),
        "method": (told("UNIMPLEMENTED", "Method not found!"), WRONG_METHOD),
        "late": (late, TIMEOUT),
        "refused": (lambda: _xai_at(closed_port()), CONNECTION),
    }


def _milvus_at(port: int) -> object:
    client = use("pymilvus").MilvusClient(f"http://{HOST}:{port}", timeout=2)
    return client.drop_index("books", "by_title", timeout=2)


def _milvus() -> _Rows:
    def told(code: int, reason: str, *, retriable: bool = False) -> Callable[[], object]:
        def provoke() -> object:
            stubs = use("pymilvus.grpc_gen.milvus_pb2_grpc")
            common = use("pymilvus.grpc_gen.common_pb2")
            milvus = use("pymilvus.grpc_gen.milvus_pb2")
            status = common.Status(code=code, error_code=1, reason=reason, retriable=retriable)

            class Servicer(stubs.MilvusServiceServicer):  # type: ignore[misc, name-defined]
                def Connect(self, *_: object) -> object:  # noqa: N802
                    return milvus.ConnectResponse(identifier=7)

                def DropIndex(self, *_: object) -> object:  # noqa: N802
                    return status

            def services(server: object) -> None:
                stubs.add_MilvusServiceServicer_to_server(Servicer(), server)

            with _grpc(lambda *_: None, services) as port:
                return _milvus_at(port)

        return provoke

    missing = MISSING._replace(types=("hallucinated_state", "schema_mismatch"))
    return {
        "collection": (told(100, "collection not found[collection=books]"), missing),
        "index": (told(700, "index not found[indexName=by_title]"), missing),
        "login": (told(1400, "auth check failure, please check username"), AUTH),
        "rights": (told(65535, "PrivilegeDropIndex: permission deny to u"), _DENIED),
        "ready": (told(1, "service not ready[standalone=7]: Initializing", retriable=True), SERVER),
        "disk": (
            told(9, "quota exceeded[reason=disk quota exceeded, please allocate more resources]"),
            QUOTA._replace(causes=("quota_exhausted", "resource_exhausted")),
        ),
        "field": (told(1100, "invalid parameter[expected=IVF][actual=x]"), BAD_REQUEST),
        "refused": (lambda: _milvus_at(closed_port()), CONNECTION),
    }


def _psycopg2() -> _Rows:
    def connect(**more: object) -> Any:
        _there(5432)
        asked = {"host": HOST, "user": "postgres", "dbname": "postgres", "connect_timeout": 2}
        connection = use("psycopg2").connect(**asked | more)
        connection.autocommit = True
        return connection

    def query(*texts: str) -> Callable[[], object]:
        def provoke() -> object:
            connection = connect()
            try:
                with connection.cursor() as cursor:
                    cursor.execute(
                        "CREATE TEMP TABLE books (id int PRIMARY KEY, title varchar(4) NOT NULL)"
                    )
                    for text in texts:
                        cursor.execute(text)
                    return cursor.fetchall()
            finally:
                connection.close()

        return provoke

    def lock() -> object:
        with connect() as first, connect() as second:
            first.cursor().execute("SELECT pg_advisory_lock(777001)")
            with second.cursor() as cursor:
                cursor.execute("SET lock_timeout = 200; SELECT pg_advisory_lock(777001)")
        return None

    def killed() -> object:
        first, second = connect(), connect()
        with second.cursor() as cursor:
            cursor.execute(f"SELECT pg_terminate_backend({first.info.backend_pid})")
        with first.cursor() as cursor:
            cursor.execute("SELECT 1")
        return None

    def refused() -> object:
        return use("psycopg2").connect(host=HOST, port=closed_port(), user="u", connect_timeout=2)

    return {
        "database": (lambda: connect(dbname="triage_wires_no"), DB_OBJECT),
        "role": (lambda: connect(user="triage_wires_nobody"), AUTH),
        "table": (query("SELECT * FROM triage_wires_no"), DB_OBJECT),
        "column": (query("SELECT isbn FROM books"), DB_OBJECT),
        "syntax": (query("SELEC * FROM books"), BAD_QUERY),
        "unique": (query(*["INSERT INTO books VALUES (1, 'Moss')"] * 2), INTEGRITY),
        "null": (query("INSERT INTO books VALUES (1, NULL)"), INTEGRITY),
        "long": (query("INSERT INTO books VALUES (1, 'Mosses')"), BAD_DATA),
        "slow": (query("SET statement_timeout = 100; SELECT pg_sleep(3)"), TOOL_TIMEOUT),
        "readonly": (
            query("SET default_transaction_read_only = on", "CREATE TABLE triage_wires_a (b int)"),
            Label(("external_fault", "constraint_ignored"), (), passes=None),
        ),
        "zero": (query("SELECT 1 / 0"), Label(("schema_mismatch", "unknown"), ())),
        "rights": (query("SET ROLE pg_monitor", "SELECT * FROM pg_authid"), _DENIED),
        "nothing": (query("SET search_path = public"), MISUSE),
        "lock": (lock, BUSY),
        "killed": (killed, SERVER._replace(causes=("connection", *SERVER.causes))),
        "refused": (refused, CONNECTION),
        "name": (lambda: use("psycopg2").connect(host=NOWHERE, user="u"), DNS),
    }


def _asyncmy() -> _Rows:
    async def connect(**more: object) -> Any:
        _there(3306)
        asked = {"host": HOST, "port": 3306, "user": "root", "password": "", "autocommit": True}
        return await use("asyncmy").connect(**asked | more)

    def run(work: Callable[[Any], Awaitable[object]], **more: object) -> Callable[[], object]:
        async def done() -> object:
            connection = await connect(**more)
            try:
                async with connection.cursor() as cursor:
                    await cursor.execute("USE test")
                    await cursor.execute(
                        "CREATE TEMPORARY TABLE books (id int PRIMARY KEY, title varchar(4))"
                    )
                    return await work(cursor)
            finally:
                connection.close()

        return lambda: asyncio.run(done())

    def query(*texts: str) -> Callable[[], object]:
        async def work(cursor: Any) -> None:
            for text in texts:
                await cursor.execute(text)

        return run(work)

    async def lock() -> None:
        first, second = await connect(), await connect()
        async with first.cursor() as one, second.cursor() as two:
            name = f"test.{_TABLE}_{uuid.uuid4().hex[:8]}"
            await one.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) ENGINE=InnoDB")
            try:
                await one.execute(f"INSERT INTO {name} VALUES (1)")
                await one.execute("BEGIN")
                await one.execute(f"UPDATE {name} SET id = 2")
                await two.execute("SET innodb_lock_wait_timeout = 1")
                await two.execute(f"UPDATE {name} SET id = 3")
            finally:
                await one.execute("ROLLBACK")
                await one.execute(f"DROP TABLE {name}")

    return {
        "login": (run(None, user="triage_wires_nobody", password="p"), AUTH),  # type: ignore[arg-type]
        "database": (run(None, database="triage_wires_no"), DB_OBJECT),  # type: ignore[arg-type]
        "table": (query("SELECT * FROM triage_wires_no"), DB_OBJECT),
        "column": (query("SELECT isbn FROM books"), DB_OBJECT),
        "syntax": (query("SELEC * FROM books"), BAD_QUERY),
        "unique": (query(*["INSERT INTO books VALUES (1, 'a')"] * 2), INTEGRITY),
        "long": (query("INSERT INTO books VALUES (1, 'Mosses')"), BAD_DATA),
        "slow": (query("SET max_statement_time = 0.2", "SELECT SLEEP(3) FROM mysql.user"),
                 TOOL_TIMEOUT),
        "killed": (query("KILL CONNECTION_ID()", "SELECT 1"),
                   CONNECTION._replace(causes=("connection", "unavailable", "server_error"),
                                       passes=None)),
        "lock": (lambda: asyncio.run(lock()), BUSY),
        "refused": (
            lambda: asyncio.run(use("asyncmy").connect(host=HOST, port=closed_port(), user="u")),
            CONNECTION,
        ),
    }  # fmt: skip


def _coredis() -> _Rows:
    def run(work: Callable[[Any], Awaitable[object]], **more: Any) -> Callable[[], object]:
        async def done() -> object:
            if not more.get("port"):
                _there(6379)
            client = use("coredis").Redis(**{"host": HOST, "port": 6379} | more)
            async with client:
                return await work(client)

        return lambda: asyncio.run(done())

    async def kind(client: Any) -> object:
        key = f"{_TABLE}:{uuid.uuid4().hex}"
        await client.set(key, "moss", ex=9)
        return await client.lpush(key, ["fern"])

    async def number(client: Any) -> object:
        key = f"{_TABLE}:{uuid.uuid4().hex}"
        await client.set(key, "moss", ex=9)
        return await client.incr(key)

    async def script(client: Any) -> object:
        return await client.evalsha("0" * 40)

    async def group(client: Any) -> object:
        return await client.xreadgroup("g", "c", {f"{_TABLE}:no": ">"})

    async def command(client: Any) -> object:
        return await client.execute_command(
            use("coredis.commands.request").CommandRequest(
                client, b"NOSUCH", callback=lambda x, **_: x
            )
        )

    async def ping(client: Any) -> object:
        return await client.ping()

    return {
        "kind": (run(kind), Label(("schema_mismatch", "hallucinated_state"), ())),
        "number": (run(number), BAD_DATA),
        "script": (run(script), MISSING._replace(types=("hallucinated_state", "schema_mismatch"))),
        "group": (run(group), MISSING),
        "password": (run(ping, username="nobody", password="p"), AUTH),
        "refused": (run(ping, port=closed_port()), CONNECTION),
    }  # fmt: skip


def _surreal() -> _Rows:
    def query(*texts: str) -> Callable[[], object]:
        def provoke() -> object:
            with use("surrealdb").Surreal("mem://") as database:
                database.use("town", "shop")
                return [database.query(text) for text in texts]

        return provoke

    def answered(reply: Reply) -> Callable[[], object]:
        def provoke() -> object:
            with web(reply) as base:
                database = use("surrealdb").Surreal(base)
                return database.signin({"username": "u", "password": "p"})

        return provoke

    unique = "DEFINE INDEX i ON books FIELDS title UNIQUE; CREATE books SET title = 'Moss'"
    return {
        "syntax": (query("SELEC * FROM books"), BAD_QUERY),
        "exists": (query("CREATE books:1", "CREATE books:1"), INTEGRITY),
        "unique": (query(unique, "CREATE books SET title = 'Moss'"), INTEGRITY),
        "kind": (
            query(
                "DEFINE TABLE a SCHEMAFULL; DEFINE FIELD n ON a TYPE int", "CREATE a SET n = 'x'"
            ),
            BAD_DATA,
        ),
        "function": (query("RETURN fn::no_such()"), DB_OBJECT),
        "thrown": (query("THROW 'shelf is full'"), UNKNOWN),
        "login": (answered(Reply(401, "")), AUTH),
        "down": (answered(Reply(503, "")), SERVER),
    }


def _amqpstorm() -> _Rows:
    def connect(user: str = "guest", **more: object) -> Any:
        if not more.get("port"):
            _there(5672)
        return use("amqpstorm").Connection(HOST, user, "guest", timeout=2, **more)

    def on(work: Callable[[Any], object]) -> Callable[[], object]:
        def provoke() -> object:
            with connect() as connection, connection.channel() as channel:
                return work(channel)

        return provoke

    def twice(channel: Any) -> object:
        name = f"{_TABLE}_{uuid.uuid4().hex[:8]}"
        channel.queue.declare(name, auto_delete=True)
        return channel.queue.declare(name, auto_delete=True, arguments={"x-max-length": 7})

    def elsewhere(channel: Any) -> object:
        channel.confirm_deliveries()
        return channel.basic.publish("a", "no_such_queue", mandatory=True)

    def locked(_: Any) -> object:
        with connect() as other, other.channel() as theirs, connect() as ours:
            name = f"{_TABLE}_{uuid.uuid4().hex[:8]}"
            theirs.queue.declare(name, exclusive=True)
            with ours.channel() as channel:
                return channel.queue.declare(name, passive=True)

    return {
        "queue": (on(lambda channel: channel.queue.declare("no_such", passive=True)), MISSING),
        "exchange": (
            on(lambda channel: channel.exchange.declare("no_such", passive=True)), MISSING,
        ),
        "arguments": (
            on(twice),
            Label(("schema_mismatch", "constraint_ignored", "external_fault"), ()),
        ),
        "route": (on(elsewhere), MISSING._replace(types=("hallucinated_state", "external_fault"))),
        "locked": (on(locked), BUSY._replace(passes=None)),
        "reserved": (
            on(lambda channel: channel.exchange.delete("amq.direct")),
            _DENIED._replace(types=("external_fault", "constraint_ignored")),
        ),
        "login": (lambda: connect("triage_wires_nobody"), AUTH),
        "vhost": (
            lambda: connect(virtual_host="no_such"),
            MISSING._replace(types=("hallucinated_state", "external_fault"),
                             causes=(), passes=None),
        ),
        "refused": (lambda: connect(port=closed_port()), CONNECTION),
        "argument": (on(lambda channel: channel.queue.declare(7)), TOOL_ARGS),
    }  # fmt: skip


def _aiomqtt() -> _Rows:
    def dial(port: int, host: str = HOST) -> object:
        async def publish() -> None:
            async with use("aiomqtt").Client(host, port, timeout=1) as client:
                await client.publish("shop/books", "x", qos=1)

        return asyncio.run(publish())

    def with_talk(talk: Talk) -> Callable[[], object]:
        def provoke() -> object:
            with wire(talk) as port:
                return dial(port)

        return provoke

    def said(code: int) -> Talk:
        def talk(connection: socket.socket) -> None:
            connection.recv(65536)
            connection.sendall(bytes((0x20, 2, 0, code)))
            connection.recv(65536)

        return talk

    def topic() -> object:
        async def publish() -> None:
            _there(1883)
            async with use("aiomqtt").Client(HOST, 1883, timeout=2) as client:
                await client.publish("shop/#", "x")

        return asyncio.run(publish())

    return {
        "login": (with_talk(said(4)), AUTH),
        "rights": (with_talk(said(5)), _DENIED),
        "down": (with_talk(said(3)), SERVER),
        "mute": (with_talk(mute), TIMEOUT),
        "refused": (lambda: dial(closed_port()), CONNECTION),
        "name": (lambda: dial(1883, NOWHERE), DNS),
        "topic": (topic, Label(("schema_mismatch", "unknown"), ())),
    }


@cache
def _books() -> Any:
    """A model of Django in SQLite, in memory."""
    settings = use("django.conf").settings
    names = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    settings.configure(DATABASES={"default": names}, INSTALLED_APPS=[], USE_TZ=True)
    use("django").setup()
    models = use("django.db.models")

    class Book(models.Model):  # type: ignore[misc, name-defined]
        title = models.CharField(max_length=4, unique=True)
        pages = models.IntegerField(default=1)

        class Meta:
            app_label = "shop"

    with use("django.db").connection.schema_editor() as editor:
        editor.create_model(Book)
    for title in ("Moss", "Fern"):
        Book.objects.create(title=title)
    return Book


def _django() -> _Rows:
    def on(work: Callable[[Any], object]) -> Callable[[], object]:
        return lambda: work(_books())

    def raw(_: Any) -> object:
        return use("django.db").connection.cursor().execute("SELECT * FROM shop_authors")

    def backend(_: Any) -> object:
        return use("django.db").connections["replica"].cursor()

    def letter(_: Any) -> object:
        port = closed_port()
        sent = use("django.core.mail.backends.smtp").EmailBackend(host=HOST, port=port, timeout=1)
        message = use("django.core.mail").EmailMessage(
            "s", "b", "a@b.c", ["d@e.f"], connection=sent
        )
        return message.send()

    return {
        "row": (on(lambda book: book.objects.get(title="Ivy")), MISSING),
        "rows": (
            on(lambda book: book.objects.get(pages=1)),
            Label(("hallucinated_state", "schema_mismatch"), ()),
        ),
        "unique": (on(lambda book: book.objects.create(title="Moss")), INTEGRITY),
        "field": (on(lambda book: book.objects.filter(isbn=7)), DB_OBJECT),
        "valid": (on(lambda book: book(title="Mosses").full_clean()), INTEGRITY),
        "number": (
            on(lambda book: book.objects.filter(pages="many")),
            Label(("schema_mismatch", "unknown"), ()),
        ),
        "table": (on(raw), DB_OBJECT),
        "alias": (on(backend), CONFIG._replace(causes=("missing_config", "auth", "not_found"))),
        "mail": (on(letter), CONNECTION),
    }


def _modbus(port: int) -> object:
    client = use("pymodbus.client").ModbusTcpClient(HOST, port=port, timeout=1, retries=0)
    try:
        client.connect()
        return client.read_holding_registers(1, count=2)
    finally:
        client.close()


def _asyncua() -> _Rows:
    def run(work: Callable[[Any, Any], Awaitable[object]]) -> Callable[[], object]:
        async def done() -> object:
            module = use("asyncua")
            server = module.Server()
            await server.init()
            server.set_endpoint(f"opc.tcp://{HOST}:{closed_port()}/plant")
            space = await server.register_namespace("plant")
            valve = await server.nodes.objects.add_variable(space, "valve", 7)
            async with server, module.Client(server.endpoint.geturl(), timeout=2) as client:
                return await work(client, client.get_node(valve.nodeid))

        return lambda: asyncio.run(done())

    async def node(client: Any, _: Any) -> object:
        return await client.get_node("ns=2;i=99999").read_value()

    async def write(_: Any, valve: Any) -> object:
        return await valve.write_value(9)

    async def child(client: Any, _: Any) -> object:
        return await client.nodes.objects.get_child(["2:pump"])

    async def parse(client: Any, _: Any) -> object:
        return await client.get_node("ns=2;valve").read_value()

    async def method(client: Any, _: Any) -> object:
        return await client.nodes.objects.call_method("2:open", 1)

    def dial(port: int) -> object:
        async def connect() -> None:
            async with use("asyncua").Client(f"opc.tcp://{HOST}:{port}/plant", timeout=1):
                pass

        return asyncio.run(connect())

    def silent() -> object:
        with wire(mute) as port:
            return dial(port)

    return {
        "node": (run(node), MISSING),
        "rights": (run(write), _DENIED._replace(types=("external_fault", "constraint_ignored"))),
        "child": (run(child), MISSING),
        "id": (run(parse), BAD_DATA._replace(types=("schema_mismatch", "unknown"))),
        "method": (
            run(method),
            MISSING._replace(types=("hallucinated_state", "wrong_tool_called"), causes=()),
        ),
        "refused": (lambda: dial(closed_port()), CONNECTION),
        "mute": (silent, TIMEOUT),
    }


_TOOLS = """
from mcp.server.fastmcp import FastMCP

server = FastMCP("shop", log_level="CRITICAL")

@server.tool()
def price(book: str, copies: int) -> int:
    raise {error}

server.run()
"""


def _mcp() -> _Rows:
    def client(**connection: object) -> Any:
        with redirect_stderr(sys.__stderr__):
            use("mcp.client.stdio")  # keeps the stderr it is imported with for its servers
        module = use("langchain_mcp_adapters.client")
        return module.MultiServerMCPClient({"shop": connection}, handle_tool_errors=False)

    def program(error: str, given: Mapping[str, object]) -> Callable[[], object]:
        async def call(path: Path) -> object:
            asked = client(transport="stdio", command=sys.executable, args=[str(path)])
            tools = await asked.get_tools()
            return await tools[0].ainvoke(given)

        def provoke() -> object:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "shop.py")
                path.write_text(textwrap.dedent(_TOOLS.format(error=error)), encoding="utf-8")
                return asyncio.run(call(path))

        return provoke

    def absent() -> object:
        return asyncio.run(client(transport="stdio", command="no-such-server", args=[]).get_tools())

    def over_http(base: str) -> object:
        return asyncio.run(client(transport="streamable_http", url=f"{base}/mcp").get_tools())

    def answered(reply: Reply) -> Callable[[], object]:
        def provoke() -> object:
            with web(reply) as base:
                return over_http(base)

        return provoke

    fit = {"book": "Moss", "copies": 2}
    return {
        "upstream": (
            program("RuntimeError('HTTP 503: upstream catalogue is unavailable')", fit),
            SERVER,
        ),
        "rate": (
            program("RuntimeError('429 Too Many Requests, retry after 20 seconds')", fit),
            RATE.after(20),
        ),
        "key": (program("PermissionError('401 Unauthorized: invalid API key')", fit), AUTH),
        "own": (program("ValueError('no price for a book of 0 pages')", fit),
                UNKNOWN._replace(types=("unknown", "schema_mismatch", "hallucinated_state"))),
        "arguments": (program("ValueError()", {"book": "Moss", "copies": "many"}), TOOL_ARGS),
        "program": (absent, DEPLOYMENT),
        "token": (answered(Reply(401, "")), AUTH),
        "down": (answered(Reply(503, "")), SERVER),
        "refused": (lambda: over_http(f"http://{HOST}:{closed_port()}"), CONNECTION),
    }  # fmt: skip


_HTML = "<html><body><button id=a disabled>Buy</button><p hidden id=b>x</p></body></html>"


def _browser() -> _Rows:
    def on(work: Callable[[Any, str], object]) -> Callable[[], object]:
        def provoke() -> object:
            if not Path("/usr/bin/chromium").exists():
                raise Absent("chromium")
            module = use("DrissionPage")
            with ExitStack() as stack:
                folder = stack.enter_context(
                    tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
                )
                options = module.ChromiumOptions(read_file=False).headless()
                options.set_browser_path("/usr/bin/chromium").set_user_data_path(folder)
                options.set_local_port(closed_port()).set_retry(0, 0).set_timeouts(1, 2, 1)
                for argument in (
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-background-networking",
                    "--no-first-run",
                    "--disable-component-update",
                ):
                    options.set_argument(argument)
                page = module.ChromiumPage(options)
                stack.callback(page.quit)
                base = stack.enter_context(web(Reply(200, _HTML)))
                page.get(base)
                return work(page, base)

        return provoke

    def gone(page: Any, base: str) -> object:
        button = page.ele("#a")
        page.get(f"{base}/next")
        return button.click()

    missing = MISSING._replace(causes=())
    return {
        "element": (on(lambda page, _: page.ele("#buy").click()), missing),
        "hidden": (
            on(lambda page, _: page.ele("#b").click.at(1, 1)),
            Label(("hallucinated_state", "external_fault", "schema_mismatch"), (), passes=None),
        ),
        "script": (
            on(lambda page, _: page.run_js("return nothing.here")),
            Label(("schema_mismatch", "unknown"), (), passes=None),
        ),
        "stale": (on(gone), missing._replace(passes=None)),
        "refused": (
            on(lambda page, _: page.get(f"http://{HOST}:{closed_port()}", show_errmsg=True)),
            CONNECTION,
        ),
    }
