-- Results kept apart from the records, by id and receipt: `Config(result="postgresql://…")`.
CREATE TABLE {results} (
    until float8 NOT NULL,
    id text COLLATE "C" NOT NULL,
    receipt text COLLATE "C" NOT NULL,
    content_type text NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (id, receipt)
);
CREATE INDEX {-results_until} ON {results} (until);
