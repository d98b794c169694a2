package postgres

import (
	"fmt"

	"github.com/agentmesh/agentmesh/store/engine"
)

// row is a stored row without its key. See doc.go for the columns.
type row struct {
	num, due int64
	value    []byte
}

// table is a table of rows with the statements that read and write them. Each statement has a fixed number of
// arguments, so that it is prepared once for each connection.
type table struct {
	name      string
	dependent bool // the rows belong to rows of other tables, whose locks protect them

	lock, read, insert, update, remove string
}

// The tables of rows. Transactions lock them in this order. Conversations come before replay records (of accepted
// messages): if two processes get copies of the same message, the second one waits for the conversation, and then
// finds the replay record of the first. Counters come after the other locked tables, because every transaction that
// changes cards locks the counters until its commit.
var (
	convs    = newTable("convs", false)
	replays  = newTable("replays", false)
	records  = newTable("records", false)
	cards    = newTable("cards", false)
	changes  = newTable("changes", false)
	counters = newTable("counters", false)
	// entries and the tables after it are dependent.
	entries     = newTable("entries", true)
	convTerms   = newTable("conv_terms", true)
	recordTerms = newTable("record_terms", true)
	cardCounts  = newTable("card_counts", true)
	recordLanes = newTable("record_lanes", true)
	heads       = newTable("heads", true)

	tables []*table
)

func newTable(name string, dependent bool) *table {
	const rows = "unnest($1::bytea[]), unnest($2::bigint[]), unnest($3::bigint[]), unnest($4::bytea[])"
	t := &table{
		name: name, dependent: dependent,
		lock:   "select key, num, due, value from " + name + " where key = any($1) order by key for update",
		read:   "select num, due, value from " + name + " where key = $1",
		insert: "insert into " + name + " (key, num, due, value) select " + rows,
		update: fmt.Sprintf("update %s t set num = r.num, due = r.due, value = r.value from (select %s) r (key, num, due, value) where t.key = r.key", name, rows),
		remove: "delete from " + name + " where key = any($1)",
	}
	if dependent { // put does not read such a row first, so it may exist
		t.insert += " on conflict (key) do update set num = excluded.num, due = excluded.due, value = excluded.value"
	}
	tables = append(tables, t)
	return t
}

// due returns the query for the rows whose due is $1 or earlier. The query repeats the condition of the partial index,
// because PostgreSQL would otherwise read the whole table. The index of conversations is on the column sweep, which is
// due without its low bits, because it must change rarely.
func (t *table) due() string {
	column, never := "due", int64(engine.Never)
	if t == convs {
		column, never = "sweep", engine.Never&sweepHours
	}
	return fmt.Sprintf("select key, value from %s where due <= $1 and %[2]s <= $1 and %[2]s < %d order by %[2]s limit $2", t.name, column, never)
}

// sweepHours masks the bits of due that the column sweep keeps. The lowest of them is worth 73 minutes.
const sweepHours = -1 << 42

// The rows of counters: the last sequence number of a card, and the last position in the feed of card changes.
var (
	counterCards   = []byte("cards")
	counterChanges = []byte("changes")
)

// tableOf has the table of each kind of rows.
var tableOf = map[engine.Kind]*table{
	engine.KindCard: cards, engine.KindChange: changes, engine.KindConv: convs, engine.KindEntry: entries, engine.KindReplay: replays, engine.KindRecord: records,
}

// prefixEnd returns the smallest key that is larger than all keys with this prefix. The prefix has a byte below 255.
func prefixEnd(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			after := append([]byte(nil), prefix[:i+1]...)
			after[i]++
			return after
		}
	}
	return nil
}
