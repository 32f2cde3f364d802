-- What a transaction of the user's own takes along. Text goes in and text comes out, so that any driver can make these
-- calls over any connection: keys and values are written in hexadecimal digits.

-- A name that no other store has, unless it is a copy; see "store_here".
DO $do$ BEGIN
    EXECUTE format('CREATE FUNCTION @schema@.identity() RETURNS text LANGUAGE sql IMMUTABLE AS %L',
                   format('SELECT %L::text', gen_random_uuid()));
END $do$;

-- The store that a connection sees: a copy of a store lies in another database, or in tables of its own.
CREATE FUNCTION @schema@.store_here() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT @schema@.identity() || ' ' || current_database() || ' ' || '@schema@.records'::regclass::oid
$$;

CREATE FUNCTION @schema@.bytes_of(given json) RETURNS bytea[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(decode(e.digits, 'hex') ORDER BY e.place)
    FROM json_array_elements_text(given) WITH ORDINALITY AS e (digits, place)
$$;

CREATE FUNCTION @schema@.numbers_of(given json) RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(e.number::bigint ORDER BY e.place)
    FROM json_array_elements_text(given) WITH ORDINALITY AS e (number, place)
$$;

CREATE FUNCTION @schema@.texts_of(given json) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(e.line ORDER BY e.place) FROM json_array_elements_text(given) WITH ORDINALITY AS e (line, place)
$$;

-- Say which store and which transaction this is, and who listens.
CREATE FUNCTION @schema@.join_begin() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT json_build_object(
        'store', @schema@.store_here(), 'transaction', pg_current_xact_id()::text,
        'topics', (
            SELECT coalesce(json_agg(DISTINCT encode(t.topic, 'hex')), '[]'::json) FROM @schema@.topics AS t
            WHERE t.expires_at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
        )
    )::text
$$;

-- Do all of an intent or nothing, as "write" does, in the transaction that is under way. If that is not the one that was
-- begun, nothing is written: without a transaction, each statement is one of its own.
--
-- A session does one transaction at a time, so its number makes a handle: what was written is counted, as the slow check
-- needs it, and nobody waits for anybody. With "idle", the session ends if it sits idle for so many milliseconds before
-- this transaction does: others wait for what it has locked.
CREATE FUNCTION @schema@.join_write(asked text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    a json := asked::json;
    w record;
    tries int := 0;
    idle int := (a ->> 'idle')::int;
BEGIN
    IF pg_current_xact_id()::text <> a ->> 'transaction' THEN
        RETURN json_build_object('status', 2)::text;
    END IF;
    IF idle > 0 THEN  -- most have no such limit; looking closer takes a millisecond
        IF current_setting('idle_in_transaction_session_timeout') = '0' OR NOT EXISTS (
            SELECT FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout' AND setting::int BETWEEN 1 AND idle
        ) THEN
            PERFORM set_config('idle_in_transaction_session_timeout', idle::text, true);
        END IF;
    END IF;
    LOOP
        BEGIN
            w := @schema@.write(
                'joined ' || pg_backend_pid(), nextval('@schema@.versions'::regclass),
                @schema@.bytes_of(a -> 'keys'), @schema@.numbers_of(a -> 'expected'), (a ->> 'there')::int,
                @schema@.numbers_of(a -> 'locks')::int[],
                @schema@.bytes_of(a -> 'puts'), @schema@.numbers_of(a -> 'draws')::int[], @schema@.numbers_of(a -> 'ends'),
                (a ->> 'made')::int, (a ->> 'changed')::int, (a ->> 'gone')::int, 1, NULL,
                NULL, (a ->> 'before')::bigint, @schema@.texts_of(a -> 'channels'), @schema@.texts_of(a -> 'payloads')
            );
            EXIT;
        EXCEPTION WHEN SQLSTATE 'SF002' THEN  -- somebody has created one of the keys meanwhile: look at it
            tries := tries + 1;
            IF tries > 10 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
    RETURN json_build_object(
        'status', w.status, 'at', w.at, 'drawn', w.drawn, 'lost', w.lost,
        'values', (SELECT json_agg(encode(v.value, 'hex') ORDER BY v.place)
                   FROM unnest(w.lost_values) WITH ORDINALITY AS v (value, place)),
        'versions', w.lost_versions, 'ends', w.lost_ends
    )::text;
END $$;

-- Read live records as the transaction under way sees them.
CREATE FUNCTION @schema@.join_read(asked text) RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT json_build_object('at', t.at, 'records', (
        SELECT coalesce(json_agg(json_build_array(
            encode(r.key, 'hex'), encode(r.value, 'hex'), r.version, r.expires_at
        )), '[]'::json)
        FROM @schema@.records AS r
        WHERE r.key = ANY (@schema@.bytes_of(asked::json)) AND (r.expires_at IS NULL OR r.expires_at > t.at)
    ))::text
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at OFFSET 0) AS t
$$;
