package node

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsOutbox = "outbox"
	// These limit the attempts that run at once; a hanging peer must not delay the others (AM-79).
	maxDeliveries        = 32
	maxDeliveriesPerPeer = 4
	maxSendPause         = giveUpAfter // no attempt is postponed for longer
	maxQueued            = 10_000      // entries that wait for delivery
	// entryLogKey is the key of an entry's id in the log: an older word, because docs/operations.md promises that the
	// keys do not change.
	entryLogKey = "letter"

	tellAfter      = 10 * time.Minute // how long a message may fail before the owner is told
	giveUpAfter    = 72 * time.Hour   // AM-47
	signAgainAfter = 14 * time.Minute // how long the same signed bytes may be sent (AM-48)
)

// OutboxEntry is one of our messages in the outbox, in the form in which a record holds it. The owner sees only the
// embedded part.
type OutboxEntry struct {
	owner.OutboxEntry
	Signer string `json:"signer"`           // fingerprint of the key that signed Raw
	Awaits string `json:"awaits,omitempty"` // what was missing for the newest attempt, see [client.SendError]
	Raw    []byte `json:"raw,omitempty"`    // the signed bytes to send
	Told   bool   `json:"told,omitempty"`   // the owner got a notice that the entry is delayed
	// Misdated means that the peer refused the time of Raw, because our clock was off (AM-84).
	Misdated bool `json:"misdated,omitempty"`
	// Reply is the id of the verified reply that ended the entry, for a caller that waits in another process.
	Reply wire.MessageID `json:"reply,omitempty"`

	Keep time.Time `json:"-"` // when the record of an ended entry expires
	rev  store.Rev
}

func (e OutboxEntry) key() store.ConvKey {
	return store.ConvKey{Peer: string(e.To), ID: string(e.Conversation)}
}

// waitTerm returns the index term of the queued entries in a conversation.
func waitTerm(key store.ConvKey) string { return "wait:" + key.Peer + "/" + key.ID }

// termFailing is the index term of the queued entries whose last attempt failed.
const termFailing = "failing"

// change returns the change that stores the entry. It fails if the stored entry changed since it was read. Every entry
// can be found by its state and by its conversation. The queued entries of a conversation are a lane, so that they leave
// in order (AM-46).
func (e OutboxEntry) change() store.Change {
	rec := store.Record{NS: nsOutbox, Key: e.ID, Body: wire.MustMarshal(e), Terms: []string{stateTerm(e.State), convTerm(e.key())}, Expires: e.Keep}
	rec.Party, rec.Lane = string(e.To), waitTerm(e.key())
	if e.State == owner.SendQueued {
		rec.Terms = append(rec.Terms, waitTerm(e.key()))
		if e.Err != nil {
			rec.Terms = append(rec.Terms, termFailing)
		}
		rec.Due = cmp.Or(e.Due, store.DueNow)
		if e.Awaits != "" { // a gate in memory keeps the time
			rec.Due = store.DueNow
		}
	}
	return store.Change{IfRev: e.rev, Record: rec}
}

func decodeEntry(r store.Record) (OutboxEntry, error) {
	e, err := store.Decode[OutboxEntry](r)
	e.Keep, e.rev = r.Expires, r.Rev
	return e, err
}

// sent returns the entry's state for its sender, under the first message id.
func (e OutboxEntry) sent() owner.Sent {
	return owner.Sent{
		MessageID: e.First, Conversation: e.Conversation, State: e.State, Status: e.Status, Err: e.Err, Hint: e.Hint,
	}
}

// Outbox lists the entries in the given state, in the order of sending. An empty state selects all entries. after is ""
// for the first page, and otherwise next from the previous page. next is "" on the last page.
func (n *Node) Outbox(ctx context.Context, state owner.SendState, after string, limit int) (entries []OutboxEntry, next string, err error) {
	return n.listEntries(ctx, false, stateTerm(state), after, limit)
}

func (n *Node) listEntries(ctx context.Context, newest bool, term, after string, limit int) (entries []OutboxEntry, next string, err error) {
	return listRecords(ctx, n.store.Records(), newest, nsOutbox, term, after, limit, decodeEntry)
}

// allEntries returns all outbox entries with a term, in the order of sending. Its pages are small, because an entry may
// be as large as a message. An error ends the iteration.
func (n *Node) allEntries(ctx context.Context, term string) iter.Seq2[OutboxEntry, error] {
	return store.All(func(after string) ([]OutboxEntry, string, error) { return n.listEntries(ctx, false, term, after, 50) })
}

func (n *Node) loadEntry(ctx context.Context, id string) (OutboxEntry, error) {
	r, err := n.store.Records().Get(ctx, nsOutbox, id, time.Now())
	if err != nil {
		return OutboxEntry{}, err
	}
	return decodeEntry(r)
}

