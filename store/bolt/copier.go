package bolt

import (
	"cmp"
	"context"
	"slices"

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

// put stores a row. It is fastest if the rows come in the order of their keys. It does not keep key or value.
func (c *copier) put(b bucket, key, value []byte) {
	if c.size >= copyBatch {
		c.commit()
	}
	if !c.begin() {
		return
	}
	c.size += len(key) + len(value)
	rows := b.in(c.tx)
	rows.raw.FillPercent = 1                     // most rows come in the order of their keys
	c.err = rows.tryPut(key, slices.Clip(value)) // put would panic if an imported row has an empty key
}

// begin begins a transaction unless one has begun. It returns false after an error.
func (c *copier) begin() bool {
	if c.tx == nil && c.err == nil {
		var tx *bbolt.Tx
		if tx, c.err = c.db.Begin(true); c.err == nil {
			c.tx = &txn{reads: reads{tx}, tally: make(tally)}
		}
	}
	return c.err == nil
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
