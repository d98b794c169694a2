package mew

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsLinks holds what links remember, by the name of the link.
const nsLinks = "mew/links"

// How long things are remembered. The first follows what a node does with a conversation by default.
const (
	keepOpen  = 24 * time.Hour
	keepSent  = 7 * 24 * time.Hour
	keepChat  = 30 * 24 * time.Hour
	keepBring = 90 * 24 * time.Hour
)

// heard is a chat that came in, until the owner has read it.
type heard struct {
	Message  wire.MessageID      `json:"message_id"`
	Conv     wire.ConversationID `json:"conversation_id"`
	From     string              `json:"from"`
	Envelope string              `json:"envelope"`
	Said     string              `json:"said,omitempty"` // what was acknowledged: "received"
}

// sent is an envelope of ours that somebody may answer.
type sent struct {
	Conv     wire.ConversationID `json:"conversation_id"`
	Peer     string              `json:"peer"`               // participant that the conversation is with
	Proposal string              `json:"proposal,omitempty"` // that it fulfils
	To       []string            `json:"to,omitempty"`       // with a proposal: who may answer
	Marked   string              `json:"marked,omitempty"`   // what the peer acknowledged
}

// proposed is a proposal to us that is not settled. It is kept by its conversation, because two proposals may have the
// same envelope id, and found by that id too.
type proposed struct {
	Conv     wire.ConversationID `json:"conversation_id"`
	From     string              `json:"from"`
	Envelope string              `json:"envelope"`
	Reason   string              `json:"reason,omitempty"` // with which the owner rejects it
}

// asked is a request to us.
type asked struct {
	From     string     `json:"from"`
	Envelope string     `json:"envelope"`
	ID       wire.Value `json:"jsonrpc_id"`
}

func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (l *link) key(kind, rest string) string { return l.cfg.Name + "/" + kind + "/" + rest }

// remember is the change that keeps something of the link. What is in the context of the link is counted (MEW-L5).
func (l *link) remember(kind, rest string, body any, keep time.Duration, inContext bool) store.Change {
	data, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("mew: encode %T: %v", body, err)) // strings and trees only
	}
	rec := store.Record{NS: nsLinks, Key: l.key(kind, rest), Body: data, Expires: time.Now().Add(keep), Terms: []string{l.cfg.Name + "/" + kind}}
	if inContext {
		rec.Terms = append(rec.Terms, l.cfg.Name+"/context")
	}
	return store.Change{Record: rec, IfRev: store.Any}
}

func (l *link) drop(kind, rest string) store.Change {
	return store.Change{Record: store.Record{NS: nsLinks, Key: l.key(kind, rest)}, IfRev: store.Any, Delete: true}
}

func (l *link) apply(ctx context.Context, changes ...store.Change) {
	if err := l.b.cfg.Records.Apply(ctx, changes, time.Now()); err != nil && ctx.Err() == nil {
		l.log.Warn("the link's state could not be stored", "err", err)
	}
}

// recalled reads something of the link; ok is false where there is nothing.
func recalled[T any](ctx context.Context, l *link, kind, rest string) (v T, ok bool) {
	if rest == "" || len(rest) > 300 {
		return v, false
	}
	rec, err := l.b.cfg.Records.Get(ctx, nsLinks, l.key(kind, rest), time.Now())
	if err != nil {
		if !errors.Is(err, store.ErrNotFound) && ctx.Err() == nil {
			l.log.Warn("the link's state could not be read", "err", err)
		}
		return v, false
	}
	return v, json.Unmarshal(rec.Body, &v) == nil
}

// The conversations that are open with a participant, each a record of its own so that nobody overwrites another.

func openKey(peer wire.AgentID, conv wire.ConversationID) string {
	return string(peer) + "/" + string(conv)
}

func (l *link) opened(peer wire.AgentID, conv wire.ConversationID) store.Change {
	c := l.remember("open", openKey(peer, conv), conv, keepOpen, false)
	c.Record.Terms = []string{l.key("open", string(peer))}
	return c
}

// onlyOpen returns the one conversation that is open with a participant, "" where there is none or more than one.
func (l *link) onlyOpen(ctx context.Context, peer wire.AgentID) wire.ConversationID {
	page, err := l.b.cfg.Records.List(ctx, nsLinks, l.key("open", string(peer)), "", 2, time.Now())
	if err != nil || len(page.Records) != 1 {
		return ""
	}
	var conv wire.ConversationID
	if json.Unmarshal(page.Records[0].Body, &conv) != nil {
		return ""
	}
	return conv
}

const maxCounted = 1000

// inContext counts what is open: unread chat, and proposals that wait (MEW-L5).
func (l *link) inContext(ctx context.Context) int {
	page, err := l.b.cfg.Records.List(ctx, nsLinks, l.cfg.Name+"/context", "", maxCounted, time.Now())
	if err != nil {
		return 0
	}
	return len(page.Records)
}

// clear drops the link's own context. What waits for the owner, and transcripts, stay (MEW-L5).
func (l *link) clear(ctx context.Context) error {
	for {
		page, err := l.b.cfg.Records.List(ctx, nsLinks, l.cfg.Name+"/context", "", 200, time.Now())
		if err != nil || len(page.Records) == 0 {
			return err
		}
		changes := make([]store.Change, 0, len(page.Records))
		for _, rec := range page.Records {
			// It is settled as before; only the count forgets it.
			rec.Terms = slices.DeleteFunc(rec.Terms, func(t string) bool { return t == l.cfg.Name+"/context" })
			changes = append(changes, store.Change{Record: rec, IfRev: store.Any})
		}
		if err := l.b.cfg.Records.Apply(ctx, changes, time.Now()); err != nil {
			return err
		}
	}
}

// A link that was shut down or thrown out stays so over a restart of the process.

func (l *link) recall(ctx context.Context) error {
	rec, err := l.b.cfg.Records.Get(ctx, nsLinks, l.cfg.Name+"/down", time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", l.cfg.Name, err)
	}
	l.mu.Lock()
	l.down = cmp.Or(string(rec.Body), "it was down before this start")
	l.mu.Unlock()
	l.standDown()
	return nil
}

// fall keeps the link down until the owner acts.
func (l *link) fall(why string) {
	l.mu.Lock()
	l.down = why
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l.apply(ctx, store.Change{Record: store.Record{NS: nsLinks, Key: l.cfg.Name + "/down", Body: []byte(why)}, IfRev: store.Any})
}

// rise undoes fall.
func (l *link) rise(ctx context.Context) {
	l.mu.Lock()
	l.down = ""
	l.mu.Unlock()
	l.apply(ctx, store.Change{Record: store.Record{NS: nsLinks, Key: l.cfg.Name + "/down"}, IfRev: store.Any, Delete: true})
	l.stand("connecting", nil, time.Time{})
}

// connect has the link try now, also one that is down.
func (l *link) connect() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
