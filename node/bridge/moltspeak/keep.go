package moltspeak

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
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
	maxSeen     = 10_000 // of one peer in an hour, or of all strangers in a slice of time: more than their rate lets in
	seenSlice   = 5 * time.Minute
	maxReply    = 16 << 10 // of an answer to a stranger that began no conversation
	keepSeen    = 24 * time.Hour
	keepShort   = 15 * time.Minute    // of what began no conversation: longer than its time may lie apart (MS-30)
	keepThreads = 45 * 24 * time.Hour // longer than a conversation lives (the table of §10 names 24 h after its close)
)

// peer is what we know of an agent.
type peer struct {
	Name     string                `json:"name"`
	Key      string                `json:"key"` // pinned
	EncKey   string                `json:"enc_key,omitempty"`
	First    time.Time             `json:"first"`
	Endpoint string                `json:"endpoint,omitempty"` // as the peer signed it
	Classes  []message.Class       `json:"classes,omitempty"`  // of its hello; empty: it did not say (MS-38)
	Vouched  string                `json:"vouched,omitempty"`  // who else lists that key: level 2 (MS-28)
	Granted  []string              `json:"granted,omitempty"`  // capabilities that the owner proved for it: level 4 (MS-28)
	Attested []message.Attestation `json:"attested,omitempty"` // of its hello, as it says
	AllOps   bool                  `json:"all_ops,omitempty"`  // it used an operation beyond the nine core ones (MS-25)
	Refused  string                `json:"refused_key,omitempty"`
	Last     time.Time             `json:"last,omitzero"`     // about when it wrote
	Chosen   bool                  `json:"chosen,omitempty"`  // we called it, or the owner decided about it: its pin stays
	Sources  []rate.Source         `json:"sources,omitempty"` // of a stranger: where its first message came from

	rev store.Rev
}

// takes says whether the peer listed the class in its hello; who listed none takes all (MS-38).
func (p peer) takes(c message.Class) bool {
	return len(p.Classes) == 0 || slices.Contains(p.Classes, c)
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
	Peer         string     `json:"peer"`
	Conv         string     `json:"conv"`
	Op           message.Op `json:"op"`
	Intent       string     `json:"intent"`
	Re           string     `json:"re,omitempty"` // the foreign message that waits for our answer
	TaskID       string     `json:"task_id,omitempty"`
	Creator      string     `json:"creator,omitempty"` // of the task
	Progress     bool       `json:"progress,omitempty"`
	Done         bool       `json:"done,omitempty"`         // answered for good
	Native       bool       `json:"native,omitempty"`       // the peer said it in the words of AgentMesh, and reads an answer in them
	Boxed        bool       `json:"boxed,omitempty"`        // the message came in a box: so does its answer
	Confidential bool       `json:"confidential,omitempty"` // so is what is answered
	State        string     `json:"state,omitempty"`        // of a task, as told to who asks
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

// readRecord fills v from a record and reports whether there is one.
func readRecord(ctx context.Context, records store.Records, ns, key string, v any, now time.Time) (store.Rev, bool, error) {
	rec, err := records.Get(ctx, ns, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return store.Absent, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return rec.Rev, true, json.Unmarshal(rec.Body, v)
}

// change writes the record. Pins of strangers are counted apart, so that they never take a place of the others.
func (p peer) change() store.Change {
	term, most := "stranger", maxStrangers
	if p.Chosen {
		term, most = "chosen", maxChosen
	}
	return store.Change{IfRev: p.rev, Max: most, Record: store.Record{NS: nsPeers, Key: p.Name, Body: encode(p), Terms: []string{term}}}
}

func seenKey(from message.Agent, id string) string { return hash(from.Name(), id) }

// seenChange remembers a message that was taken. The messages of strangers that begin no conversation are counted in slices
// of time: what strangers may send, which they share by source, never fills a slice. A conversation is bounded by the node.
func (b *Bridge) seenChange(m message.Message, s seen, known bool, rev store.Rev, now time.Time) store.Change {
	term, keep := hash(m.From.Name(), now.UTC().Format("2006-01-02T15")), keepSeen
	if s.Conv == "" {
		keep = keepShort
		if !known {
			term = now.UTC().Truncate(seenSlice).Format("strangers 2006-01-02T15:04")
			if len(s.Reply) > maxReply {
				s.Reply = nil // a repeat costs its sender the answer, not us the disk
			}
		}
	}
	return store.Change{IfRev: rev, Max: maxSeen, Record: store.Record{
		NS: nsSeen, Key: seenKey(m.From, m.ID), Body: encode(s), Terms: []string{term}, Expires: now.Add(keep),
	}}
}

func threadKey(address, conv string) string { return hash(address, conv) }

func (b *Bridge) threadChange(t thread, now time.Time) store.Change {
	return store.Change{IfRev: store.Any, Record: store.Record{
		NS: nsThreads, Key: threadKey(t.Peer, t.Conv), Body: encode(t), Terms: []string{hash(t.Peer)}, Expires: now.Add(keepThreads),
	}}
}
