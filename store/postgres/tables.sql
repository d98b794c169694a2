-- Rows of data. See doc.go for the columns.
--
-- Every message moves the end of its conversation. PostgreSQL leaves the indexes of a row alone (a "HOT" update) if no
-- column in an index changed, so the index of convs for sweeps is on a column that changes every 73 minutes: due without
-- its lower 42 bits.
create table convs         (key bytea primary key, num bigint not null, due bigint not null, value bytea not null,
                            sweep bigint generated always as (due & -4398046511104) stored) with (fillfactor = 70);
create table replays       (key bytea primary key, num bigint not null, due bigint not null, value bytea not null) with (fillfactor = 80);
create table records       (key bytea primary key, num bigint not null, due bigint not null, value bytea not null) with (fillfactor = 80);
create table cards         (key bytea primary key, num bigint not null, due bigint not null, value bytea not null) with (fillfactor = 80);
create table changes       (key bytea primary key, num bigint not null, due bigint not null, value bytea not null) with (fillfactor = 80);
create table counters      (key bytea primary key, num bigint not null, due bigint not null, value bytea not null) with (fillfactor = 50);

-- Rows that follow from rows above.
create table entries       (key bytea primary key, num bigint not null, due bigint not null, value bytea not null);
create table conv_terms    (key bytea primary key, num bigint not null, due bigint not null, value bytea not null);
create table record_terms  (key bytea primary key, num bigint not null, due bigint not null, value bytea not null);
create table record_lanes  (key bytea primary key, num bigint not null, due bigint not null, value bytea not null) with (fillfactor = 80);
-- Finished heads precede the others in the index by key, and an open snapshot keeps their entries there. So a process
-- remembers where the others begin, and finds what was added before that place by the transaction that added it.
create table heads         (key bytea primary key, num bigint not null, due bigint not null, value bytea not null,
                            xact bigint not null default pg_current_xact_id()::text::bigint);
create table card_counts   (key bytea primary key, num bigint not null, due bigint not null, value bytea not null);

create unique index on convs (num);
create unique index on cards (num);
create unique index on changes (num);
create index on replays (num) where num > 0;
create index on heads (xact);

-- What a sweep looks for. The largest number means never.
create index on convs   (sweep) where sweep < 9223367638808264704;
create index on replays (due) where due < 9223372036854775807;
create index on records (due) where due < 9223372036854775807;
create index on cards   (due) where due < 9223372036854775807;
create index on changes (due) where due < 9223372036854775807;

insert into counters (key, num, due, value) values ('cards', 0, 0, ''), ('changes', 0, 0, '');

-- Revisions, fences, and the order of conversations.
create sequence revisions;

-- The number of the last group of each process, and when it was committed.
create table lanes  (id text primary key, n bigint not null, seen timestamptz not null) with (fillfactor = 50);
create table leases (name text primary key, holder text not null, holder_name text not null, fence bigint not null, until timestamptz not null) with (fillfactor = 50);
