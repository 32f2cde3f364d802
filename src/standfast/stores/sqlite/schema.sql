-- With row ids, so that the tree of keys holds keys alone: without them, finding a small record beside large ones
-- would read the large ones on the way.
CREATE TABLE records (
    key BLOB NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    expires_at INTEGER,
    value BLOB NOT NULL
);

CREATE INDEX records_that_expire ON records (expires_at) WHERE expires_at IS NOT NULL;

-- One small table, so that what every commit touches shares a page: the row '' holds the last version and the
-- last store time, the others the last attempt of each handle.
CREATE TABLE counters (
    handle TEXT NOT NULL PRIMARY KEY,
    count INTEGER NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;

INSERT INTO counters VALUES ('', 0, 0);

CREATE TABLE facts (
    name TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
