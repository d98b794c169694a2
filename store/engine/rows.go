package engine

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// CardRow is a stored card with the number of its newest change.
type CardRow struct {
	store.Card
	Change uint64
}

// EncodeCard returns the stored form of a card.
func EncodeCard(c CardRow) []byte {
	p := newPacker()
	defer p.free()
	b := make([]byte, 0, 512)
	b = append(b, rowVersion)
	b = AppendU64(b, uint64(c.Rev))
	b = appendTime(b, c.Expires)
	b = appendTime(b, c.ReservedUntil)
	b = append(b, flag(c.Withdrawn))
	b = AppendU64(b, c.Change)
	b = appendTime(b, c.Registered)
	b = appendTime(b, c.Updated)
	p.fields = appendTexts(p.fields, c.Terms)
	b = appendBytes(b, p.pack())
	p.fields = append(p.fields, c.Owner[:]...) // which is a part of a text in Counts
	p.fields = appendTexts(p.fields, c.Counts)
	p.fields = appendBytes(p.fields, c.ID)
	p.fields = appendBytes(p.fields, c.Body)
	p.fields = appendBytes(p.fields, c.Meta)
	return append(b, p.pack()...)
}

// cardHead decodes the fields of a card before its terms.
func (r *reader) cardHead(seq uint64) (c CardRow) {
	c.Seq = seq
	c.Rev = store.Rev(r.u64())
	c.Expires = r.time()
	c.ReservedUntil = r.time()
	c.Withdrawn = r.byte() == 1
	c.Change = r.u64()
	c.Registered = r.time()
	c.Updated = r.time()
	return c
}

// DecodeCard decodes the row of the card with this sequence number.
func DecodeCard(seq uint64, row []byte) (CardRow, error) {
	r := readRow(row)
	c := r.cardHead(seq)
	terms := reader{b: r.bytes(), err: r.err}
	terms.unpack(nil)
	c.Terms = terms.texts()
	r.unpack(nil)
	c.Owner = r.hash()
	c.Counts = r.texts()
	c.ID = r.text()
	c.Body = r.bytes()
	c.Meta = r.bytes()
	if err := cmp.Or(terms.end(), r.end()); err != nil {
		return CardRow{}, fmt.Errorf("card %d: %w", seq, err)
	}
	return c, nil
}

// CardHead is what the index needs of a card.
type CardHead struct {
	Terms     [][]byte // valid until the next Decode
	Expires   int64    // as [Deadline] returns it
	Withdrawn bool

	unpacked []byte
}

// Decode decodes a row up to its terms.
func (h *CardHead) Decode(seq uint64, row []byte) error {
	r := readRow(row)
	c := r.cardHead(seq)
	h.Expires, h.Withdrawn = Deadline(c.Expires), c.Withdrawn
	r = reader{b: r.bytes(), err: r.err}
	r.unpack(h.unpacked)
	h.unpacked = r.b
	h.Terms = r.spans(h.Terms[:0])
	if err := r.end(); err != nil {
		return fmt.Errorf("card %d: %w", seq, err)
	}
	return nil
}

// CopyTerms copies terms of a row.
func CopyTerms(terms [][]byte) []string {
	texts := make([]string, len(terms))
	for i, term := range terms {
		texts[i] = string(term)
	}
	return texts
}

// decodeCardForList decodes a row without its terms and counts. Its cards share the array of *buf, for which more says how
// many cards follow. A new array for several cards has at most block bytes.
func decodeCardForList(buf *[]byte, more, block int, seq uint64, row []byte) (store.Card, error) {
	r := readRow(row)
	c := r.cardHead(seq)
	r.bytes() // terms
	size, from := r.unpackedLen(), len(*buf)
	if cap(*buf)-from < size {
		*buf, from = make([]byte, 0, max(size, min(size*(1+more), block))), 0
	}
	r.unpack((*buf)[from:from])
	if r.err == nil {
		*buf = (*buf)[:from+size]
	}
	c.Owner = r.hash()
	r.bytes() // counts
	c.ID = r.text()
	c.Body = r.bytes()
	c.Meta = r.bytes()
	if err := r.end(); err != nil {
		return store.Card{}, fmt.Errorf("card %d: %w", seq, err)
	}
	return c.Card, nil
}

