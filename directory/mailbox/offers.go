package mailbox

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// The namespaces in which the processes of a directory share messages that pass through.
const (
	OffersNS = "relay-offers" // messages whose sender waits, by credential and relay id

	offerTextNS = "relay-offer-text" // the message, then the reply
	pollsNS     = "relay-polls"      // credentials whose agents poll
)

const (
	pollStored     = 2 * time.Minute // how long an agent that polled counts as connected at every process
	pollStoreEvery = time.Minute     // between two records of a poll by one process, because each is a write
	giveUpWithin   = 5 * time.Second // for the store to withdraw an offer whose sender has left
	maxRelayID     = 64              // bytes
)

// Offers pass messages through between the processes of a directory: the sender waits at one process, and its recipient
// polls and replies at any of them. [Connections] does the same in the memory of one process. The sender's process
// stores an offer. A process with a poll marks the offer as taken, and the process that gets the reply adds the reply
// to the offer. Each process calls Wake when another one has changed an offer. A credential is known by its hash,
// called owner here. A nil *Offers passes nothing through.
type Offers struct {
	records   store.Records
	wakePolls func(owner [32]byte) // makes the polls at this process look for offers

	mu      sync.Mutex
	senders map[string]chan struct{} // for the waiting senders, by the key of their offer; each has capacity for one
	stored  map[[32]byte]time.Time   // when this process last stored that an agent of the credential polls
}

// NewOffers returns offers in records. It calls wakePolls when polls at this process must look for offers.
func NewOffers(records store.Records, wakePolls func(owner [32]byte)) *Offers {
	return &Offers{records: records, wakePolls: wakePolls, senders: make(map[string]chan struct{}), stored: make(map[[32]byte]time.Time)}
}

// offer is a message that passes through, as the processes share it. Its record expires some seconds after its sender
// stops waiting.
type offer struct {
	From         wire.AgentID        `json:"from"`
	To           wire.AgentID        `json:"to"`
	Conversation wire.ConversationID `json:"conversation"`
	Created      time.Time           `json:"created_at"`
	Taken        bool                `json:"taken,omitempty"`  // a poll has fetched the message
	Status       int                 `json:"status,omitempty"` // of the reply; 0: the agent has not replied yet
}

func offerKey(owner [32]byte, relayID string) string { return hex.EncodeToString(owner[:]) + relayID }

// ownerOf returns the credential in the key of an offer.
func ownerOf(key string) (owner [32]byte, ok bool) {
	n, err := hex.Decode(owner[:], []byte(key[:min(len(key), hex.EncodedLen(len(owner)))]))
	return owner, n == len(owner) && err == nil
}

// change returns the change that stores the offer under key, if its record still has the revision rev. The index term
// names the owner and the sender.
func (f offer) change(key, term string, rev store.Rev) store.Change {
	expires := f.Created.Add(ReplyWithin + giveUpWithin) // the sender can still read a reply of the last moment
	return store.Change{Record: store.Record{NS: OffersNS, Key: key, Body: wire.MustMarshal(f), Terms: []string{term}, Expires: expires}, IfRev: rev}
}

func (f offer) isOver(now time.Time) bool { return !now.Before(f.Created.Add(ReplyWithin)) }

// NotePoll stores that an agent of owner polls, so that every process offers it messages.
func (o *Offers) NotePoll(ctx context.Context, owner [32]byte, now time.Time) error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	recent := now.Sub(o.stored[owner]).Abs() < pollStoreEvery
	if !recent && len(o.stored) >= maxConnections {
		clear(o.stored) // costs each credential one more write, at its next poll
	}
	if !recent {
		o.stored[owner] = now
	}
	o.mu.Unlock()
	if recent {
		return nil
	}
	record := store.Record{NS: pollsNS, Key: hex.EncodeToString(owner[:]), Expires: now.Add(pollStored)}
	err := o.records.Apply(ctx, []store.Change{{Record: record, IfRev: store.Any}}, now)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.stored, owner) // so that the next poll stores it
	}
	return err
}

