// Package cursor makes the cursors with which clients page through the lists of a directory (AM-54), and keeps the key
// that authenticates them.
package cursor

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"sync"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	macSize   = 16   // bytes of the HMAC
	maxCursor = 2048 // bytes; the longest cursor, for a name of 128 escaped characters, has 1,124
	recordKey = "cursor-key"
)

// Doc is the content of a cursor (AM-54). In a list of cards or changes, Seq and Tier are the position; Last is the id
// of the last card and only helps debugging. In a list of names, Last is the position: the last name.
type Doc struct {
	Last    string `json:"last"`
	Seq     uint64 `json:"seq"`
	Tier    int    `json:"tier,omitempty"`
	Filters []byte `json:"f"`
	MAC     []byte `json:"mac"`
}

// seal encodes a cursor: URL-safe base64 of JSON whose last member authenticates the others.
func (d Doc) seal(key []byte) string {
	mac := hmac.New(sha256.New, key)
	HashFields(mac, "agentmesh-cursor-v1", d.Last, strconv.FormatUint(d.Seq, 10), strconv.Itoa(d.Tier), string(d.Filters))
	d.MAC = mac.Sum(nil)[:macSize]
	return base64.RawURLEncoding.EncodeToString(wire.MustMarshal(d))
}

// Position returns the position in a list of cards or changes.
func (d Doc) Position() store.Position { return store.Position{Tier: d.Tier, Seq: d.Seq} }

// HashFields hashes texts with their lengths, so that no two lists of texts hash alike.
func HashFields(h hash.Hash, texts ...string) {
	for _, s := range texts {
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(s))
	}
}

// parse decodes a cursor. It accepts only the exact text that seal writes, so that no changed byte passes.
func parse(text string, key []byte) (Doc, error) {
	if len(text) > maxCursor {
		return Doc{}, errors.New("the cursor is too long")
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return Doc{}, err
	}
	var d Doc
	if err := json.Unmarshal(data, &d); err != nil {
		return Doc{}, err
	}
	if subtle.ConstantTimeCompare([]byte(d.seal(key)), []byte(text)) != 1 {
		return Doc{}, errors.New("the cursor was altered, or comes from another directory")
	}
	return d, nil
}

// Filters identifies the filters of a query; see [HashFilters].
type Filters [12]byte

// HashFilters identifies a query by the terms that must all match, the prefixes of capabilities, and the words of its
// text: the whole words and the last one, prefix. The caller sorts and folds them, so neither order nor letter case
// counts. The limit does not count either: a client may change it from page to page.
func HashFilters(all, prefixes, whole []string, prefix string) (sum Filters) {
	h := sha256.New()
	HashFields(h, all...)
	HashFields(h, "q")
	HashFields(h, whole...)
	HashFields(h, prefix)
	HashFields(h, "prefixes")
	HashFields(h, prefixes...)
	copy(sum[:], h.Sum(nil))
	return sum
}

// Key is the HMAC key of cursors, of relay ids, and of the ids and tokens of the A2A relay. It is stored, so that
// cursors and ids stay valid after a restart, and at every instance of the directory.
type Key struct {
	records store.Records
	ns      string

	mu  sync.Mutex
	key []byte
}

// NewKey returns the key that is stored in the namespace ns. The first call of Get makes it.
func NewKey(records store.Records, ns string) *Key { return &Key{records: records, ns: ns} }

// Seal returns a cursor of a list with these filters. last is the id of the card at pos, or the last name.
func (k *Key) Seal(ctx context.Context, last string, pos store.Position, filters Filters) (string, error) {
	key, err := k.Get(ctx)
	if err != nil {
		return "", err
	}
	return Doc{Last: last, Seq: pos.Seq, Tier: pos.Tier, Filters: filters[:]}.seal(key), nil
}

// Open returns the content of a cursor. It returns [wire.ErrCursor] unless this directory made it for these filters.
func (k *Key) Open(ctx context.Context, text string, filters Filters) (Doc, error) {
	key, err := k.Get(ctx)
	if err != nil {
		return Doc{}, err
	}
	d, err := parse(text, key)
	if err != nil {
		return Doc{}, wire.ErrCursor.Because(err)
	}
	if subtle.ConstantTimeCompare(d.Filters, filters[:]) != 1 {
		return Doc{}, wire.ErrCursor.Because(errors.New("the cursor belongs to other filters"))
	}
	return d, nil
}

// Get returns the key.
func (k *Key) Get(ctx context.Context) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return k.key, nil
	}
	now := wire.Now()
	rec, err := k.records.Get(ctx, k.ns, recordKey, now)
	if errors.Is(err, store.ErrNotFound) {
		newKey := make([]byte, sha256.Size)
		rand.Read(newKey) // never fails: crypto/rand
		err = k.records.Apply(ctx, []store.Change{{Record: store.Record{NS: k.ns, Key: recordKey, Body: newKey}}}, now)
		if err == nil || errors.Is(err, store.ErrConflict) { // on a conflict another instance was faster
			rec, err = k.records.Get(ctx, k.ns, recordKey, now)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load cursor key: %w", err)
	}
	k.key = rec.Body
	return k.key, nil
}