// maxShared bounds what stays in memory if a caller keeps one card of a list whose memory is not used again.
const maxShared = 16 << 10

// IsCardLive reports whether a card is live at now. It reads only the head of the row.
func IsCardLive(row []byte, now time.Time) bool {
	// The head is the version (1 byte), rev (8), expires (8), reserved until (8) and flags (1).
	if len(row) < 26 || row[0] != rowVersion || row[25] == 1 {
		return false
	}
	expires := int64(binary.BigEndian.Uint64(row[9:]))
	return expires == NoTime || Nanos(now) < expires
}

// ChangeRow is a stored line of the feed of card changes, with the sequence number of the card.
type ChangeRow struct {
	store.CardChange
	Seq uint64
}

// EncodeChange returns the stored form of a line of the feed.
func EncodeChange(c ChangeRow) []byte {
	b := []byte{rowVersion}
	b = AppendU64(b, c.Seq)
	b = appendTime(b, c.At)
	b = append(b, flag(c.Gone)+flag(c.Withdrawn)) // 2 if withdrawn, because Gone is then true as well
	return appendBytes(b, c.ID)
}

// DecodeChange decodes a line of the feed.
func DecodeChange(number uint64, row []byte) (ChangeRow, error) {
	r := readRow(row)
	var c ChangeRow
	c.Change = number
	c.Seq = r.u64()
	c.At = r.time()
	flags := r.byte() // 1: gone, 2: gone because it was withdrawn
	c.Gone, c.Withdrawn = flags > 0, flags > 1
	c.ID = r.text()
	if err := r.end(); err != nil {
		return ChangeRow{}, fmt.Errorf("change %d: %w", number, err)
	}
	return c, nil
}

// EncodeConv returns the stored form of a conversation.
func EncodeConv(c store.Conversation) []byte {
	p := newPacker()
	defer p.free()
	p.fields = appendBytes(p.fields, c.Key.Peer)
	p.fields = appendBytes(p.fields, c.Key.ID)
	p.fields = appendTexts(p.fields, c.Terms)
	p.fields = appendBytes(p.fields, c.Body)
	b := make([]byte, 0, 96)
	b = append(b, rowVersion)
	b = AppendU64(b, uint64(c.Rev))
	b = appendTime(b, c.Expires)
	b = append(b, flag(c.Open))
	b = appendTime(b, c.Updated)
	b = append(b, c.Chain[:]...)
	b = binary.AppendUvarint(b, c.Entries)
	return append(b, p.pack()...)
}

// DecodeConv decodes the row of the conversation with this sequence number.
func DecodeConv(seq uint64, row []byte) (store.Conversation, error) {
	r := readRow(row)
	var c store.Conversation
	c.Seq = seq
	c.Rev = store.Rev(r.u64())
	c.Expires = r.time()
	c.Open = r.byte() == 1
	c.Updated = r.time()
	c.Chain = r.hash()
	c.Entries = r.uint()
	r.unpack(nil)
	c.Key.Peer = r.text()
	c.Key.ID = r.text()
	c.Terms = r.texts()
	c.Body = r.bytes()
	if err := r.end(); err != nil {
		return store.Conversation{}, fmt.Errorf("conversation %d: %w", seq, err)
	}
	return c, nil
}

// EntryRow is a stored entry, with the hash of the replay record (see [ReplayRow]) that was stored with it, if any.
type EntryRow struct {
	store.Entry
	Replay []byte
}

// EncodeEntry returns the stored form of an entry of a transcript.
func EncodeEntry(e EntryRow) []byte {
	p := newPacker()
	defer p.free()
	p.fields = appendBytes(p.fields, e.Replay)
	p.fields = appendBytes(p.fields, e.MessageID)
	p.fields = appendBytes(p.fields, e.Raw)
	p.fields = appendBytes(p.fields, e.Key)
	p.fields = appendBytes(p.fields, e.Author)
	b := make([]byte, 0, 96)
	b = append(b, rowVersion, flag(e.Out))
	b = appendTime(b, e.At)
	b = append(b, e.Digest[:]...)
	b = append(b, e.Chain[:]...)
	return append(b, p.pack()...)
}

