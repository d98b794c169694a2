package link

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What the link remembers of conversations (AR-57): which ref belongs to which, the latest of each peer, and what an
// answer refers to. All of it ends a day after the last message; the conversation itself is the node's.
const (
	nsRefs = "agentrelay/refs"
	nsTalk = "agentrelay/talk"

	keepTalk = 24 * time.Hour
)

// talk is what the link must know to go on in a conversation.
type talk struct {
	Conv      wire.ConversationID `json:"conv"`
	Ref       string              `json:"ref,omitempty"`       // what an answer refers to (AR-28)
	Answering string              `json:"answering,omitempty"` // type of the peer's last message
	Asked     bool                `json:"asked,omitempty"`     // we asked a question that is open
	Ours      bool                `json:"ours,omitempty"`      // the last message is ours
	Mesh      bool                `json:"mesh,omitempty"`      // the peer is one of us
}

// hashKey makes a short key of texts of any length.
func hashKey(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// talks are the stored talk records of a link.
type talks struct {
	records store.Records
	link    string
}

func (t talks) refKey(peer, ref string) string { return t.link + "/" + hashKey(peer, "ref", ref) }
func (t talks) lastKey(peer string) string     { return t.link + "/" + hashKey(peer, "last") }
func (t talks) key(peer string, conv wire.ConversationID) string {
	return t.link + "/" + hashKey(peer, "conv", string(conv))
}

func keptFor(now time.Time, ns, key string, body []byte) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{NS: ns, Key: key, Body: body, Expires: now.Add(keepTalk)}}
}

// ofRef returns the conversation that a ref or id belongs to.
func (t talks) ofRef(ctx context.Context, peer, ref string, now time.Time) (wire.ConversationID, bool, error) {
	if ref == "" {
		return "", false, nil
	}
	rec, err := t.records.Get(ctx, nsRefs, t.refKey(peer, ref), now)
	if errors.Is(err, store.ErrNotFound) {
		return "", false, nil
	}
	return wire.ConversationID(rec.Body), err == nil, err
}

// read returns a talk record, the zero talk if there is none.
func (t talks) read(ctx context.Context, key string, now time.Time) (talk, error) {
	var out talk
	rec, err := t.records.Get(ctx, nsTalk, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return out, nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Body, &out)
	}
	return out, err
}

// changes stores what is known of a conversation after a message, with the ids by which the peer may refer to it.
func (t talks) changes(peer string, next talk, refs []string, now time.Time) []store.Change {
	body, _ := json.Marshal(next) // strings and booleans always encode
	out := []store.Change{keptFor(now, nsTalk, t.key(peer, next.Conv), body), keptFor(now, nsTalk, t.lastKey(peer), body)}
	for i, ref := range refs {
		if ref != "" && !slices.Contains(refs[:i], ref) { // a unit has no record twice
			out = append(out, keptFor(now, nsRefs, t.refKey(peer, ref), []byte(next.Conv)))
		}
	}
	return out
}

// conversation finds the conversation of a message: the one that one of us names, that of its ref, the one that the
// peer owes a word in, else a new one (AR-57).
func (t talks) conversation(ctx context.Context, h *heard, now time.Time) (wire.ConversationID, error) {
	if h.conv != "" {
		return h.conv, nil
	}
	for _, ref := range []string{h.id, h.ref} {
		if conv, ok, err := t.ofRef(ctx, h.from, ref, now); ok || err != nil {
			return conv, err
		}
	}
	last, err := t.read(ctx, t.lastKey(h.from), now)
	if err != nil {
		return "", err
	}
	if last.Ours && last.Conv.Valid() {
		return last.Conv, nil
	}
	return t.fresh(h), nil
}

// fresh is the id of a conversation that a message opens: the same at every delivery of it.
func (t talks) fresh(h *heard) wire.ConversationID {
	return wire.ConversationID("conv_" + hashKey(t.link, h.from, "opens", h.id))
}
