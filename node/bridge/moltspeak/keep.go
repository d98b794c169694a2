package moltspeak

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// The namespaces of what the bridge keeps.
const (
	nsPeers    = "moltspeak/peers"    // by agent@org: the pinned keys
	nsSeen     = "moltspeak/seen"     // by sender and id: what was answered (MS-30)
	nsThreads  = "moltspeak/threads"  // by conversation: what waits for an answer
	nsOurs     = "moltspeak/ours"     // by our message id: the conversation it belongs to
	nsConsents = "moltspeak/consents" // by jti: consents that we gave
)

const (
	maxPeers     = 10_000
	maxSeen      = 10_000 // of one peer in a day
	keepSeen     = 24 * time.Hour
	keepThreads  = 45 * 24 * time.Hour // longer than a conversation lives (the table of §10 names 24 h after its close)
	maxMySecrets = 1_000
)

// peer is what we know of an agent.
type peer struct {
	Name     string    `json:"name"`
	Key      string    `json:"key"` // pinned
	EncKey   string    `json:"enc_key,omitempty"`
	First    time.Time `json:"first"`
	Endpoint string    `json:"endpoint,omitempty"` // as the peer signed it
	Classes  []Class   `json:"classes,omitempty"`  // of its hello; empty: it did not say (MS-38)
	Granted  []string  `json:"granted,omitempty"`  // capabilities that the owner proved for it: level 4 (MS-28)
	Refused  string    `json:"refused_key,omitempty"`

	rev store.Rev
}

// seen is an accepted message.
type seen struct {
	Digest string `json:"digest"`
	Conv   string `json:"conv,omitempty"`
	Reply  []byte `json:"reply,omitempty"` // as it left, unsealed
	Status int    `json:"status,omitempty"`
}

// thread is what a conversation must remember of its foreign half.
type thread struct {
	Peer     string `json:"peer"`
	Conv     string `json:"conv"`
	Op       Op     `json:"op"`
	Intent   string `json:"intent"`
	Re       string `json:"re,omitempty"` // the foreign message that waits for our answer
	TaskID   string `json:"task_id,omitempty"`
	Creator  string `json:"creator,omitempty"` // of the task
	Progress bool   `json:"progress,omitempty"`
	Done     bool   `json:"done,omitempty"` // answered for good
	Boxed    bool   `json:"boxed,omitempty"`
	State    string `json:"state,omitempty"` // of a task, as told to who asks
}

// ours is a message of ours that a peer may answer.
type ours struct {
	Conv    string    `json:"conv"`
	Address string    `json:"address"`
	Intent  string    `json:"intent"`
	Raw     []byte    `json:"raw"`
	Sent    time.Time `json:"sent"`
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // structs of texts and times
	}
	return data
}

// read fills v from a record and says whether there is one.
func (b *Bridge) read(ctx context.Context, ns, key string, v any, now time.Time) (store.Rev, bool, error) {
	rec, err := b.records.Get(ctx, ns, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return store.Absent, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return rec.Rev, true, json.Unmarshal(rec.Body, v)
}

func (b *Bridge) peer(ctx context.Context, name string, now time.Time) (peer, bool, error) {
	var p peer
	rev, ok, err := b.read(ctx, nsPeers, name, &p, now)
	p.rev = rev
	return p, ok, err
}

func (p peer) change() store.Change {
	return store.Change{IfRev: p.rev, Max: maxPeers, Record: store.Record{NS: nsPeers, Key: p.Name, Body: encode(p), Terms: []string{"peer"}}}
}

func (b *Bridge) savePeer(ctx context.Context, p peer, now time.Time) error {
	return b.records.Apply(ctx, []store.Change{p.change()}, now)
}

func seenKey(from Agent, id string) string { return hash(from.Name(), id) }

func (b *Bridge) seenChange(m Message, s seen, rev store.Rev, now time.Time) store.Change {
	return store.Change{IfRev: rev, Max: maxSeen, Record: store.Record{
		NS: nsSeen, Key: seenKey(m.From, m.ID), Body: encode(s), Terms: []string{hash(m.From.Name())}, Expires: now.Add(keepSeen),
	}}
}

func threadKey(address, conv string) string { return hash(address, conv) }

func (b *Bridge) threadChange(t thread, now time.Time) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{
		NS: nsThreads, Key: threadKey(t.Peer, t.Conv), Body: encode(t), Terms: []string{hash(t.Peer)}, Expires: now.Add(keepThreads),
	}}
}

// pinned judges a sender's key: that of its pin, else the one it claims, which the caller pins once the signature
// verified (MS-23). No key that only an envelope names is ever looked at (MS-20).
func (b *Bridge) pinned(ctx context.Context, from Agent, now time.Time) (peer, *signing.PublicKey, *Error) {
	p, known, err := b.peer(ctx, from.Name(), now)
	if err != nil {
		return p, nil, fault(CodeInternal).because(err)
	}
	if known && (from.Key != "" && from.Key != p.Key || from.EncKey != "" && p.EncKey != "" && from.EncKey != p.EncKey) {
		b.cfg.Logger.WarnContext(ctx, "moltspeak: a peer shows another key than the pinned one", "peer", from.Name())
		_, first := b.doubts.Take(from.Name(), now) // nothing of the message has verified: it must not cost a write each time
		if first && p.Refused != from.Key && len(from.Key) <= maxText {
			p.Refused = from.Key
			if err := b.savePeer(ctx, p, now); err != nil && !errors.Is(err, store.ErrConflict) {
				return p, nil, fault(CodeInternal).because(err)
			}
		}
		return p, nil, fault(CodeAuthFailed)
	}
	text := p.Key
	if !known {
		text = from.Key
		p = peer{Name: from.Name(), Key: from.Key, First: now.UTC(), rev: store.Absent}
	}
	raw, ok := strings.CutPrefix(text, sigPrefix)
	if !ok {
		return p, nil, fault(CodeAuthFailed)
	}
	key, err := signing.ParseEd25519(raw)
	if err != nil {
		return p, nil, fault(CodeAuthFailed).because(err)
	}
	return p, key, nil
}

// pin keeps what a verified message said of its sender, where it is new.
func (b *Bridge) pin(ctx context.Context, m Message, p peer, now time.Time) (peer, *Error) {
	before := string(encode(p))
	if m.From.EncKey != "" && p.EncKey == "" {
		raw, ok := strings.CutPrefix(m.From.EncKey, "x25519:")
		if _, err := signing.ParseBoxPublic(raw); err != nil || !ok {
			return p, faultAt(CodeSchema, "from.enc_key", "is no X25519 key")
		}
		p.EncKey = m.From.EncKey
	}
	if where, ok := m.Ext.Get("agentmesh.endpoint"); ok {
		if url := where.GetStr("url"); len(url) <= 2048 {
			if _, err := Endpoint(url); err == nil {
				p.Endpoint = url
			}
		}
	}
	if p.rev != store.Absent && string(encode(p)) == before {
		return p, nil
	}
	err := b.savePeer(ctx, p, now)
	switch {
	case errors.Is(err, store.ErrQuota):
		return p, fault(CodeRateLimit).because(err)
	case errors.Is(err, store.ErrConflict): // somebody was first: judge anew
		again, known, err := b.peer(ctx, p.Name, now)
		if err != nil || !known || again.Key != p.Key {
			return p, fault(CodeAuthFailed).because(err)
		}
		return again, nil
	case err != nil:
		return p, fault(CodeInternal).because(err)
	}
	again, _, err := b.peer(ctx, p.Name, now)
	if err != nil {
		return p, fault(CodeInternal).because(err)
	}
	return again, nil
}
