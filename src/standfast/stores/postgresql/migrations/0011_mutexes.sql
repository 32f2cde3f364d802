-- The two choices that mutexes make all the time, by statements of their own in place of loops over what "choose" is given. They decide, lock
-- and write as it does. Where something is otherwise than it mostly is, they write nothing and return a row of NULLs, or raise: then "choose" is
-- called. They have no settings of their own, which take a tenth of their time: they are called in sessions that have those.

-- Create a record with a stamp and one without; or else, as the latter is there, append the former below a prefix.
-- "stamped_key" is smaller than "put_key". "found_value" and "found_version" are of the record that had to be there.
CREATE FUNCTION @schema@.create_or_append(
    handle text, number bigint, stamped_key bytea, stamped_value bytea, put_key bytea, put_value bytea, prefix bytea, suffix bytea,
    OUT generation bigint, OUT at bigint, OUT version bigint, OUT chosen int, OUT found_value bytea, OUT found_version bigint
) LANGUAGE plpgsql AS $$
DECLARE
    made int;
BEGIN
    FOR pass IN 1 .. 2 LOOP
        PERFORM FROM @schema@.records AS r WHERE r.key = put_key;
        IF NOT FOUND THEN
            at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
            version := nextval('@schema@.versions'::regclass);
            INSERT INTO @schema@.records (key, value, version) VALUES
                (stamped_key, convert_to(lpad(create_or_append.at::text, 16, '0'), 'UTF8') || stamped_value, create_or_append.version),
                (put_key, put_value, create_or_append.version)
            ON CONFLICT DO NOTHING;
            GET DIAGNOSTICS made = ROW_COUNT;
            IF made = 1 THEN
                RAISE EXCEPTION 'a key was created at the same time' USING ERRCODE = 'SF002';
            ELSIF made = 2 THEN
                IF pg_sequence_last_value('@schema@.versions'::regclass) <> version THEN
                    -- A key may have come and gone with a higher version between the drawing and the creating.
                    version := nextval('@schema@.versions'::regclass);
                    UPDATE @schema@.records AS r SET version = create_or_append.version WHERE r.key = stamped_key;
                    UPDATE @schema@.records AS r SET version = create_or_append.version WHERE r.key = put_key;
                END IF;
                chosen := 0;
                EXIT;
            END IF;
        END IF;
        SELECT r.value, r.version INTO found_value, found_version
        FROM @schema@.records AS r WHERE r.key = put_key AND r.expires_at IS NULL FOR KEY SHARE;
        IF FOUND THEN
            at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
            version := nextval('@schema@.versions'::regclass);
            INSERT INTO @schema@.records (key, value, version) VALUES (
                prefix || convert_to(lpad(create_or_append.version::text, 16, '0'), 'UTF8') || '\x0001'::bytea || suffix,
                convert_to(lpad(create_or_append.at::text, 16, '0'), 'UTF8') || stamped_value, create_or_append.version
            );
            chosen := 1;
            EXIT;
        END IF;
    END LOOP;
    IF chosen IS NULL THEN
        at := NULL;
        RETURN;
    END IF;
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    UPDATE @schema@.attempts AS a
    SET number = create_or_append.number, at = create_or_append.at,
        versions = ARRAY[create_or_append.version, chosen], touched_at = now()
    WHERE a.handle = create_or_append.handle AND a.number < create_or_append.number;
    IF NOT FOUND THEN
        INSERT INTO @schema@.attempts VALUES (handle, number, create_or_append.at, ARRAY[create_or_append.version, chosen])
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt is closed' USING ERRCODE = 'SF001';
        END IF;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Move the first record below a prefix to a key, over the record that is there at a version; or else, as there is none, delete that one and
-- another. "to_key" is smaller than "other_key". "found_key", "found_value" and "found_version" are of the record that was moved, before that.
CREATE FUNCTION @schema@.move_or_delete(
    handle text, number bigint, to_key bytea, to_version bigint, other_key bytea, other_version bigint, prefix bytea, inboxes bytea,
    origin bytea, longest int,
    OUT generation bigint, OUT at bigint, OUT version bigint, OUT chosen int,
    OUT found_key bytea, OUT found_value bytea, OUT found_version bigint
) LANGUAGE plpgsql AS $$
DECLARE
    found_end bigint;
    moved bytea;
    inbox bytea;
    is_short boolean;
    message text;
BEGIN
    PERFORM FROM @schema@.records AS r
    WHERE r.key = to_key AND r.version = to_version AND r.expires_at IS NULL FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR pass IN 1 .. 2 LOOP
        LOOP
            PERFORM FROM @schema@.records AS r
            WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT r.key, r.value, r.version, r.expires_at INTO found_key, found_value, found_version, found_end
            FROM @schema@.records AS r
            WHERE r.key >= prefix || '\x00'::bytea AND r.key < prefix || '\xff'::bytea ORDER BY r.key LIMIT 1 FOR UPDATE;
            EXIT WHEN FOUND;  -- if it was deleted while we waited for it, another one may be the first now
        END LOOP;
        EXIT WHEN FOUND OR pass = 2;
        -- None: from here on none is appended any more by one who needs the other record to be there. So it is looked once more.
        PERFORM FROM @schema@.records AS r
        WHERE r.key = other_key AND r.version = other_version AND r.expires_at IS NULL FOR UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    IF found_end IS NOT NULL OR octet_length(found_key) <= octet_length(prefix) + 18 THEN
        found_key := NULL;
        found_value := NULL;
        found_version := NULL;
        RETURN;
    END IF;
    at := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    version := nextval('@schema@.versions'::regclass);
    IF found_key IS NULL THEN
        DELETE FROM @schema@.records AS r WHERE r.key = ANY (ARRAY[to_key, other_key]);
        chosen := 1;
    ELSE
        moved := convert_to(lpad(at::text, 16, '0'), 'UTF8') || found_value;
        UPDATE @schema@.records AS r SET value = moved, version = move_or_delete.version WHERE r.key = to_key;
        DELETE FROM @schema@.records AS r WHERE r.key = found_key;
        inbox := inboxes || substring(found_key FROM octet_length(prefix) + 19);
        is_short := octet_length(inbox) + octet_length(to_key) + octet_length(moved) <= longest;
        message := translate(encode(
            '\x01'::bytea || origin || convert_to(
                CASE WHEN is_short THEN lpad(version::text, 16, '0') ELSE repeat('0', 16) END
                || lpad(octet_length(inbox)::text, 16, '0') || lpad(octet_length(to_key)::text, 16, '0'), 'UTF8'
            ) || inbox || to_key || CASE WHEN is_short THEN moved ELSE ''::bytea END,
            'base64'), E'\n', '');
        PERFORM pg_notify(@schema@.channel_of(inbox), message), pg_notify(@schema@.channel_of(inboxes), message);
        chosen := 0;
    END IF;
    generation := pg_sequence_last_value('@schema@.generations'::regclass);
    UPDATE @schema@.attempts AS a
    SET number = move_or_delete.number, at = move_or_delete.at, versions = ARRAY[move_or_delete.version, chosen], touched_at = now()
    WHERE a.handle = move_or_delete.handle AND a.number < move_or_delete.number;
    IF NOT FOUND THEN
        INSERT INTO @schema@.attempts VALUES (handle, number, move_or_delete.at, ARRAY[move_or_delete.version, chosen])
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt is closed' USING ERRCODE = 'SF001';
        END IF;
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;