// DecodeEntry decodes entry n of a transcript.
func DecodeEntry(n uint64, row []byte) (EntryRow, error) {
	r := readRow(row)
	var e EntryRow
	e.N = n
	e.Out = r.byte() == 1
	e.At = r.time()
	e.Digest = r.hash()
	e.Chain = r.hash()
	r.unpack(nil)
	e.Replay = r.bytes()
	e.MessageID = r.text()
	e.Raw = r.bytes()
	e.Key = r.bytes()
	e.Author = r.text()
	if err := r.end(); err != nil {
		return EntryRow{}, fmt.Errorf("entry %d: %w", n, err)
	}
	return e, nil
}

// ReplayRow is a stored replay record: what we keep about an accepted message to recognize a repeat. ConvSeq is the
// sequence number of its conversation. A later conversation with the same key has another number, so an expired record
// does not become valid again.
type ReplayRow struct {
	store.Replay
	ConvSeq uint64
	Entry   uint64 // the entry of the transcript that holds the answer; 0 if Answer holds it
}

// forget removes the answer, because the conversation is gone.
func (p *ReplayRow) forget() { p.Status, p.Answer, p.Entry = 0, nil, 0 }

// EncodeReplay returns the stored form of a replay record.
func EncodeReplay(p ReplayRow) []byte {
	t := newPacker()
	defer t.free()
	t.fields = appendBytes(t.fields, p.Conv.Peer)
	t.fields = appendBytes(t.fields, p.Conv.ID)
	t.fields = appendBytes(t.fields, p.Sender)
	t.fields = appendBytes(t.fields, p.MessageID)
	t.fields = appendBytes(t.fields, p.Answer)
	b := make([]byte, 0, 64)
	b = append(b, rowVersion)
	b = appendTime(b, p.Expires)
	b = AppendU64(b, p.ConvSeq)
	b = append(b, p.Digest[:]...)
	b = binary.AppendUvarint(b, uint64(p.Status))
	b = binary.AppendUvarint(b, p.Entry)
	return append(b, t.pack()...)
}

// DecodeReplay decodes a replay record.
func DecodeReplay(row []byte) (ReplayRow, error) {
	r := readRow(row)
	var p ReplayRow
	p.Expires = r.time()
	p.ConvSeq = r.u64()
	p.Digest = r.hash()
	p.Status = int(r.uint())
	p.Entry = r.uint()
	r.unpack(nil)
	p.Conv.Peer = r.text()
	p.Conv.ID = r.text()
	p.Sender = r.text()
	p.MessageID = r.text()
	p.Answer = r.bytes()
	if err := r.end(); err != nil {
		return ReplayRow{}, fmt.Errorf("replay record: %w", err)
	}
	return p, nil
}

// EncodeRecord returns the stored form of a record.
func EncodeRecord(rec store.Record) []byte {
	p := newPacker()
	defer p.free()
	p.fields = appendBytes(p.fields, rec.Party)
	p.fields = appendBytes(p.fields, rec.Lane)
	p.fields = appendTexts(p.fields, rec.Terms)
	p.fields = appendBytes(p.fields, rec.Body)
	b := make([]byte, 0, 32)
	b = append(b, rowVersion)
	b = AppendU64(b, uint64(rec.Rev))
	b = appendTime(b, rec.Expires)
	b = appendTime(b, rec.Due)
	return append(b, p.pack()...)
}

// DecodeRecord decodes the row of a record.
func DecodeRecord(ns, key string, row []byte) (store.Record, error) {
	r := readRow(row)
	rec := store.Record{NS: ns, Key: key}
	rec.Rev = store.Rev(r.u64())
	rec.Expires = r.time()
	rec.Due = r.time()
	r.unpack(nil)
	rec.Party = r.text()
	rec.Lane = r.text()
	rec.Terms = r.texts()
	rec.Body = r.bytes()
	if err := r.end(); err != nil {
		return store.Record{}, fmt.Errorf("record %q %q: %w", ns, key, err)
	}
	return rec, nil
}
