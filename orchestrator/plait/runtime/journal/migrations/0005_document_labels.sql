ALTER TABLE plait.documents ADD COLUMN head bytea NOT NULL DEFAULT '', ADD COLUMN size bigint NOT NULL DEFAULT 0;
UPDATE plait.documents SET size = length(body);
CREATE INDEX ON plait.documents (kind, owner, at, id);
CREATE TABLE plait.labels (
    kind text NOT NULL, id text NOT NULL, name text NOT NULL, value text NOT NULL, PRIMARY KEY (kind, id, name)
);