// PassThrough does the same as [Connections.PassThrough]. It also returns false if the store failed.
func (o *Offers) PassThrough(ctx context.Context, owner [32]byte, t *Transit) (Reply, bool) {
	if o == nil {
		return Reply{}, false
	}
	key := offerKey(owner, t.ID)
	woken, leave := o.join(key)
	defer leave()
	if !o.offer(ctx, owner, key, t) {
		return Reply{}, false
	}
	o.wakePolls(owner)
	takeTimeout := time.After(takeWithin)
	end := time.After(time.Until(t.ReplyBy))
	for {
		stop, stopUntaken := false, false
		select {
		case <-woken:
		case <-takeTimeout:
			stopUntaken = true
		case <-end:
			stop = true
		case <-ctx.Done():
			stop = true
		}
		reply, done, err := o.check(ctx, key, stop, stopUntaken)
		if done {
			return reply, err == nil && reply.Status != 0
		}
	}
}

// join registers the sender that waits for the offer with this key. The sender must call leave.
func (o *Offers) join(key string) (woken <-chan struct{}, leave func()) {
	wake := make(chan struct{}, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.senders[key] = wake
	return wake, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.senders, key)
	}
}

// offer stores an offer. It returns false if no agent of owner polls, if too many messages are passing through, in
// total or from this sender, or if the store fails.
func (o *Offers) offer(ctx context.Context, owner [32]byte, key string, t *Transit) bool {
	if _, err := o.records.Get(ctx, pollsNS, hex.EncodeToString(owner[:]), t.Created); err != nil {
		return false
	}
	if others, err := o.list(ctx, owner, t.Created); err != nil || len(others) >= maxTransit {
		return false
	}
	f := offer{From: t.Message.From, To: t.Message.To, Conversation: t.Message.Conversation, Created: t.Created}
	put := f.change(key, hex.EncodeToString(owner[:])+":"+string(t.Sender), store.Absent)
	// Max bounds the offers with the same term, so those of one sender.
	put.Max = MaxTransitOfSender
	text := store.Record{NS: offerTextNS, Key: key, Body: t.Raw, Expires: put.Record.Expires}
	return o.records.Apply(ctx, []store.Change{put, {Record: text}}, t.Created) == nil
}

// check reads the offer of a sender. done is true if the sender should stop waiting: the reply has come or the offer is
// withdrawn. check withdraws the offer if stop is true, or if stopUntaken is true and no poll has taken it.
func (o *Offers) check(ctx context.Context, key string, stop, stopUntaken bool) (reply Reply, done bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpWithin)
	defer cancel()
	for {
		now := time.Now()
		record, err := o.records.Get(ctx, OffersNS, key, now)
		if err != nil { // if the store failed, the sender waits on and reads the offer later
			return Reply{}, stop || errors.Is(err, store.ErrNotFound), err
		}
		var f offer
		if err := json.Unmarshal(record.Body, &f); err != nil {
			return Reply{}, true, err
		}
		if f.Status != 0 {
			text, err := o.records.Get(ctx, offerTextNS, key, now)
			if err != nil {
				return Reply{}, true, err
			}
			_ = o.remove(ctx, key, store.Any, now) // after an error, the records expire
			return Reply{Status: f.Status, Body: text.Body}, true, nil
		}
		if !stop && (!stopUntaken || f.Taken) {
			return Reply{}, false, nil
		}
		if err := o.remove(ctx, key, record.Rev, now); !errors.Is(err, store.ErrConflict) {
			return Reply{}, true, err
		}
	}
}

func (o *Offers) remove(ctx context.Context, key string, rev store.Rev, now time.Time) error {
	return o.records.Apply(ctx, []store.Change{
		{Record: store.Record{NS: OffersNS, Key: key}, IfRev: rev, Delete: true},
		{Record: store.Record{NS: offerTextNS, Key: key}, IfRev: store.Any, Delete: true},
	}, now)
}

