-- A store that is moved elsewhere is frozen by a trigger where every write counts its attempt. While the trigger is not there
-- it costs nothing. To make it, the table is locked against writers: it waits for those under way, and whoever comes later
-- meets it. An attempt that is closed, and not written, has no versions and passes.
CREATE FUNCTION @schema@.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the store is frozen' USING ERRCODE = 'SF004', DETAIL = TG_ARGV[0];
END $$;

-- Why the store is frozen; 0 if it is not.
CREATE FUNCTION @schema@.frozen() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(max(split_part(encode(t.tgargs, 'escape'), '\', 1)::bigint), 0)
    FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = '@schema@.attempts'::regclass AND t.tgname = 'frozen'
$$;

-- Only the owner of a table makes triggers on it; so these two run as the owner, for all who may use the store.
CREATE FUNCTION @schema@.freeze(reason bigint) RETURNS void LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    LOCK TABLE @schema@.attempts IN SHARE ROW EXCLUSIVE MODE;
    IF @schema@.frozen() = 0 THEN
        EXECUTE format(
            'CREATE TRIGGER frozen BEFORE INSERT OR UPDATE ON @schema@.attempts FOR EACH ROW'
            ' WHEN (NEW.versions IS NOT NULL) EXECUTE FUNCTION @schema@.refuse(%L)', reason
        );
    END IF;
END $$;

CREATE FUNCTION @schema@.thaw() RETURNS void LANGUAGE sql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    DROP TRIGGER IF EXISTS frozen ON @schema@.attempts
$$;

-- Go on above a version, as "raise_versions" does.
CREATE FUNCTION @schema@.lift(version bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    last bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('standfast versions of @schema@', 0));
    last := pg_sequence_last_value('@schema@.versions'::regclass);
    IF last < version THEN
        PERFORM setval('@schema@.versions'::regclass, greatest(version, last + 100000));
    END IF;
END $$;
