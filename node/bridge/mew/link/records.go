package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// nsLinks holds what links remember, by the name of the link.
const nsLinks = "mew/links"

// records is what a link remembers in the store.
type records struct {
	link  string
	store store.Records
	log   *slog.Logger
}

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

// recall reads something of the link; ok is false if there is nothing.
func recall[T any](ctx context.Context, r *records, kind, rest string) (v T, ok bool) {
	if rest == "" || len(rest) > 300 {
		return v, false
	}
	rec, err := r.store.Get(ctx, nsLinks, r.key(kind, rest), time.Now())
	if err != nil {
		if !errors.Is(err, store.ErrNotFound) && ctx.Err() == nil {
			r.log.Warn("the link's state could not be read", "err", err)
		}
		return v, false
	}
	return v, json.Unmarshal(rec.Body, &v) == nil
}

// The conversations that are open with a participant, each a record of its own so that nobody overwrites another.

func openKey(peer wire.AgentID, conv wire.ConversationID) string {
	return string(peer) + "/" + string(conv)
}

const maxCounted = 1000

// A link that was shut down or thrown out stays so over a restart of the process.

func (r *records) key(kind, rest string) string { return r.link + "/" + kind + "/" + rest }

// remember is the change that keeps something of the link. What is in the context of the link is counted (MEW-L5).
func (r *records) remember(kind, rest string, body any, keep time.Duration, inContext bool) store.Change {
	data, err := json.Marshal(body)
	if err != nil {
		panic(fmt.Sprintf("mew: encode %T: %v", body, err)) // strings and trees only
	}
	rec := store.Record{NS: nsLinks, Key: r.key(kind, rest), Body: data, Expires: time.Now().Add(keep), Terms: []string{r.link + "/" + kind}}
	if inContext {
		rec.Terms = append(rec.Terms, r.link+"/context")
	}
	return store.Change{Record: rec, IfRev: store.Any}
}

func (r *records) drop(kind, rest string) store.Change {
	return store.Change{Record: store.Record{NS: nsLinks, Key: r.key(kind, rest)}, IfRev: store.Any, Delete: true}
}

func (r *records) apply(ctx context.Context, changes ...store.Change) {
	if err := r.store.Apply(ctx, changes, time.Now()); err != nil && ctx.Err() == nil {
		r.log.Warn("the link's state could not be stored", "err", err)
	}
}

func (r *records) opened(peer wire.AgentID, conv wire.ConversationID) store.Change {
	c := r.remember("open", openKey(peer, conv), conv, keepOpen, false)
	c.Record.Terms = []string{r.key("open", string(peer))}
	return c
}

// onlyOpen returns the one conversation that is open with a participant, "" where there is none or more than one.
func (r *records) onlyOpen(ctx context.Context, peer wire.AgentID) wire.ConversationID {
	page, err := r.store.List(ctx, nsLinks, r.key("open", string(peer)), "", 2, time.Now())
	if err != nil || len(page.Records) != 1 {
		return ""
	}
	var conv wire.ConversationID
	if json.Unmarshal(page.Records[0].Body, &conv) != nil {
		return ""
	}
	return conv
}

// inContext counts what is open: unread chat, and proposals that wait (MEW-L5).
func (r *records) inContext(ctx context.Context) int {
	page, err := r.store.List(ctx, nsLinks, r.link+"/context", "", maxCounted, time.Now())
	if err != nil {
		return 0
	}
	return len(page.Records)
}

// clear drops the link's own context. What waits for the owner, and transcripts, stay (MEW-L5).
func (r *records) clear(ctx context.Context) error {
	for {
		page, err := r.store.List(ctx, nsLinks, r.link+"/context", "", 200, time.Now())
		if err != nil || len(page.Records) == 0 {
			return err
		}
		changes := make([]store.Change, 0, len(page.Records))
		for _, rec := range page.Records {
			// It is settled as before; only the count forgets it.
			rec.Terms = slices.DeleteFunc(rec.Terms, func(t string) bool { return t == r.link+"/context" })
			changes = append(changes, store.Change{Record: rec, IfRev: store.Any})
		}
		if err := r.store.Apply(ctx, changes, time.Now()); err != nil {
			return err
		}
	}
}
