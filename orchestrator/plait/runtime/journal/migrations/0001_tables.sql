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
