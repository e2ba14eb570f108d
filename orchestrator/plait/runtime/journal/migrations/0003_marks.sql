ALTER TABLE plait.events ADD COLUMN actions bytea;
CREATE INDEX ON plait.events (journal, run);
CREATE TABLE plait.marks (
    journal bigint NOT NULL, run text NOT NULL, seq bigint NOT NULL, PRIMARY KEY (journal, run, seq)
);
