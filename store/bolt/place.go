package bolt

import "github.com/agentmesh/agentmesh/store/engine"

// place is where a row of the engine is stored, and what else refers to it.
type place struct {
	rows    bucket
	key     []byte                   // in rows
	numbers bucket                   // from the key of the engine to the number of the row; no name: none
	terms   bucket                   // lists the row by its Terms
	termKey func(term string) []byte // in terms
	kind    byte                     // in bucketExpiries; 0: the row does not expire
	due     []byte                   // its key in bucketExpiries
}

func placeOf(r engine.Row) place {
	if r.Kind == engine.KindEntry {
		return place{rows: bucketConvs, key: convRowKey(r.Key[:8], convEntry, r.Key[8:])}
	}
	num, key := u64(r.Num), r.Key
	switch r.Kind {
	case engine.KindCard:
		return place{bucketCards, num, bucketIDs, bucketCounts, countKey(r.Num), kindCard, num}
	case engine.KindConv:
		return place{bucketConvs, convRowKey(num, convRow, nil), bucketConvKeys, bucketConvTerms, convTermKey(r.Num), kindConv, num}
	}
	termKey := func(term string) []byte { return engine.ListKey(key, term) }
	return place{bucketRecords, key, bucket{}, bucketRecordTerms, termKey, kindRecord, key}
}

// Put implements [engine.Tx].
func (t *txn) Put(r, old engine.Row) {
	p := placeOf(r)
	scheduled := old.Due // when a sweep will come to the row
	if old.Key == nil {
		scheduled = engine.NoTime
		if p.numbers.name != nil {
			p.numbers.in(t).put(r.Key, u64(r.Num))
		}
	}
	p.rows.in(t).put(p.key, r.Value)
	if p.kind == 0 {
		return
	}
	p.terms.in(t).replace(old.Terms, r.Terms, p.termKey)
	scheduleSweep(t, p.kind, p.due, scheduled, r.Due)
	if p.kind == kindRecord {
		if old.Key != nil {
			t.countChanges.add(old, -1)
		}
		t.countChanges.add(r, 1)
	}
}

// Drop implements [engine.Tx]. The row in bucketExpiries stays until the sweep reaches it, and that in bucketIDs with the
// last change of the card.
func (t *txn) Drop(r engine.Row) {
	p := placeOf(r)
	p.rows.in(t).delete(p.key)
	p.terms.in(t).replace(r.Terms, nil, p.termKey)
	switch r.Kind {
	case engine.KindConv:
		p.numbers.in(t).delete(r.Key)
	case engine.KindRecord:
		t.countChanges.add(r, -1)
	}
}
