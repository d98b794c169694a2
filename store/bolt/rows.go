package bolt

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// cardRow is a stored card with the number of its newest change.
type cardRow struct {
	store.Card
	change uint64
}

func encodeCard(c cardRow) []byte {
	b := make([]byte, 0, 192+len(c.Body)+len(c.Meta)+24*len(c.Terms))
	b = append(b, rowVersion)
	b = appendU64(b, uint64(c.Rev))
	b = appendTime(b, c.Expires)
	b = appendTime(b, c.ReservedUntil)
	b = append(b, flag(c.Withdrawn))
	b = appendU64(b, c.change)
	b = append(b, c.Owner[:]...)
	b = appendTime(b, c.Registered)
	b = appendTime(b, c.Updated)
	b = appendBytes(b, c.ID)
	b = appendTexts(b, c.Terms)
	b = appendTexts(b, c.Counts)
	b = appendBytes(b, c.Body)
	return appendBytes(b, c.Meta)
}

func decodeCard(seq uint64, row []byte) (cardRow, error) {
	r := readRow(row)
	var c cardRow
	c.Seq = seq
	c.Rev = store.Rev(r.u64())
	c.Expires = r.time()
	c.ReservedUntil = r.time()
	c.Withdrawn = r.byte() == 1
	c.change = r.u64()
	c.Owner = r.hash()
	c.Registered = r.time()
	c.Updated = r.time()
	c.ID = r.text()
	c.Terms = r.texts()
	c.Counts = r.texts()
	c.Body = r.bytes()
	c.Meta = r.bytes()
	if err := r.end(); err != nil {
		return cardRow{}, fmt.Errorf("card %d: %w", seq, err)
	}
	return c, nil
}

// cardHead is the part of a card that the index needs.
type cardHead struct {
	terms     []string
	expires   int64
	withdrawn bool
}

// decodeCardHead decodes a row up to its terms, without copying the rest.
func decodeCardHead(seq uint64, row []byte) (cardHead, error) {
	if len(row) == 0 || row[0] != rowVersion {
		return cardHead{}, fmt.Errorf("%w: card %d has an unknown version", ErrDamaged, seq)
	}
	r := reader{b: row[1:]}
	r.u64()
	h := cardHead{expires: int64(r.u64())}
	if h.expires == noTime {
		h.expires = never
	}
	r.time()
	h.withdrawn = r.byte() == 1
	r.take(8 + 32 + 8 + 8)
	r.take(r.uint())
	h.terms = r.texts()
	if r.err != nil {
		return cardHead{}, fmt.Errorf("%w: card %d: %w", ErrDamaged, seq, r.err)
	}
	return h, nil
}

// cardTerms appends the terms of a row to dst. They are slices of the row and must not outlive the transaction.
func cardTerms(dst [][]byte, seq uint64, row []byte) ([][]byte, error) {
	if len(row) == 0 || row[0] != rowVersion {
		return nil, fmt.Errorf("%w: card %d has an unknown version", ErrDamaged, seq)
	}
	r := reader{b: row[1:]}
	r.take(cardFixed)
	r.take(r.uint())
	dst = r.spans(dst)
	if r.err != nil {
		return nil, fmt.Errorf("%w: card %d: %w", ErrDamaged, seq, r.err)
	}
	return dst, nil
}

// cardFixed is the size of the fields between the version and the id of a card: rev, expires, reserved until, flags,
// change, owner, registered and updated.
const cardFixed = 8 + 8 + 8 + 1 + 8 + 32 + 8 + 8

// decodeCardForList decodes a row without its terms and counts, which lists do not contain and which are a large part
// of the row.
func decodeCardForList(seq uint64, row []byte) (store.Card, error) {
	r := reader{b: row[1:]} // cardTerms has checked the version
	c := store.Card{Seq: seq, Rev: store.Rev(r.u64()), Expires: r.time(), ReservedUntil: r.time()}
	c.Withdrawn = r.byte() == 1
	r.u64()
	c.Owner = r.hash()
	c.Registered, c.Updated = r.time(), r.time()
	c.ID = r.text()
	r.take(r.uint())
	r.take(r.uint())
	r.b = append([]byte(nil), r.b...) // copy the rest, because body and meta outlive the transaction
	c.Body = r.bytes()
	c.Meta = r.bytes()
	if err := r.end(); err != nil {
		return store.Card{}, fmt.Errorf("card %d: %w", seq, err)
	}
	return c, nil
}

// cardLive reports whether a card is live at now. It reads only the head of the row.
func cardLive(row []byte, now time.Time) bool {
	if len(row) < 26 || row[0] != rowVersion || row[25] == 1 {
		return false
	}
	expires := int64(binary.BigEndian.Uint64(row[9:]))
	return expires == noTime || nanos(now) < expires
}

type changeRow struct {
	store.CardChange
	seq uint64
}

func encodeChange(c changeRow) []byte {
	b := []byte{rowVersion}
	b = appendU64(b, c.seq)
	b = appendTime(b, c.At)
	b = append(b, flag(c.Gone)+flag(c.Withdrawn)) // a withdrawn card is gone as well: 2
	return appendBytes(b, c.ID)
}

