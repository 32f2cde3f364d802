-- "write" for a commit of a few records, which is what most commits of a quiet process are: a small statement for each key takes two thirds of the
-- time that statements over arrays take. It locks, creates and changes in the order of ADR 61. It has no settings of its own: it is called in
-- sessions that have those.
-- "keys" and "expected" are as for "write"; "changes" has 1 for a key that is put, -1 for one that is deleted, and 0 for one that is only compared,
-- which is to be there. All is put at one version, "drawn" has that, and nothing expires. "replaces" says if any record is put or deleted that is there.
-- status 0 and 1 as for "write". NULL: nothing was written, and "write" is to be called; so it is where this raises SF002: a key has just been
-- created, or the attempt is the first one of its handle, or closed.
CREATE FUNCTION @schema@.write_few(
    handle text, number bigint, channels text[], payloads text[], replaces boolean,
    keys bytea[], expected bigint[], changes int[], puts bytea[],
    OUT status int, OUT at bigint, OUT drawn bigint[], OUT generation bigint,
    OUT lost int[], OUT lost_values bytea[], OUT lost_versions bigint[], OUT lost_ends bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    is_done boolean;
BEGIN
    <<doing>>
    BEGIN
        FOR place IN 1 .. cardinality(keys) LOOP
            IF expected[place] = 0 THEN
                CONTINUE;  -- whoever creates it first is met below
            ELSIF changes[place] = 0 THEN
                PERFORM FROM @schema@.records AS r
                WHERE r.key = keys[place] AND r.version = expected[place] AND r.expires_at IS NULL FOR SHARE;
            ELSE
                PERFORM FROM @schema@.records AS r
                WHERE r.key = keys[place] AND r.version = expected[place] AND r.expires_at IS NULL FOR UPDATE;
            END IF;
            EXIT doing WHEN NOT FOUND;
        END LOOP;
        drawn := ARRAY[nextval('@schema@.versions'::regclass)];
        FOR place IN 1 .. cardinality(keys) LOOP
            CONTINUE WHEN expected[place] > 0;
            INSERT INTO @schema@.records (key, value, version) VALUES (keys[place], puts[place], drawn[1]) ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                EXIT doing WHEN 0 <> ALL (expected[: place - 1]);  -- the first one that is created
                RAISE EXCEPTION 'a key was created at the same time' USING ERRCODE = 'SF002';
            END IF;
        END LOOP;
        IF replaces THEN
            FOR place IN 1 .. cardinality(keys) LOOP
                IF expected[place] = 0 OR changes[place] = 0 THEN
                    CONTINUE;
                ELSIF changes[place] > 0 THEN
                    UPDATE @schema@.records AS r SET value = puts[place], version = drawn[1] WHERE r.key = keys[place];
                ELSE
                    DELETE FROM @schema@.records AS r WHERE r.key = keys[place];
                END IF;
            END LOOP;
        END IF;
        UPDATE @schema@.attempts AS a
        SET number = write_few.number, at = (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, versions = drawn, touched_at = now()
        WHERE a.handle = write_few.handle AND a.number < write_few.number
        RETURNING 0, a.at, pg_sequence_last_value('@schema@.generations'::regclass),
            pg_sequence_last_value('@schema@.versions'::regclass) = drawn[1]
            AND channels IS NULL AND current_setting('synchronous_commit') <> 'off'
        INTO status, at, generation, is_done;
        IF is_done THEN  -- as nearly always
            RETURN;
        ELSIF status IS NULL THEN
            RAISE EXCEPTION 'the attempt is not counted yet, or closed' USING ERRCODE = 'SF002';
        END IF;
        IF 0 = ANY (expected) AND pg_sequence_last_value('@schema@.versions'::regclass) <> drawn[1] THEN
            -- A key may have come and gone with a higher version between the drawing and the creating.
            drawn := ARRAY[nextval('@schema@.versions'::regclass)];
            UPDATE @schema@.records AS r SET version = drawn[1]
            FROM unnest(keys, changes) AS m (key, change) WHERE m.change > 0 AND r.key = m.key;
            UPDATE @schema@.attempts AS a SET versions = drawn WHERE a.handle = write_few.handle;
        END IF;
        IF channels IS NOT NULL THEN
            PERFORM pg_notify(m.channel, m.payload) FROM unnest(channels, payloads) AS m (channel, payload);
        END IF;
        IF current_setting('synchronous_commit') = 'off' THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        RETURN;
    END doing;
    -- A guard does not hold, and nothing was written. All are looked at, at one moment.
    drawn := NULL;
    at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    SELECT CASE WHEN c.lost IS NOT NULL THEN 1 END, c.lost, c.lost_values, c.lost_versions, c.lost_ends
    INTO status, lost, lost_values, lost_versions, lost_ends
    FROM @schema@.look_closely(keys, expected, write_few.at) AS c;
END $$;
