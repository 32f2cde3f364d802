-- "write" as in 0001, with less to do where records are created, which is what steps of runs and locks do: what is not there
-- is not locked, and the keys, which come in their order, are not sorted again. ADR 61 holds as it is.
CREATE OR REPLACE FUNCTION @schema@.write(
    handle text, number bigint,
    keys bytea[], expected bigint[], there int, locks int[],
    puts bytea[], draws int[], ends bigint[], made int, changed int, gone int,
    wanted int, exact bigint[], after bigint, before bigint, channels text[], payloads text[],
    OUT status int, OUT at bigint, OUT drawn bigint[], OUT generation bigint,
    OUT lost int[], OUT lost_values bytea[], OUT lost_versions bigint[], OUT lost_ends bigint[]
) LANGUAGE plpgsql @fixed_plans@ AS $$
DECLARE
    holds boolean := true;
    present int[];
    counted int;
    compared int := coalesce(-locks[1], 0);  -- the first so many keys are only compared; negative if they are not
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
        IF changed = 0 AND gone = 0 AND there = compared AND coalesce(cardinality(locks), 2) = 2 AND NOT EXISTS (
            SELECT FROM @schema@.records AS r WHERE r.key = ANY (keys[compared + 1 :])
        ) THEN
            -- Guards, if any, and then keys without a row: only the guards are locked. Who creates a key first is met below.
            IF compared > 0 THEN
                SELECT s.found = there AND s.match AND coalesce(s.soonest > s.at, true), s.at INTO holds, at FROM (
                    SELECT count(*) AS found, bool_and(t.matches) AS match, min(t.expires_at) AS soonest,
                           (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS at
                    FROM (
                        SELECT r.version = g.version AS matches, r.expires_at
                        FROM unnest(keys[: compared], expected[: compared]) WITH ORDINALITY AS g (key, version, place)
                        JOIN @schema@.records AS r ON r.key = g.key
                        ORDER BY g.place FOR SHARE OF r
                    ) AS t
                ) AS s;
            ELSE
                at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
            END IF;
        ELSIF locks IS NULL THEN  -- as "hold" does, in one step: most batches compare nothing that they do not write
            SELECT s.found = there AND coalesce(s.match AND coalesce(s.soonest > s.at, true), true), s.at
            INTO holds, at FROM (
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
            SELECT h.at, h.holds INTO at, holds FROM @schema@.hold(keys, expected, there, locks) AS h;
        END IF;
        IF NOT coalesce(holds, false) OR at < after OR at >= before THEN
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
            WHERE m.version = 0 AND m.draw > 0
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
