-- The records, and one function that writes what a whole batch comes to.
-- "@schema@" stands for the schema, quoted. Every name is qualified: nothing depends on a search_path.

CREATE TABLE @schema@.records (
    key bytea PRIMARY KEY,  -- bytea sorts by its bytes, whatever the locale of the database
    value bytea NOT NULL,
    version bigint NOT NULL,
    expires_at bigint  -- microseconds; absent from then on
) WITH (fillfactor = 80);

ALTER TABLE @schema@.records ALTER COLUMN key SET STORAGE PLAIN;

CREATE INDEX records_that_expire ON @schema@.records (expires_at) WHERE expires_at IS NOT NULL;

-- One for all keys: so a version grows for a key whatever became of it. Below 2^53, to stay exact in JSON.
CREATE SEQUENCE @schema@.versions AS bigint MAXVALUE 9007199254740991 NO CYCLE CACHE 1;

-- The last attempt of each handle, and what it wrote; nothing if it was closed before it could.
CREATE TABLE @schema@.attempts (
    handle text PRIMARY KEY,
    number bigint NOT NULL,
    at bigint,
    versions bigint[],
    touched_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Who listens to what.
CREATE TABLE @schema@.topics (
    topic bytea NOT NULL,
    handle text NOT NULL,
    expires_at bigint NOT NULL,
    PRIMARY KEY (topic, handle)
);

-- Grows when the list of topics has changed, after that is committed.
CREATE SEQUENCE @schema@.generations AS bigint CACHE 1;

SELECT nextval('@schema@.versions'), nextval('@schema@.generations');

-- A server that was restored from a backup goes on above every version that it can have given out before. A session
-- that draws while this one looks cannot get past the hundred thousand that are left out.
CREATE FUNCTION @schema@.raise_versions() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    instant bigint;
    last bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('standfast versions of @schema@', 0));
    instant := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    last := pg_sequence_last_value('@schema@.versions'::regclass);
    IF last < instant THEN
        PERFORM setval('@schema@.versions'::regclass, greatest(instant, last + 100000));
    END IF;
END $$;

-- Lock the rows at sorted keys and compare them. "expected" has the version that each key must be at, 0 for one that must
-- be absent; "there" says how many must not be. A positive number in "locks" says how many of the next keys are
-- about to be written, a negative one how many are only compared; without it all are about to be written.
-- The time is read when everything is locked. "holds" is false if there is anything to look at more closely.
CREATE FUNCTION @schema@.hold(
    keys bytea[], expected bigint[], there int, locks int[], OUT at bigint, OUT holds boolean
) LANGUAGE plpgsql @fixed_plans@ AS $$
DECLARE
    start int := 0;
    size int;
    found_rows int := 0;
    run record;
    soonest bigint;
BEGIN
    holds := true;
    FOREACH size IN ARRAY coalesce(locks, ARRAY[cardinality(keys)]) LOOP
        IF size > 0 THEN
            SELECT count(*) AS found, bool_and(t.matches) AS match, min(t.expires_at) AS soonest INTO run FROM (
                SELECT r.version = g.version AS matches, r.expires_at
                FROM unnest(keys[start + 1 : start + size], expected[start + 1 : start + size])
                    WITH ORDINALITY AS g (key, version, place)
                JOIN @schema@.records AS r ON r.key = g.key
                ORDER BY g.place FOR UPDATE OF r
            ) AS t;
        ELSE
            SELECT count(*) AS found, bool_and(t.matches) AS match, min(t.expires_at) AS soonest INTO run FROM (
                SELECT r.version = g.version AS matches, r.expires_at
                FROM unnest(keys[start + 1 : start - size], expected[start + 1 : start - size])
                    WITH ORDINALITY AS g (key, version, place)
                JOIN @schema@.records AS r ON r.key = g.key
                ORDER BY g.place FOR SHARE OF r
            ) AS t;
        END IF;
        found_rows := found_rows + run.found;
        holds := holds AND coalesce(run.match, true);
        soonest := least(soonest, run.soonest);
        start := start + abs(size);
    END LOOP;
    at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    holds := holds AND found_rows = there AND coalesce(soonest > at, true);
END $$;

-- Tell which guards do not hold, when all rows are locked: the places of their keys, and what lies there. "present" has
-- the places of keys that have a row, be it an expired one.
CREATE FUNCTION @schema@.look_closely(
    keys bytea[], expected bigint[], at bigint,
    OUT present int[], OUT lost int[], OUT lost_values bytea[], OUT lost_versions bigint[], OUT lost_ends bigint[]
) LANGUAGE sql @fixed_plans@ AS $$
    SELECT array_agg(s.place) FILTER (WHERE s.has_row),
           array_agg(s.place ORDER BY s.place) FILTER (WHERE s.is_lost),
           array_agg(s.value ORDER BY s.place) FILTER (WHERE s.is_lost),
           array_agg(s.version ORDER BY s.place) FILTER (WHERE s.is_lost),
           array_agg(s.expires_at ORDER BY s.place) FILTER (WHERE s.is_lost)
    FROM (
        SELECT g.place::int AS place, r.key IS NOT NULL AS has_row, l.value, l.version, l.expires_at,
               g.version <> coalesce(l.version, 0) AS is_lost
        FROM unnest(keys, expected) WITH ORDINALITY AS g (key, version, place)
        LEFT JOIN @schema@.records AS r ON r.key = g.key
        LEFT JOIN LATERAL (
            SELECT r.value, r.version, r.expires_at WHERE r.key IS NOT NULL AND coalesce(r.expires_at > at, true)
        ) AS l ON true
    ) AS s
