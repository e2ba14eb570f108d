CREATE TABLE plait.holdings (
    name text NOT NULL, place int NOT NULL, holder text NOT NULL, process text NOT NULL REFERENCES plait.processes,
    n double precision NOT NULL, PRIMARY KEY (name, place, holder)
);
