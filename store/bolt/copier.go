package bolt

import (
	"cmp"
	"context"

	"go.etcd.io/bbolt"

	"github.com/agentmesh/agentmesh/store/engine"
)

// copier fills a new database, a few MiB in each transaction. After the first error, it does nothing.
type copier struct {
	ctx  context.Context
	db   *bbolt.DB
	tx   *txn // nil between two transactions
	err  error
	size int // size of the rows in tx
	// heads finds the heads of lanes among imported records.
	heads engine.LaneHeads
}

const copyBatch = 4 << 20 // bytes of rows in one transaction

// do calls write in a transaction of the copy. size is about the size of what it writes. It is fastest if the rows come in
// the order of their keys.
func (c *copier) do(size int, write func(t *txn) error) error {
	if c.size >= copyBatch {
		c.commit()
	}
	if c.tx == nil && c.err == nil {
		var tx *bbolt.Tx
		if tx, c.err = c.db.Begin(true); c.err == nil {
			c.tx = &txn{reads: reads{tx}, tally: make(tally), countChanges: make(countChanges), fill: 1}
		}
	}
	if c.err == nil {
		c.size += size
		c.err = catchDamage(func() error { return write(c.tx) }) // a row with an empty key panics
	}
	return c.err
}

// commit commits the transaction, unless the copy has failed or was canceled.
func (c *copier) commit() {
	if c.err = cmp.Or(c.err, c.ctx.Err()); c.err != nil {
		return
	}
	tx := c.tx
	if c.err = tx.saveTally(); c.err != nil {
		return
	}
	c.tx, c.size = nil, 0
	c.err = tx.Commit()
}

// finish commits the rest, and syncs the file.
func (c *copier) finish() error {
	if c.tx != nil {
		c.commit()
	}
	if c.err != nil {
		return c.err
	}
	return c.db.Sync()
}

func (c *copier) rollback() error {
	if c.tx == nil {
		return nil
	}
	return c.tx.Rollback()
}