// list returns the records of the offers to owner, oldest first.
func (o *Offers) list(ctx context.Context, owner [32]byte, now time.Time) ([]store.Record, error) {
	prefix := hex.EncodeToString(owner[:])
	page, err := o.records.List(ctx, OffersNS, "", prefix, maxTransit, now) // keys after prefix: those with prefix come first
	if err != nil {
		return nil, fmt.Errorf("list messages that pass through: %w", err)
	}
	for i, record := range page.Records {
		if !strings.HasPrefix(record.Key, prefix) {
			return page.Records[:i], nil
		}
	}
	return page.Records, nil
}

// Take returns at most limit offered messages to a poll, and marks them as taken. box and conv restrict the messages;
// "" means no restriction.
func (o *Offers) Take(ctx context.Context, owner [32]byte, box wire.AgentID, conv wire.ConversationID, limit int, now time.Time) ([]*Transit, error) {
	if o == nil {
		return nil, nil
	}
	records, err := o.list(ctx, owner, now)
	var taken []*Transit
	for _, record := range records {
		var f offer
		if err := json.Unmarshal(record.Body, &f); err != nil {
			return taken, fmt.Errorf("read a message that passes through: %w", err)
		}
		if f.Taken || f.isOver(now) || len(taken) == limit || box != "" && f.To != box || conv != "" && f.Conversation != conv {
			continue
		}
		f.Taken = true
		text, err := o.records.Get(ctx, offerTextNS, record.Key, now)
		if err == nil {
			err = o.update(ctx, record, f, nil, now)
		}
		if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
			continue // another poll has it, or the sender has left
		}
		if err != nil {
			return taken, err
		}
		taken = append(taken, &Transit{
			ID: strings.TrimPrefix(record.Key, hex.EncodeToString(owner[:])), Raw: text.Body, Created: f.Created, ReplyBy: f.Created.Add(ReplyWithin),
		})
	}
	return taken, err
}

// update replaces an offer, in one transaction with changes, and wakes its sender.
func (o *Offers) update(ctx context.Context, old store.Record, f offer, changes []store.Change, now time.Time) error {
	err := o.records.Apply(ctx, append(changes, f.change(old.Key, old.Terms[0], old.Rev)), now)
	o.wakeSender(old.Key)
	return err
}

// Reply delivers an agent's reply to the sender, which may wait at any process. It returns [wire.ErrLateReply] if the
// sender has left or already has a reply. Other errors mean that the reply is invalid or the store failed.
func (o *Offers) Reply(ctx context.Context, owner [32]byte, relayID string, raw []byte, now time.Time) error {
	if o == nil || len(relayID) > maxRelayID {
		return wire.ErrLateReply
	}
	record, err := o.records.Get(ctx, OffersNS, offerKey(owner, relayID), now)
	if errors.Is(err, store.ErrNotFound) {
		return wire.ErrLateReply
	}
	var f offer
	if err == nil {
		err = json.Unmarshal(record.Body, &f)
	}
	if err != nil {
		return fmt.Errorf("find the sender of a reply: %w", err)
	}
	if f.Status != 0 || f.isOver(now) {
		return wire.ErrLateReply
	}
	if f.Status, err = CheckReply(wire.Message{From: f.From, To: f.To, Conversation: f.Conversation}, raw); err != nil {
		return err
	}
	text := store.Record{NS: offerTextNS, Key: record.Key, Body: raw, Expires: record.Expires}
	if err = o.update(ctx, record, f, []store.Change{{Record: text, IfRev: store.Any}}, now); errors.Is(err, store.ErrConflict) {
		return wire.ErrLateReply
	}
	return err
}

// Wake wakes the waiters at this process for the offer with this key: its sender, or the polls of its recipient.
func (o *Offers) Wake(key string) {
	if o == nil {
		return
	}
	if !o.wakeSender(key) {
		if owner, ok := ownerOf(key); ok {
			o.wakePolls(owner)
		}
	}
}

// wakeSender wakes the sender of an offer, and reports whether it waits at this process.
func (o *Offers) wakeSender(key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	wake := o.senders[key]
	if wake != nil {
		waiting.Wake(wake)
	}
	return wake != nil
}

// WakeAll wakes the senders of all offers at this process.
func (o *Offers) WakeAll() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, wake := range o.senders {
		waiting.Wake(wake)
	}
}
