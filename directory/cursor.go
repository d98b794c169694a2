package directory

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
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	filterSize   = 12 // bytes of the filters' hash
	macSize      = 16 // bytes of the HMAC
	maxCursor    = 1024
	cursorRecord = "cursor-key"
)

// cursorDoc is a cursor's content (AM-54). Last is there for people; Seq and Tier are the position.
type cursorDoc struct {
	Last    string `json:"last"`
	Seq     uint64 `json:"seq"`
	Tier    int    `json:"tier,omitempty"`
	Filters []byte `json:"f"`
	MAC     []byte `json:"mac"`
}

// seal writes a cursor: URL-safe base64 of JSON whose last member authenticates the others.
func (d cursorDoc) seal(key []byte) string {
	mac := hmac.New(sha256.New, key)
	field(mac, "agentmesh-cursor-v1", d.Last, strconv.FormatUint(d.Seq, 10), strconv.Itoa(d.Tier), string(d.Filters))
	d.MAC = mac.Sum(nil)[:macSize]
	data, err := json.Marshal(d)
	if err != nil {
		panic("directory: encode cursor: " + err.Error()) // strings, numbers and bytes
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// field writes texts so that no two lists of them are written alike.
func field(h hash.Hash, texts ...string) {
	for _, s := range texts {
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(s))
	}
}

// parseCursor opens a cursor. Only the very text that seal writes is taken, so that a changed byte never passes,
// wherever it stands.
func parseCursor(text string, key []byte) (cursorDoc, error) {
	if len(text) > maxCursor {
		return cursorDoc{}, errors.New("too long")
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return cursorDoc{}, err
	}
	var d cursorDoc
	if err := json.Unmarshal(data, &d); err != nil {
		return cursorDoc{}, err
	}
	if subtle.ConstantTimeCompare([]byte(d.seal(key)), []byte(text)) != 1 {
		return cursorDoc{}, errors.New("altered, or of another directory")
	}
	return d, nil
}

// filterHash names a query's filters, whatever order or spelling they came in. The limit is none of them: a
// client may change it from page to page.
func filterHash(all, prefixes, whole []string, prefix string) (sum [filterSize]byte) {
	h := sha256.New()
	field(h, all...)
	field(h, "q")
	field(h, whole...)
	field(h, prefix)
	if len(prefixes) > 0 { // without them the hash is what it was before there were any: cursors do not age
		field(h, "prefixes")
		field(h, prefixes...)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// cursor returns the cursor behind the card last at pos.
func (r *Registry) cursor(ctx context.Context, last string, pos store.Position, p plan, now time.Time) (string, error) {
	key, err := r.cursors.get(ctx, r.recs, now)
	if err != nil {
		return "", err
	}
	return cursorDoc{Last: last, Seq: pos.Seq, Tier: pos.Tier, Filters: p.filters[:]}.seal(key), nil
}

// openCursor returns the position of a cursor that was given out for the same filters, else [wire.ErrCursor].
func (r *Registry) openCursor(ctx context.Context, text string, p plan, now time.Time) (store.Position, error) {
	d, err := r.openDoc(ctx, text, p, now)
	return store.Position{Tier: d.Tier, Seq: d.Seq}, err
}

func (r *Registry) openDoc(ctx context.Context, text string, p plan, now time.Time) (cursorDoc, error) {
	key, err := r.cursors.get(ctx, r.recs, now)
	if err != nil {
		return cursorDoc{}, err
	}
	d, err := parseCursor(text, key)
	if err != nil {
		return cursorDoc{}, wire.ErrCursor.Because(err)
	}
	if subtle.ConstantTimeCompare(d.Filters, p.filters[:]) != 1 {
		return cursorDoc{}, wire.ErrCursor.Because(errors.New("of other filters"))
	}
	return d, nil
}

// cursorKey is the key of the cursors' HMAC. It lives in the store, so that cursors outlive the process and
// several instances share them; it is read once.
type cursorKey struct {
	mu  sync.Mutex
	key []byte
}

// makeCursorKey stores the key of the cursors before the first list needs it, so that a list still has a next page
// after the disk has become full.
func (r *Registry) makeCursorKey(ctx context.Context) {
	if _, err := r.cursors.get(ctx, r.recs, clock()); err != nil && ctx.Err() == nil {
		r.log.Error("no key for cursors yet: lists that need a second page fail until there is one", "err", err)
	}
}

func (k *cursorKey) get(ctx context.Context, recs store.Records, now time.Time) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key != nil {
		return k.key, nil
	}
	rec, err := recs.Get(ctx, recordNS, cursorRecord, now)
	if errors.Is(err, store.ErrNotFound) {
		fresh := make([]byte, sha256.Size)
		rand.Read(fresh) // never fails: crypto/rand
		err = recs.Apply(ctx, []store.Change{{Record: store.Record{NS: recordNS, Key: cursorRecord, Body: fresh}}}, now)
		if err == nil || errors.Is(err, store.ErrConflict) { // with a conflict, another instance was faster
			rec, err = recs.Get(ctx, recordNS, cursorRecord, now)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load cursor key: %w", err)
	}
	k.key = rec.Body
	return k.key, nil
}
