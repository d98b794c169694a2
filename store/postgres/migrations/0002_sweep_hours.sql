-- Every message moves the end of its conversation. PostgreSQL leaves the indexes of a row alone (a "HOT" update) if no
-- column in an index changed, so the index for sweeps is on a column that changes every 73 minutes: due without its
-- lower 42 bits.
alter table convs add column sweep bigint generated always as (due & -4398046511104) stored;
drop index convs_due_idx;
create index on convs (sweep) where sweep < 9223367638808264704;