func decodeChange(number uint64, row []byte) (changeRow, error) {
	r := readRow(row)
	var c changeRow
	c.Change = number
	c.seq = r.u64()
	c.At = r.time()
	flags := r.byte() // 1: gone, 2: gone because it was withdrawn
	c.Gone, c.Withdrawn = flags > 0, flags > 1
	c.ID = r.text()
	if err := r.end(); err != nil {
		return changeRow{}, fmt.Errorf("change %d: %w", number, err)
	}
	return c, nil
}

func encodeConv(c store.Conversation) []byte {
	b := make([]byte, 0, 128+len(c.Key.Peer)+len(c.Key.ID)+len(c.Body))
	b = append(b, rowVersion)
	b = appendU64(b, uint64(c.Rev))
	b = appendTime(b, c.Expires)
	b = append(b, flag(c.Open))
	b = appendTime(b, c.Updated)
	b = append(b, c.Chain[:]...)
	b = binary.AppendUvarint(b, c.Entries)
	b = appendBytes(b, c.Key.Peer)
	b = appendBytes(b, c.Key.ID)
	b = appendTexts(b, c.Terms)
	return appendBytes(b, c.Body)
}

func decodeConv(seq uint64, row []byte) (store.Conversation, error) {
	r := readRow(row)
	var c store.Conversation
	c.Seq = seq
	c.Rev = store.Rev(r.u64())
	c.Expires = r.time()
	c.Open = r.byte() == 1
	c.Updated = r.time()
	c.Chain = r.hash()
	c.Entries = r.uint()
	c.Key.Peer = r.text()
	c.Key.ID = r.text()
	c.Terms = r.texts()
	c.Body = r.bytes()
	if err := r.end(); err != nil {
		return store.Conversation{}, fmt.Errorf("conversation %d: %w", seq, err)
	}
	return c, nil
}

// entryRow is a stored entry, with the hash of the replay record that was stored with it, if any.
type entryRow struct {
	store.Entry
	replay []byte
}

func encodeEntry(e entryRow) []byte {
	b := make([]byte, 0, 112+len(e.MessageID)+len(e.Raw)+len(e.Key))
	version := byte(rowVersion)
	if len(e.Key) > 0 {
		version = keyedVersion
	}
	b = append(b, version, flag(e.Out))
	b = appendTime(b, e.At)
	b = append(b, e.Digest[:]...)
	b = append(b, e.Chain[:]...)
	b = appendBytes(b, e.replay)
	b = appendBytes(b, e.MessageID)
	b = appendBytes(b, e.Raw)
	if version == keyedVersion {
		b = appendBytes(b, e.Key)
	}
	return b
}

func decodeEntry(n uint64, row []byte) (entryRow, error) {
	r, version := readVersions(row, keyedVersion)
	var e entryRow
	e.N = n
	e.Out = r.byte() == 1
	e.At = r.time()
	e.Digest = r.hash()
	e.Chain = r.hash()
	e.replay = r.bytes()
	e.MessageID = r.text()
	e.Raw = r.bytes()
	if version == keyedVersion {
		if e.Key = r.bytes(); len(e.Key) == 0 && r.err == nil {
			r.err = errRow
		}
	}
	if err := r.end(); err != nil {
		return entryRow{}, fmt.Errorf("entry %d: %w", n, err)
	}
	return e, nil
}

// replayRow is a stored replay record, with the seq of its conversation. A later conversation with the same key has
// another seq, and so does not make the record live again.
type replayRow struct {
	store.Replay
	convSeq uint64
}

func encodeReplay(p replayRow) []byte {
	b := make([]byte, 0, 104+len(p.Conv.Peer)+len(p.Conv.ID)+len(p.Sender)+len(p.MessageID)+len(p.Answer))
	b = append(b, rowVersion)
	b = appendTime(b, p.Expires)
	b = appendU64(b, p.convSeq)
	b = append(b, p.Digest[:]...)
	b = binary.AppendUvarint(b, uint64(p.Status))
	b = appendBytes(b, p.Conv.Peer)
	b = appendBytes(b, p.Conv.ID)
	b = appendBytes(b, p.Sender)
	b = appendBytes(b, p.MessageID)
	return appendBytes(b, p.Answer)
}

func decodeReplay(row []byte) (replayRow, error) {
	r := readRow(row)
	var p replayRow
	p.Expires = r.time()
	p.convSeq = r.u64()
	p.Digest = r.hash()
	p.Status = int(r.uint())
	p.Conv.Peer = r.text()
	p.Conv.ID = r.text()
	p.Sender = r.text()
	p.MessageID = r.text()
	p.Answer = r.bytes()
	if err := r.end(); err != nil {
		return replayRow{}, fmt.Errorf("replay record: %w", err)
	}
	return p, nil
}

func encodeRecord(rec store.Record) []byte {
	b := make([]byte, 0, 64+len(rec.Body))
	b = append(b, rowVersion)
	b = appendU64(b, uint64(rec.Rev))
	b = appendTime(b, rec.Expires)
	b = appendTexts(b, rec.Terms)
	return appendBytes(b, rec.Body)
}

func decodeRecord(ns, key string, row []byte) (store.Record, error) {
	r := readRow(row)
	rec := store.Record{NS: ns, Key: key}
	rec.Rev = store.Rev(r.u64())
	rec.Expires = r.time()
	rec.Terms = r.texts()
	rec.Body = r.bytes()
	if err := r.end(); err != nil {
		return store.Record{}, fmt.Errorf("record %q %q: %w", ns, key, err)
	}
	return rec, nil
}
