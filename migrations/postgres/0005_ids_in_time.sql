-- Ids that rise with time (UUID version 7, RFC 9562): what is written to their
-- index is then close together. Dispatching a row writes to it again.
ALTER TABLE {p}outbox ALTER COLUMN message_id SET DEFAULT encode(
    set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid;
