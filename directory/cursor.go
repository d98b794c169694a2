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
	filterSize   = 12   // bytes of the filters' hash
	macSize      = 16   // bytes of the HMAC
	maxCursor    = 2048 // bytes; a name of 128 characters that JSON escapes makes a cursor of 1,124
	cursorRecord = "cursor-key"
)

// cursorDoc is the content of a cursor (AM-54). In a list of cards or changes, Seq and Tier are the position, and Last
// is the id of the last card, for people who debug. In a list of names, Last is the position: the last name.
type cursorDoc struct {
	Last    string `json:"last"`
	Seq     uint64 `json:"seq"`
	Tier    int    `json:"tier,omitempty"`
	Filters []byte `json:"f"`
	MAC     []byte `json:"mac"`
}

// seal encodes a cursor: URL-safe base64 of JSON whose last member authenticates the others.
func (d cursorDoc) seal(key []byte) string {
	mac := hmac.New(sha256.New, key)
	hashFields(mac, "agentmesh-cursor-v1", d.Last, strconv.FormatUint(d.Seq, 10), strconv.Itoa(d.Tier), string(d.Filters))
	d.MAC = mac.Sum(nil)[:macSize]
	data, err := json.Marshal(d)
	if err != nil {
		panic("directory: encode cursor: " + err.Error()) // strings, numbers and bytes
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

// hashFields hashes texts with their lengths, so that no two lists of texts hash alike.
func hashFields(h hash.Hash, texts ...string) {
	for _, s := range texts {
		h.Write(strconv.AppendInt(nil, int64(len(s)), 10))
		h.Write([]byte{':'})
		h.Write([]byte(s))
	}
}

// parseCursor decodes a cursor. It accepts only the exact text that seal writes, so that no changed byte passes.
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

// filterHash identifies the filters of a query, whatever the order of the filters and the letter case of the text. The
// limit does not count: a client may change it from page to page.
func filterHash(all, prefixes, whole []string, prefix string) (sum [filterSize]byte) {
	h := sha256.New()
	hashFields(h, all...)
	hashFields(h, "q")
	hashFields(h, whole...)
	hashFields(h, prefix)
	if len(prefixes) > 0 { // without prefixes the hash is what older versions computed, so that their cursors stay valid
		hashFields(h, "prefixes")
		hashFields(h, prefixes...)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// cursor returns a cursor with the position pos. last is the id of the card at pos; in a list of names, the last name.
func (r *Registry) cursor(ctx context.Context, last string, pos store.Position, p plan, now time.Time) (string, error) {
	key, err := r.cursors.get(ctx, r.recs, now)
	if err != nil {
		return "", err
	}
	return cursorDoc{Last: last, Seq: pos.Seq, Tier: pos.Tier, Filters: p.filters[:]}.seal(key), nil
}

// openCursor returns the position of a cursor. It returns [wire.ErrCursor] unless this directory made the cursor for
// the same filters.
func (r *Registry) openCursor(ctx context.Context, text string, p plan, now time.Time) (store.Position, error) {
	d, err := r.openDoc(ctx, text, p, now)
	return store.Position{Tier: d.Tier, Seq: d.Seq}, err
}

// openDoc does the same as openCursor, but returns the whole content of the cursor.
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

// cursorKey is the HMAC key of cursors, of relay ids, and of the ids and tokens of the A2A relay. It is stored, so that
// they outlive the process and work on every instance of the directory. It is read once.
type cursorKey struct {
	mu  sync.Mutex
	key []byte
}

// makeCursorKey stores the key of the cursors before the first list needs it. Otherwise a list would have no second
// page after the disk has become full.
func (r *Registry) makeCursorKey(ctx context.Context) {
	if _, err := r.cursors.get(ctx, r.recs, wire.Now()); err != nil && ctx.Err() == nil {
		r.log.Error("cannot store the key for cursors: lists with a second page fail until the store works", "err", err)
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
		if err == nil || errors.Is(err, store.ErrConflict) { // on a conflict another instance was faster
			rec, err = recs.Get(ctx, recordNS, cursorRecord, now)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("load cursor key: %w", err)
	}
	k.key = rec.Body
	return k.key, nil
}
