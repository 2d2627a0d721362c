-- The shop of the demonstration: what was ordered, and what was charged for it.
CREATE TABLE orders (
    order_id     INTEGER PRIMARY KEY,
    customer     TEXT    NOT NULL,
    city         TEXT    NOT NULL,
    budget_cents INTEGER NOT NULL CHECK (budget_cents > 0)
);
CREATE TABLE charges (
    charge_id       INTEGER PRIMARY KEY,
    order_id        INTEGER NOT NULL REFERENCES orders (order_id),
    cents           INTEGER NOT NULL CHECK (cents > 0),
    idempotency_key TEXT    NOT NULL UNIQUE
);
INSERT INTO orders VALUES (1001, 'Ada Byron',      'Lisbon', 20000);
INSERT INTO orders VALUES (1002, 'Grace Murray',   'Rome',   20000);
INSERT INTO orders VALUES (1003, 'Emmy Noether',   'Geneva', 20000);
INSERT INTO orders VALUES (1004, 'Sofia Krukovsky', 'Zurich', 20000);
