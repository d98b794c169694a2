package node

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Each directory that a node joins has a mailbox for it (AM-64 to AM-68). A node without a public address holds one long poll
// at the directory whose mailbox is its endpoint: a message that comes while its sender waits is answered through the relay.
// At the other directories the node looks from time to time, and when the directory in its own process wakes it. The node
// answers mail that waited in a mailbox through the outbox.

const (
	relayWait   = 25 * time.Second
	relayRetry  = time.Second // after the first failure, then twice as long each time
	relayPause  = time.Minute
	relayAtOnce = 16                 // messages that pass through at once
	relayTTL    = 7 * 24 * time.Hour // how old mail may be (AM-20, AM-68)

	lookEvery = 2 * time.Minute // at a mailbox that is not the endpoint on the card
	lookPause = time.Hour       // the longest pause between looks that fail: not every directory has mailboxes
)

// mailReader takes the node's mail from one directory.
type mailReader struct {
	n        *Node
	dir      *client.Directory
	endpoint bool // the mailbox there is the endpoint on the card
	bag      mailbag
	passing  sync.WaitGroup
	room     chan struct{} // for what passes through
}

// MailWaits has the node look into its mailboxes now. The directory in its own process calls it.
func (n *Node) MailWaits() { n.mail.give() }

// takeMail works on the mailbox at dir until ctx ends, and returns when nothing of that runs any more.
func (n *Node) takeMail(ctx context.Context, dir *client.Directory) {
	r := mailReader{n: n, dir: dir, room: make(chan struct{}, relayAtOnce)}
	r.endpoint = n.cfg.Relay != nil && n.cfg.Relay.Base == dir.Base
	defer r.passing.Wait()
	for failures := 0; n.registrar.AwaitListed(ctx, dir); { // a directory that does not list the node has no mail for it
		began, news := time.Now(), n.mail.wait()
		some, err := r.takeSome(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.rest(ctx, failures, err)
			failures++
			continue
		case some:
		case !r.endpoint:
			pauseOr(ctx, client.Jitter(lookEvery), news)
		case time.Since(began) < relayRetry: // the relay had no place for one more poll that waits
			pause(ctx, relayRetry)
		}
		failures = 0
	}
}

// rest waits after a poll that failed.
func (r *mailReader) rest(ctx context.Context, failures int, err error) {
	first, most, level := relayRetry, relayPause, slog.LevelWarn
	if !r.endpoint {
		first, most, level = lookEvery, lookPause, slog.LevelInfo
	}
	wait := min(first<<min(failures, 16), most)
	wait = wait/2 + rand.N(wait)
	r.n.log.Log(ctx, level, "mailbox", "relay", r.dir.Base, "again_in", wait, "err", err)
	pause(ctx, wait)
}

// takeSome takes what one poll brings, and reports whether it brought anything.
func (r *mailReader) takeSome(ctx context.Context) (some bool, err error) {
	n, bag := r.n, &r.bag
	after, wait := bag.open(time.Now()), time.Duration(0)
	if r.endpoint {
		wait = bag.wait(time.Now())
	}
	cred := n.registrar.Credential(r.dir)
	items, err := r.dir.Mail(ctx, cred, n.ID(), after, wait)
	if err != nil {
		*bag = mailbag{}
		return false, err
	}
	var waited []client.RelayItem
	for _, item := range items {
		if item.ReplyBy.IsZero() {
			waited = append(waited, item)
			continue
		}
		select {
		case r.room <- struct{}{}:
		case <-ctx.Done():
			return true, ctx.Err()
		}
		r.passing.Go(func() {
			defer func() { <-r.room }()
			n.answerThrough(ctx, r.dir, cred, item)
		})
	}
	if bag.knows(waited) {
		return true, errors.New("the relay gives what was put off, and does not know after")
	}
	for _, item := range waited { // in the order in which they came
		if bag.holds(item) {
			continue
		}
		err := n.takeOut(ctx, item)
		if refused, ok := errors.AsType[*wire.Error](err); ok { // for now: others need not wait for that
			n.log.Info("mail is put off", "relay_id", item.ID, "code", refused.Code, "reason", refused.Message)
			bag.putOff(item, refused.RetryAfter, time.Now())
			if refused.Code == wire.AgentUnavailable { // ours or a directory's fault, which the next one may meet as well
				return true, err
			}
			continue
		}
		if err == nil {
			err = r.dir.Acknowledge(ctx, cred, item.ID)
		}
		if err != nil {
			return true, err // it stays in the mailbox
		}
		bag.passed(item)
	}
	return len(items) > 0, nil
}

// answerThrough receives a message whose sender waits at the relay. A reply that comes too late is not lost: the relay has
// put the message into the mailbox then, and as a repeat it is found accepted.
func (n *Node) answerThrough(ctx context.Context, relay *client.Directory, cred client.Credential, item client.RelayItem) {
	ctx, cancel := context.WithDeadline(ctx, item.ReplyBy)
	defer cancel()
	var body []byte
	out, err := n.Receive(ctx, item.Message)
	if refused, ok := errors.AsType[*wire.Error](err); ok {
		body = refused.AppendJSON(nil)
	} else if err != nil {
		return // the sender gets the relay's receipt, and the message comes again
	} else {
		body = out.Raw
	}
	if err := relay.Answer(ctx, cred, item.ID, body); err != nil && ctx.Err() == nil {
		n.log.Info("a reply through the relay did not reach its sender", "relay", relay.Base, "err", err)
	}
}

// takeOut receives a message that waited in the mailbox. It is judged at the time of its receipt there (AM-20), and
// nobody waits for the answer. An error means that it may be taken again later; what was refused for good is not.
func (n *Node) takeOut(ctx context.Context, item client.RelayItem) error {
	now := time.Now()
	if item.Created.Before(now.Add(-relayTTL)) {
		n.log.Info("mail is too old", "relay_id", item.ID, "created", item.Created)
		return nil
	}
	in, err := n.read(ctx, item.Message, nil) // nothing tells where it came from
	if err == nil {
		in.Received, in.Unattended = item.Created, true
		if in.Received.After(now) {
			in.Received = now // the relay's clock is ahead
		}
		var out bridge.Outcome
		if out, err = n.Accept(ctx, in); err == nil && out.Duplicate && out.Status == http.StatusOK {
			err = n.sendAnswer(ctx, out.Raw, now) // it was answered through the relay, which did not take it any more
		}
	}
	refused, ok := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && !refused.Retry:
		n.log.Info("mail refused", "relay_id", item.ID, "code", refused.Code, "reason", refused.Message)
		return nil
	}
	return err
}

// sendAnswer sends an answer of ours, which is signed and stored already, through the outbox. Its receiver tells a second
// copy by its id (AM-21).
func (n *Node) sendAnswer(ctx context.Context, raw []byte, now time.Time) error {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return err
	}
	m, err := wire.ParseMessage(tree)
	if err != nil {
		return err
	}
	letter := Letter{Raw: raw, Signer: n.fingerprint(), OutboxEntry: owner.OutboxEntry{
		ID: n.outbox.NewID(now), State: SendQueued, To: m.To, Conversation: m.Conversation, MessageID: m.ID, First: m.ID,
		Intent: m.Intent, Action: m.Action(), Created: now, Signed: m.Time, InFlight: true, Fetchable: true,
	}}
	change := letter.change()
	change.Max = maxQueued
	return n.store.Records().Apply(ctx, []store.Change{change}, now)
}
