package engine

import (
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
	b := make([]byte, 0, 192+len(c.Body)+len(c.Meta)+24*len(c.Terms))
	b = append(b, rowVersion)
	b = AppendU64(b, uint64(c.Rev))
	b = appendTime(b, c.Expires)
	b = appendTime(b, c.ReservedUntil)
	b = append(b, flag(c.Withdrawn))
	b = AppendU64(b, c.Change)
	b = append(b, c.Owner[:]...)
	b = appendTime(b, c.Registered)
	b = appendTime(b, c.Updated)
	b = appendBytes(b, c.ID)
	b = appendTexts(b, c.Terms)
	b = appendTexts(b, c.Counts)
	b = appendBytes(b, c.Body)
	return appendBytes(b, c.Meta)
}

// DecodeCard decodes the row of the card with this sequence number.
func DecodeCard(seq uint64, row []byte) (CardRow, error) {
	r := readRow(row)
	var c CardRow
	c.Seq = seq
	c.Rev = store.Rev(r.u64())
	c.Expires = r.time()
	c.ReservedUntil = r.time()
	c.Withdrawn = r.byte() == 1
	c.Change = r.u64()
	c.Owner = r.hash()
	c.Registered = r.time()
	c.Updated = r.time()
	c.ID = r.text()
	c.Terms = r.texts()
	c.Counts = r.texts()
	c.Body = r.bytes()
	c.Meta = r.bytes()
	if err := r.end(); err != nil {
		return CardRow{}, fmt.Errorf("card %d: %w", seq, err)
	}
	return c, nil
}

// CardHead is what the index needs of a card. The terms are slices of the row and must not outlive the transaction.
type CardHead struct {
	Terms     [][]byte
	Expires   int64 // as [Deadline] returns it
	Withdrawn bool
}

// DecodeCardHead decodes a row up to its terms, which it appends to dst.
func DecodeCardHead(dst [][]byte, seq uint64, row []byte) (CardHead, error) {
	if len(row) == 0 || row[0] != rowVersion {
		return CardHead{}, fmt.Errorf("%w: card %d has an unknown version", store.ErrDamaged, seq)
	}
	r := reader{b: row[1:]}
	r.u64() // rev
	h := CardHead{Expires: int64(r.u64())}
	if h.Expires == NoTime {
		h.Expires = Never
	}
	r.u64() // reserved until
	h.Withdrawn = r.byte() == 1
	r.take(8 + 32 + 8 + 8) // change, owner, registered, updated
	r.take(r.uint())       // id
	h.Terms = r.spans(dst)
	if r.err != nil {
		return CardHead{}, fmt.Errorf("%w: card %d: %w", store.ErrDamaged, seq, r.err)
	}
	return h, nil
}

// CopyTerms copies terms of a row.
func CopyTerms(terms [][]byte) []string {
	texts := make([]string, len(terms))
	for i, term := range terms {
		texts[i] = string(term)
	}
	return texts
}

// decodeCardForList decodes a row without its terms and counts, which are a large part of the row. Its cards share the
// array of *buf, for which more says how many cards follow.
func decodeCardForList(buf *[]byte, more int, seq uint64, row []byte) (store.Card, error) {
	r := reader{b: row[1:]} // DecodeCardHead has checked the version
	c := store.Card{Seq: seq, Rev: store.Rev(r.u64()), Expires: r.time(), ReservedUntil: r.time()}
	c.Withdrawn = r.byte() == 1
	r.u64() // change
	c.Owner = r.hash()
	c.Registered, c.Updated = r.time(), r.time()
	c.ID = r.text()
	r.take(r.uint()) // terms
	r.take(r.uint()) // counts
	// Copy the rest, because body and meta outlive the transaction.
	if size := len(r.b); cap(*buf)-len(*buf) < size {
		*buf = make([]byte, 0, max(size, min(size*(1+more), maxShared)))
	}
	from := len(*buf)
	*buf = append(*buf, r.b...)
	r.b = (*buf)[from:]
	c.Body = r.bytes()
	c.Meta = r.bytes()
	if err := r.end(); err != nil {
		return store.Card{}, fmt.Errorf("card %d: %w", seq, err)
	}
	return c, nil
}

// maxShared bounds what stays in memory if a caller keeps one card of a list.
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
	b := make([]byte, 0, 128+len(c.Key.Peer)+len(c.Key.ID)+len(c.Body))
	b = append(b, rowVersion)
	b = AppendU64(b, uint64(c.Rev))
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
	b := make([]byte, 0, 120+len(e.MessageID)+len(e.Raw)+len(e.Key))
	b = append(b, rowVersion, flag(e.Out))
	b = appendTime(b, e.At)
	b = append(b, e.Digest[:]...)
	b = append(b, e.Chain[:]...)
	b = appendBytes(b, e.Replay)
	b = appendBytes(b, e.MessageID)
	b = appendBytes(b, e.Raw)
	b = appendBytes(b, e.Key)
	return appendBytes(b, e.Author)
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
	b := make([]byte, 0, 104+len(p.Conv.Peer)+len(p.Conv.ID)+len(p.Sender)+len(p.MessageID)+len(p.Answer))
	b = append(b, rowVersion)
	b = appendTime(b, p.Expires)
	b = AppendU64(b, p.ConvSeq)
	b = append(b, p.Digest[:]...)
	b = binary.AppendUvarint(b, uint64(p.Status))
	b = appendBytes(b, p.Conv.Peer)
	b = appendBytes(b, p.Conv.ID)
	if p.Sender == p.Conv.Peer {
		b = appendBytes(b, "")
	} else {
		b = appendBytes(b, p.Sender)
	}
	b = appendBytes(b, p.MessageID)
	b = binary.AppendUvarint(b, p.Entry)
	return appendBytes(b, p.Answer)
}

// DecodeReplay decodes a replay record.
func DecodeReplay(row []byte) (ReplayRow, error) {
	r := readRow(row)
	var p ReplayRow
	p.Expires = r.time()
	p.ConvSeq = r.u64()
	p.Digest = r.hash()
	p.Status = int(r.uint())
	p.Conv.Peer = r.text()
	p.Conv.ID = r.text()
	if p.Sender = r.text(); p.Sender == "" {
		p.Sender = p.Conv.Peer
	}
	p.MessageID = r.text()
	p.Entry = r.uint()
	p.Answer = r.bytes()
	if err := r.end(); err != nil {
		return ReplayRow{}, fmt.Errorf("replay record: %w", err)
	}
	return p, nil
}

// EncodeRecord returns the stored form of a record.
func EncodeRecord(rec store.Record) []byte {
	b := make([]byte, 0, 64+len(rec.Body))
	b = append(b, rowVersion)
	b = AppendU64(b, uint64(rec.Rev))
	b = appendTime(b, rec.Expires)
	b = appendTime(b, rec.Due)
	b = appendBytes(b, rec.Party)
	b = appendBytes(b, rec.Lane)
	b = appendTexts(b, rec.Terms)
	return appendBytes(b, rec.Body)
}

// DecodeRecord decodes the row of a record.
func DecodeRecord(ns, key string, row []byte) (store.Record, error) {
	r := readRow(row)
	rec := store.Record{NS: ns, Key: key}
	rec.Rev = store.Rev(r.u64())
	rec.Expires = r.time()
	rec.Due = r.time()
	rec.Party = r.text()
	rec.Lane = r.text()
	rec.Terms = r.texts()
	rec.Body = r.bytes()
	if err := r.end(); err != nil {
		return store.Record{}, fmt.Errorf("record %q %q: %w", ns, key, err)
	}
	return rec, nil
}
