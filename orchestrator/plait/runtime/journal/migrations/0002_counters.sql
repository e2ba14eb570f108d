CREATE TABLE plait.counters (
    name text NOT NULL, span bigint NOT NULL, place int NOT NULL, n double precision NOT NULL,
    PRIMARY KEY (name, span, place)
);