$$;

-- Do all of an intent or nothing. ADR 61 says why this never waits in a circle, and why versions only grow.
--
-- Keys, expected, there and locks are as for "hold". "puts" and "draws" say what becomes of each key: a value and which
-- of the new versions it takes, from 1; or nothing and -1, to be deleted; or nothing and 0, to be left alone.
-- "made", "changed" and "gone" say how many of each there are.
-- status 0: written; 1: refused, with what is there instead at the lost places; raises SF001 if
-- the attempt is closed, SF002 if somebody else has just created one of the keys, SF003 if the exact versions are stale.
CREATE FUNCTION @schema@.write(
    handle text, number bigint,
    keys bytea[], expected bigint[], there int, locks int[],
    puts bytea[], draws int[], ends bigint[], made int, changed int, gone int,
    wanted int, exact bigint[], after bigint, before bigint, channels text[], payloads text[],
    OUT status int, OUT at bigint, OUT drawn bigint[], OUT generation bigint,
    OUT lost int[], OUT lost_values bytea[], OUT lost_versions bigint[], OUT lost_ends bigint[]
) LANGUAGE plpgsql @fixed_plans@ AS $$
DECLARE
    held record;
    present int[];
    counted int;
BEGIN
    IF changed = 1 AND wanted = 1 AND cardinality(keys) = 1 AND exact IS NULL AND after IS NULL AND before IS NULL THEN
        -- Most batches of a quiet process: one record, which does not expire, locked and changed in one step.
        UPDATE @schema@.records AS r
        SET value = puts[1], version = nextval('@schema@.versions'::regclass), expires_at = ends[1]
        WHERE r.key = keys[1] AND r.version = expected[1] AND r.expires_at IS NULL
        RETURNING ARRAY[r.version] INTO drawn;
        at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    END IF;
    IF drawn IS NULL THEN
        IF locks IS NULL THEN  -- as "hold" does, in one step: most batches compare nothing that they do not write
            SELECT s.at, s.found = there AND coalesce(s.match AND coalesce(s.soonest > s.at, true), true) AS holds
            INTO held FROM (
                SELECT count(*) AS found, bool_and(t.matches) AS match, min(t.expires_at) AS soonest,
                       (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at
                FROM (
                    SELECT r.version = g.version AS matches, r.expires_at
                    FROM unnest(keys, expected) WITH ORDINALITY AS g (key, version, place)
                    JOIN @schema@.records AS r ON r.key = g.key
                    ORDER BY g.place FOR UPDATE OF r
                ) AS t
            ) AS s;
        ELSE
            held := @schema@.hold(keys, expected, there, locks);
        END IF;
        at := held.at;
        IF NOT held.holds OR at < after OR at >= before THEN
            SELECT 1, c.lost, c.lost_values, c.lost_versions, c.lost_ends, c.present
            INTO status, lost, lost_values, lost_versions, lost_ends, present
            FROM @schema@.look_closely(keys, expected, write.at) AS c;
            IF lost IS NOT NULL OR at < after OR at >= before THEN
                RETURN;
            END IF;
            -- All hold, but some keys that are to be created have an expired row: that one is written over.
            SELECT count(*) INTO counted FROM unnest(present) AS p (place) WHERE expected[place] = 0 AND draws[place] > 0;
            made := made - counted;
            changed := changed + counted;
            expected := ARRAY(
                SELECT CASE WHEN g.place = ANY (present) THEN 1 ELSE g.version END
                FROM unnest(expected) WITH ORDINALITY AS g (version, place) ORDER BY g.place
            );
        END IF;
        IF exact IS NOT NULL THEN
            drawn := exact;
        ELSIF wanted = 1 THEN
            drawn := ARRAY[nextval('@schema@.versions'::regclass)];
        ELSE
            drawn := ARRAY(SELECT nextval('@schema@.versions'::regclass) FROM generate_series(1, wanted));
        END IF;
        IF made > 0 THEN
            INSERT INTO @schema@.records (key, value, version, expires_at)
            SELECT m.key, m.value, drawn[m.draw], m.ends
            FROM unnest(keys, expected, puts, draws, ends) AS m (key, version, value, draw, ends)
            WHERE m.version = 0 AND m.draw > 0 ORDER BY m.key
            ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS counted = ROW_COUNT;
            IF counted < made OR pg_sequence_last_value('@schema@.versions'::regclass) <> drawn[cardinality(drawn)] THEN
                IF counted < made THEN
                    RAISE EXCEPTION 'a key was created at the same time' USING ERRCODE = 'SF002';
                ELSIF exact IS NOT NULL THEN
                    RAISE EXCEPTION 'the versions are stale' USING ERRCODE = 'SF003', DETAIL = at::text;
                END IF;
                -- A key may have come and gone with a higher version between the drawing and the creating.
                drawn := ARRAY(SELECT nextval('@schema@.versions'::regclass) FROM generate_series(1, wanted));
                UPDATE @schema@.records AS r SET version = drawn[m.draw]
                FROM unnest(keys, expected, draws) AS m (key, version, draw)
                WHERE r.key = m.key AND m.version = 0 AND m.draw > 0;
            END IF;
        END IF;
        IF changed > 0 THEN
            UPDATE @schema@.records AS r SET value = c.value, version = drawn[c.draw], expires_at = c.ends
            FROM unnest(keys, expected, puts, draws, ends) AS c (key, version, value, draw, ends)
            WHERE c.version > 0 AND c.draw > 0 AND r.key = c.key;
        END IF;
        IF gone > 0 THEN
            DELETE FROM @schema@.records AS r USING unnest(keys, draws) AS g (key, draw) WHERE g.draw < 0 AND r.key = g.key;
        END IF;
    END IF;
    UPDATE @schema@.attempts AS a SET number = write.number, at = write.at, versions = drawn, touched_at = now()
    WHERE a.handle = write.handle AND a.number < write.number;
    IF NOT FOUND THEN
        INSERT INTO @schema@.attempts VALUES (write.handle, write.number, write.at, drawn) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt is closed' USING ERRCODE = 'SF001';
        END IF;
    END IF;
    IF channels IS NOT NULL THEN
        PERFORM pg_notify(m.channel, m.payload) FROM unnest(channels, payloads) AS m (channel, payload);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    status := 0;
END $$;

-- Make sure that an attempt can never be written any more; if it was, return what it wrote.
CREATE FUNCTION @schema@.close_attempt(handle text, number bigint, OUT last bigint, OUT at bigint, OUT versions bigint[])
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @schema@.attempts AS a VALUES (close_attempt.handle, close_attempt.number)
    ON CONFLICT ON CONSTRAINT attempts_pkey DO UPDATE
    SET number = excluded.number, at = NULL, versions = NULL, touched_at = excluded.touched_at
    WHERE a.number < excluded.number;
    last := close_attempt.number;
    IF NOT FOUND THEN
        SELECT a.number, a.at, a.versions INTO last, at, versions
        FROM @schema@.attempts AS a WHERE a.handle = close_attempt.handle;
    END IF;
END $$;

-- Say what a handle listens to, for so many microseconds. The generation is moved on afterwards, by another statement:
-- whoever sees the new one must see the list that belongs to it.
CREATE FUNCTION @schema@.subscribe(handle text, topics bytea[], lasting bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM @schema@.topics AS t WHERE t.handle = subscribe.handle AND t.topic <> ALL (subscribe.topics);
    INSERT INTO @schema@.topics AS t
    SELECT g.topic, subscribe.handle, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + lasting
    FROM unnest(subscribe.topics) AS g (topic)
    ON CONFLICT ON CONSTRAINT topics_pkey DO UPDATE SET expires_at = excluded.expires_at;
END $$;

-- Return what anyone listens to. The generation is read first, by a statement of its own.
CREATE FUNCTION @schema@.audience(OUT generation bigint, OUT topics bytea[]) LANGUAGE plpgsql AS $$
BEGIN
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    SELECT array_agg(DISTINCT t.topic) INTO topics FROM @schema@.topics AS t
    WHERE t.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
END $$;

-- Delete what has expired, and what handles left behind that are gone. It waits for nobody.
CREATE FUNCTION @schema@.sweep(most int) RETURNS int LANGUAGE plpgsql @fixed_plans@ AS $$
DECLARE
    instant bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    removed int;
BEGIN
    DELETE FROM @schema@.records AS r WHERE r.key = ANY (ARRAY(
        SELECT e.key FROM @schema@.records AS e WHERE e.expires_at <= instant
        ORDER BY e.expires_at LIMIT most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS removed = ROW_COUNT;
    DELETE FROM @schema@.topics AS t WHERE (t.topic, t.handle) IN (
        SELECT e.topic, e.handle FROM @schema@.topics AS e WHERE e.expires_at <= instant - 60000000 FOR UPDATE SKIP LOCKED
    );
    DELETE FROM @schema@.attempts AS a WHERE a.handle IN (
        SELECT e.handle FROM @schema@.attempts AS e WHERE e.touched_at < now() - interval '7 days' FOR UPDATE SKIP LOCKED
    );
    RETURN removed;
END $$;

-- Let a role use the store, without owning it: GRANT in one call, to be repeated after a migration.
CREATE FUNCTION @schema@.grant_to(role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON @schema@.records, @schema@.attempts, @schema@.topics TO %I', role);
    EXECUTE format('GRANT SELECT ON @schema@.migrations TO %I', role);
    EXECUTE format('GRANT SELECT, USAGE, UPDATE ON SEQUENCE @schema@.versions, @schema@.generations TO %I', role);
    EXECUTE format('GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA @schema@ TO %I', role);
END $$;
