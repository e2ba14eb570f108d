"""The tables of a store in PostgreSQL, as the steps that lead there: each is done once, in order, and never changed."""

from __future__ import annotations

__all__ = ["MIGRATIONS"]

MIGRATIONS = (
    """
CREATE TABLE plait.processes (
    id text PRIMARY KEY, host text NOT NULL, pid int NOT NULL, began timestamptz NOT NULL DEFAULT now(),
    beat timestamptz NOT NULL DEFAULT now(), lease interval NOT NULL, over boolean NOT NULL DEFAULT false
);
CREATE TABLE plait.journals (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, process text REFERENCES plait.processes, pool text NOT NULL,
    parent bigint REFERENCES plait.journals, base bigint, created timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON plait.journals (process);
CREATE INDEX ON plait.journals (parent);
CREATE TABLE plait.sessions (
    journal bigint NOT NULL, first bigint NOT NULL, header bytea NOT NULL, PRIMARY KEY (journal, first)
);
CREATE TABLE plait.events (
    journal bigint NOT NULL, seq bigint NOT NULL, at double precision NOT NULL, run text, kind text NOT NULL,
    event bytea NOT NULL, PRIMARY KEY (journal, seq)
);
CREATE TABLE plait.actions (
    journal bigint NOT NULL, seq bigint NOT NULL, actions bytea NOT NULL, PRIMARY KEY (journal, seq)
);
CREATE TABLE plait.notes (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run text NOT NULL, step text NOT NULL, attempt bigint,
    kind text NOT NULL, note bytea NOT NULL
);
CREATE INDEX ON plait.notes (run);
CREATE TABLE plait.runs (
    number bigint GENERATED ALWAYS AS IDENTITY UNIQUE, run text PRIMARY KEY, journal bigint NOT NULL,
    first bigint NOT NULL, created text NOT NULL, text text NOT NULL, planner text NOT NULL, share text NOT NULL,
    status text, tokens bigint NOT NULL DEFAULT 0, ended text
);
CREATE INDEX ON plait.runs (journal);
CREATE INDEX ON plait.runs (number) WHERE status IS NULL;
CREATE TABLE plait.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run text NOT NULL, verb text NOT NULL, about text NOT NULL,
    value text NOT NULL, at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON plait.orders (run);
CREATE TABLE plait.documents (
    kind text NOT NULL, id text NOT NULL, owner text NOT NULL, at timestamptz NOT NULL DEFAULT now(),
    body bytea NOT NULL, PRIMARY KEY (kind, id)
);
CREATE INDEX ON plait.documents (kind, at);
CREATE TABLE plait.pieces (
    kind text NOT NULL, id text NOT NULL, place bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (kind, id, place)
);
CREATE FUNCTION plait.fence(process text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM plait.processes p WHERE p.id = process AND NOT p.over FOR SHARE;
    IF NOT FOUND THEN RAISE EXCEPTION 'the process is over'; END IF;
END $$;
""",
    """
CREATE TABLE plait.counters (
    name text NOT NULL, span bigint NOT NULL, place int NOT NULL, n double precision NOT NULL,
    PRIMARY KEY (name, span, place)
);
""",
    """
ALTER TABLE plait.events ADD COLUMN actions bytea;
CREATE INDEX ON plait.events (journal, run);
CREATE TABLE plait.marks (
    journal bigint NOT NULL, run text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (journal, run, seq)
);
""",
    """
ALTER TABLE plait.processes ADD COLUMN pool text NOT NULL DEFAULT '', ADD COLUMN wants int NOT NULL DEFAULT 0;
""",
    """
ALTER TABLE plait.documents ADD COLUMN head bytea NOT NULL DEFAULT '', ADD COLUMN size bigint NOT NULL DEFAULT 0;
UPDATE plait.documents SET size = length(body);
CREATE INDEX ON plait.documents (kind, owner, at, id);
CREATE TABLE plait.labels (
    kind text NOT NULL, id text NOT NULL, name text NOT NULL, value text NOT NULL, PRIMARY KEY (kind, id, name)
);
""",
)
"""Format of each: what psycopg runs as one script."""