// sendPauses are the pauses after the first attempts; the last pause repeats (AM-47).
var sendPauses = [...]time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 3 * time.Hour,
}

// pauseAfter returns the pause after the given number of attempts, with jitter, or the longer pause that the peer
// requested.
func pauseAfter(attempts int, requested time.Duration) time.Duration {
	d := sendPauses[min(max(attempts, 1), len(sendPauses))-1]
	return max(client.Jitter(d), requested)
}

// answerWait waits for the answer of a foreign peer, which is a separate message that may come at any time.
type answerWait struct {
	n      *Node
	events <-chan owner.Event
	stop   func()
	since  time.Time
}

// expectAnswer starts to watch for answers. Call it before the message can leave, and call stop at the end.
func (n *Node) expectAnswer() answerWait {
	events, stop := n.Watch()
	return answerWait{n: n, events: events, stop: stop, since: time.Now()}
}

// SendForAnswer is [Node.Send] for a caller that also wants the answer of a foreign peer. wait bounds the delivery and
// the answer together. A receipt does not end the wait, but SendForAnswer returns it if nothing better comes. A
// pending_approval ends the wait, because people do not decide within seconds.
func (n *Node) SendForAnswer(ctx context.Context, out Outgoing, wait time.Duration) (owner.Sent, error) {
	if wait <= 0 || out.Address == "" {
		return n.Send(ctx, out, wait)
	}
	w := n.expectAnswer()
	defer w.stop()
	sent, err := n.Send(ctx, out, wait)
	if err != nil || out.isClose() {
		return sent, err
	}
	return w.awaitAnswer(ctx, store.ConvKey{Peer: string(out.To), ID: string(sent.Conversation)}, sent, wait), nil
}

// awaitAnswer adds the peer's answer in the conversation to sent, if the answer comes no later than wait after w.since.
// A node that is not running, such as one that a command opens for a first delivery, receives nothing after the
// delivery, so awaitAnswer looks only once.
func (w answerWait) awaitAnswer(ctx context.Context, key store.ConvKey, sent owner.Sent, wait time.Duration) owner.Sent {
	if sent.State != owner.SendDelivered || sent.Reply != nil {
		return sent
	}
	ctx, cancel := context.WithDeadline(ctx, w.since.Add(wait))
	defer cancel()
	for {
		found, final, err := w.findAnswer(context.WithoutCancel(ctx), key)
		if err != nil {
			w.n.log.WarnContext(ctx, "answer cannot be looked for; the caller gets none yet", "conversation_id", key.ID, "err", err)
			return sent
		}
		if found.Kind() == wire.Object {
			sent.ReplyTree, sent.Hint = found, ""
		}
		if final || !w.n.running.Load() || !w.awaitChange(ctx, key) {
			return sent
		}
	}
}

// awaitChange waits for an event that may bring the answer. It returns false if ctx ends or no more events come.
func (w answerWait) awaitChange(ctx context.Context, key store.ConvKey) bool {
	for {
		select {
		case ev, open := <-w.events:
			switch {
			case !open:
				return false
			case ev.Topic == owner.TopicReset, ev.Topic == owner.TopicNotices, ev.Peer == key.Peer && ev.Conversation == key.ID:
				return true // a close produces only a notice
			}
		case <-ctx.Done():
			return false
		}
	}
}

// findAnswer returns the first answer that the peer gave since the wait began, or else its newest receipt or
// pending_approval. final is set if nothing better will come soon: after an answer, a pending_approval, or the end of
// the conversation. Messages that are held or were not let in do not count.
func (w answerWait) findAnswer(ctx context.Context, key store.ConvKey) (message wire.Value, final bool, err error) {
	thread, err := w.n.book.Load(ctx, key, time.Now())
	if err != nil {
		return message, false, err
	}
	final = !thread.IsOpen()
	items, err := w.n.itemsOf(ctx, key)
	if err != nil {
		return message, false, err
	}
	for _, item := range items {
		if item.At.Before(w.since) || slices.Contains([]owner.ItemState{owner.ItemHeld, owner.ItemRejected, owner.ItemWithdrawn, owner.ItemExpired}, item.State) {
			continue
		}
		payload, err := wire.Parse(item.Payload)
		if err != nil {
			return message, false, err
		}
		message = wire.Obj(
			wire.Member{Key: "message_id", Value: wire.Text(string(item.MessageID))},
			wire.Member{Key: "conversation_id", Value: wire.Text(string(item.Conversation))},
			wire.Member{Key: "intent", Value: wire.Text(string(item.Intent))},
			wire.Member{Key: "payload", Value: payload},
		)
		switch payload.GetStr("action") {
		case wire.ActionReceived:
		case wire.ActionPending:
			final = true
		default:
			return message, true, nil
		}
	}
	return message, final, nil
}
