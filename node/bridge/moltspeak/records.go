package moltspeak

import (
	"context"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The record namespaces of the bridge.
const (
	nsPeers         = "moltspeak/peers"    // by agent@org: the pinned keys
	nsReplays       = "moltspeak/seen"     // by sender and message id: the answers to accepted messages (MS-30)
	nsConversations = "moltspeak/threads"  // by conversation: its MoltSpeak side
	nsSent          = "moltspeak/ours"     // by our message id, by task, and by outbox entry: messages of ours
	nsConsents      = "moltspeak/consents" // by jti: consents of our owner
	nsCallbacks     = "moltspeak/answers"  // by peer and message id: answers to requests for consent that have not arrived
)

const (
	// maxReplays bounds the replay records of one peer in an hour, and of all strangers in one replaySlice. The rate
	// limits permit fewer.
	maxReplays        = 10_000
	replaySlice       = 5 * time.Minute
	maxReply          = 16 << 10 // bytes of a stored reply to a stranger that began no conversation
	keepReplays       = 24 * time.Hour
	keepShort         = 15 * time.Minute    // for messages without a conversation: longer than timestamps may differ (MS-30)
	keepConversations = 45 * 24 * time.Hour // longer than a conversation lives
)

// peer is what we know about an agent.
type peer struct {
	Name       string          `json:"name"`
	Key        string          `json:"key"` // pinned
	EncKey     string          `json:"enc_key,omitempty"`
	First      time.Time       `json:"first"`
	Endpoint   string          `json:"endpoint,omitempty"`    // as the peer signed it
	Classes    []message.Class `json:"classes,omitempty"`     // from its hello; empty: unknown (MS-38)
	Vouched    string          `json:"vouched,omitempty"`     // the registry that lists the same key, or "card"
	GrantedPII bool            `json:"granted_pii,omitempty"` // the owner accepts personal data from it (MS-28)
	AllOps     bool            `json:"all_ops,omitempty"`     // it used an operation besides the nine core ones (MS-25)
	Refused    string          `json:"refused_key,omitempty"` // the last key that was refused because it is not the pinned one
	Last       time.Time       `json:"last,omitzero"`         // the approximate time of its last message
	Chosen     bool            `json:"chosen,omitempty"`      // we called the peer, or the owner decided about it, so its pin is never deleted automatically
	Sources    []rate.Source   `json:"sources,omitempty"`     // for a stranger, the address and networks from which its first message came

	rev store.Rev
}

// identity returns the name and the pinned key of the peer. After the owner unpins a peer, the next agent with that
// name has another identity.
func (p peer) identity() string { return p.Name + " " + p.Key }

// accepts reports whether the peer accepts messages of a class: it listed the class in its hello, or it listed none
// (MS-38).
func (p peer) accepts(c message.Class) bool {
	return len(p.Classes) == 0 || slices.Contains(p.Classes, c)
}

// replayRecord is what is kept about an accepted message, so that a repeat gets the first answer again.
type replayRecord struct {
	Digest string `json:"digest"`
	Conv   string `json:"conv,omitempty"`
	Reply  []byte `json:"reply,omitempty"` // as sent, but not encrypted
	Status int    `json:"status,omitempty"`
}

// convState is the MoltSpeak side of a conversation.
type convState struct {
	Peer         string     `json:"peer"`
	Conv         string     `json:"conv"`
	Op           message.Op `json:"op"`
	Intent       string     `json:"intent"`
	Re           string     `json:"re,omitempty"` // the foreign message that waits for our answer
	TaskID       string     `json:"task_id,omitempty"`
	Creator      string     `json:"creator,omitempty"`      // the agent that created the task
	Done         bool       `json:"done,omitempty"`         // the final answer was given
	MeshPayload  bool       `json:"native,omitempty"`       // the peer used AgentMesh payloads, and reads answers in them
	Boxed        bool       `json:"boxed,omitempty"`        // the message came encrypted, so the answer must be encrypted
	Confidential bool       `json:"confidential,omitempty"` // the message was confidential, so the answer is
	TaskState    string     `json:"state,omitempty"`        // the state of the task, as peers see it
}

// sentMessage is one of our messages that a peer may answer.
type sentMessage struct {
	Conv    string    `json:"conv"`
	Address string    `json:"address"`
	Intent  string    `json:"intent"`
	Raw     []byte    `json:"raw"`
	Sent    time.Time `json:"sent"`
	Proof   string    `json:"proof,omitempty"` // the consent that Raw names
}

const termStranger = "stranger" // of the pins that [pins.workStranger] may delete

func decodePeer(rec store.Record) (peer, error) {
	p, err := store.Decode[peer](rec)
	p.rev = rec.Rev
	return p, err
}

// change returns the change that stores the pin. Pins of strangers have their own maximum, so that they never use up
// the places of others.
func (p peer) change() store.Change {
	term, limit, due := termStranger, maxStrangers, p.Last.Add(forgetEmpty)
	if p.Chosen {
		term, limit, due = "chosen", maxChosen, time.Time{}
	}
	return store.Change{IfRev: p.rev, Max: limit, Record: store.Record{NS: nsPeers, Key: p.Name, Body: wire.MustMarshal(p), Terms: []string{term}, Due: due}}
}

func replayKey(from message.Agent, id string) string { return wire.HashOf(from.Name(), id) }

// replayChange returns the change that stores the replay record of an accepted message. Records without a conversation
// from strangers share one bound in each replaySlice. All other records are bounded per peer and hour.
func replayChange(m message.Message, s replayRecord, known bool, rev store.Rev, now time.Time) store.Change {
	term, keep := wire.HashOf(m.From.Name(), now.UTC().Format("2006-01-02T15")), keepReplays
	if s.Conv == "" {
		keep = keepShort
		if !known {
			term = now.UTC().Truncate(replaySlice).Format("strangers 2006-01-02T15:04")
			if len(s.Reply) > maxReply {
				s.Reply = nil // a repeat of that message gets no answer
			}
		}
	}
	return store.Change{IfRev: rev, Max: maxReplays, Record: store.Record{
		NS: nsReplays, Key: replayKey(m.From, m.ID), Body: wire.MustMarshal(s), Terms: []string{term}, Expires: now.Add(keep),
	}}
}

// replays stores and finds replay records.
type replays struct {
	records store.Records
	log     *slog.Logger
}

// find returns the replay record of a message, and whether it has one because it was accepted before (MS-30).
func (s replays) find(c *request) (replayRecord, bool, *message.Error) {
	var r replayRecord
	if c.m.ID == "" {
		return r, false, nil
	}
	_, ok, err := store.ReadRecord(c.ctx, s.records, nsReplays, replayKey(c.m.From, c.m.ID), &r, c.now)
	if err != nil {
		return r, false, message.Fail(message.CodeInternal).Because(err)
	}
	if ok && r.Digest != hex.EncodeToString(c.digest[:]) {
		return r, true, errReusedID()
	}
	return r, ok, nil
}

// store stores the replay record of an accepted message. If a message reaches the node, the node stores the record
// instead.
func (s replays) store(c *request) *message.Error {
	if c.m.ID == "" {
		return nil
	}
	r := replayRecord{Digest: hex.EncodeToString(c.digest[:])}
	err := s.records.Apply(c.ctx, []store.Change{replayChange(c.m, r, c.isKnown(), store.Absent, c.now)}, c.now)
	switch {
	case errors.Is(err, store.ErrConflict):
		return errReusedID()
	case errors.Is(err, store.ErrQuota):
		return message.Fail(message.CodeRateLimit).Because(err)
	case err != nil:
		return message.Fail(message.CodeInternal).Because(err)
	}
	return nil
}

// storeUnlessRepeat is store, except that it accepts a copy of a message that was accepted since find. It marks the copy
// as not fresh, because it may be a replayed recording.
func (s replays) storeUnlessRepeat(c *request) *message.Error {
	e := s.store(c)
	if e != nil && e.Status == http.StatusConflict {
		c.fresh = false
		_, _, e = s.find(c)
	}
	return e
}

// keep stores the signed answer in the replay record of the request. If that fails, a repeat of the request gets
// an answer only if the node itself recognizes the repeat.
func (s replays) keep(c *request, r replayRecord) {
	var old replayRecord
	rev, ok, err := store.ReadRecord(c.ctx, s.records, nsReplays, replayKey(c.m.From, c.m.ID), &old, c.now)
	if err != nil || !ok || len(old.Reply) > 0 { // a later answer may be stored already
		return
	}
	r.Conv = old.Conv
	err = s.records.Apply(c.ctx, []store.Change{replayChange(c.m, r, c.isKnown(), rev, c.now)}, c.now)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		s.log.WarnContext(c.ctx, "moltspeak: cannot store an answer", "err", err)
	}
}

func convKey(address, conv string) string { return wire.HashOf(address, conv) }

func convChange(state convState, rev store.Rev, now time.Time) store.Change {
	return store.Change{IfRev: rev, Record: store.Record{
		NS: nsConversations, Key: convKey(state.Peer, state.Conv), Body: wire.MustMarshal(state), Terms: []string{wire.HashOf(state.Peer)}, Expires: now.Add(keepConversations),
	}}
}

// updateConversation changes the stored state of a conversation in which we answered the message state.Re. It changes
// nothing if a later message of the peer has replaced state.
func updateConversation(ctx context.Context, records store.Records, state convState, now time.Time, change func(*convState)) error {
	for {
		var stored convState
		rev, ok, err := store.ReadRecord(ctx, records, nsConversations, convKey(state.Peer, state.Conv), &stored, now)
		if err != nil || !ok || stored.Re != state.Re {
			return err
		}
		change(&stored)
		if err := records.Apply(ctx, []store.Change{convChange(stored, rev, now)}, now); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}
