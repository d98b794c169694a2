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

// Each directory that a node joins has a mailbox for it (AM-64 to AM-68). A node without a public address keeps one
// long poll open at the directory whose mailbox is its endpoint. If a message arrives there while its sender waits,
// the node answers it as a pass-through. The node looks into the mailboxes of other directories from time to time, and
// whenever the directory in its own process wakes it. Mail that waited in a mailbox is answered through the outbox.

const (
	pollWait        = 25 * time.Second
	retryPause      = time.Second // the pause after the first failure; it doubles with each further failure
	maxRetryPause   = time.Minute
	maxPassThroughs = 16                 // pass-through requests handled at once
	maxMailAge      = 7 * 24 * time.Hour // the maximum age of mail (AM-20, AM-68)
	lookEvery       = 2 * time.Minute    // the pause between looks into a mailbox that is not the endpoint on the card
	lookPause       = time.Hour          // the longest pause after failed looks: not every directory has mailboxes
)

// mailReader reads the node's mailbox at one directory.
type mailReader struct {
	n                *Node
	dir              *client.Directory
	endpoint         bool // the mailbox is the endpoint on the card
	backlog          backlog
	passThroughs     sync.WaitGroup
	passThroughSlots chan struct{} // one place for each pass-through request in progress
}

// MailWaits makes the node look into its mailboxes now. The directory in the same process calls it.
func (n *Node) MailWaits() { n.mailArrived.broadcast() }

// readMailbox reads the mailbox at dir until ctx ends. It returns when all its pass-through requests are answered.
func (n *Node) readMailbox(ctx context.Context, dir *client.Directory) {
	r := mailReader{n: n, dir: dir, passThroughSlots: make(chan struct{}, maxPassThroughs)}
	r.endpoint = n.cfg.Relay != nil && n.cfg.Relay.Base == dir.Base
	defer r.passThroughs.Wait()
	for failures := 0; n.registrar.AwaitListing(ctx, dir); { // a directory that does not list the node has no mailbox for it
		began, news := time.Now(), n.mailArrived.wait()
		found, err := r.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.pauseAfterError(ctx, failures, err)
			failures++
			continue
		case found:
		case !r.endpoint:
			pauseOr(ctx, client.Jitter(lookEvery), news)
		case time.Since(began) < retryPause: // the directory had no place for another waiting poll
			pause(ctx, retryPause)
		}
		failures = 0
	}
}

// pauseAfterError waits after a failed poll.
func (r *mailReader) pauseAfterError(ctx context.Context, failures int, err error) {
	first, most, level := retryPause, maxRetryPause, slog.LevelWarn
	if !r.endpoint {
		first, most, level = lookEvery, lookPause, slog.LevelInfo
	}
	wait := min(first<<min(failures, 16), most)
	wait = wait/2 + rand.N(wait)
	r.n.log.Log(ctx, level, "mailbox", "relay", r.dir.Base, "again_in", wait, "err", err)
	pause(ctx, wait)
}

// poll accepts the mail of one poll, and reports whether there was any.
func (r *mailReader) poll(ctx context.Context) (found bool, err error) {
	n, b := r.n, &r.backlog
	after, wait := b.position(time.Now()), time.Duration(0)
	if r.endpoint {
		wait = b.wait(time.Now())
	}
	cred := n.registrar.Credential(r.dir)
	items, err := r.dir.Mail(ctx, cred, n.ID(), after, wait)
	if err != nil {
		*b = backlog{}
		return false, err
	}
	var mail []client.RelayItem
	for _, item := range items {
		if item.ReplyBy.IsZero() {
			mail = append(mail, item)
			continue
		}
		select {
		case r.passThroughSlots <- struct{}{}:
		case <-ctx.Done():
			return true, ctx.Err()
		}
		r.passThroughs.Go(func() {
			defer func() { <-r.passThroughSlots }()
			n.answerPassThrough(ctx, r.dir, cred, item)
		})
	}
	if b.hasAll(mail) {
		return true, errors.New("the mailbox returns postponed mail again: its directory does not support the parameter after")
	}
	for _, item := range mail { // in the order of their arrival
		if b.deferFollower(item) {
			continue
		}
		err := n.acceptMail(ctx, item)
		if refused, ok := errors.AsType[*wire.Error](err); ok { // refused for now: other mail need not wait for it
			n.log.Info("mail is put off", "relay_id", item.ID, "code", refused.Code, "reason", refused.Message)
			b.postpone(item, refused.RetryAfter, time.Now())
			if refused.Code == wire.AgentUnavailable { // a fault of this node or of a directory, which the next item may meet as well
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
		b.advance(item)
	}
	return len(items) > 0, nil
}

// answerPassThrough receives a message whose sender waits at the directory. A reply that comes too late is not lost:
// the directory has then put the message into the mailbox, and the node recognizes it there as a repeat.
func (n *Node) answerPassThrough(ctx context.Context, relay *client.Directory, cred client.Credential, item client.RelayItem) {
	ctx, cancel := context.WithDeadline(ctx, item.ReplyBy)
	defer cancel()
	var body []byte
	out, err := n.Receive(ctx, item.Message)
	if refused, ok := errors.AsType[*wire.Error](err); ok {
		body = refused.AppendJSON(nil)
	} else if err != nil {
		return // the sender gets the directory's receipt, and the message comes again
	} else {
		body = out.Raw
	}
	if err := relay.Answer(ctx, cred, item.ID, body); err != nil && ctx.Err() == nil {
		n.log.Info("a reply through the relay did not reach its sender", "relay", relay.Base, "err", err)
	}
}

// acceptMail receives a message that waited in the mailbox, judged at the time when the mailbox received it (AM-20).
// Nobody waits for the answer. After an error the message may be accepted later; a final refusal is not an error.
func (n *Node) acceptMail(ctx context.Context, item client.RelayItem) error {
	now := time.Now()
	if item.Created.Before(now.Add(-maxMailAge)) {
		n.log.Info("mail is too old", "relay_id", item.ID, "created", item.Created)
		return nil
	}
	in, err := n.readMessage(ctx, item.Message, nil) // its origin is unknown
	if err == nil {
		in.Received, in.Unattended = item.Created, true
		if in.Received.After(now) {
			in.Received = now // the directory's clock is ahead
		}
		var out bridge.Outcome
		if out, err = n.Accept(ctx, in); err == nil && out.Duplicate && out.Status == http.StatusOK {
			err = n.enqueueAnswer(ctx, out.Raw, now) // the answer came too late for the pass-through
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

// enqueueAnswer sends an answer of ours that is already signed and stored through the outbox. If its receiver gets a
// second copy, it recognizes the message id (AM-21).
func (n *Node) enqueueAnswer(ctx context.Context, raw []byte, now time.Time) error {
	tree, err := wire.ParseObject(raw)
	if err != nil {
		return err
	}
	m, err := wire.ParseMessage(tree)
	if err != nil {
		return err
	}
	entry := OutboxEntry{Raw: raw, Signer: n.fingerprint(), OutboxEntry: owner.OutboxEntry{
		ID: n.outbox.NewID(now), State: SendQueued, To: m.To, Conversation: m.Conversation, MessageID: m.ID, First: m.ID,
		Intent: m.Intent, Action: m.Action(), Created: now, Signed: m.Time, InFlight: true, Fetchable: true,
	}}
	change := entry.change()
	change.Max = maxQueued
	return n.store.Records().Apply(ctx, []store.Change{change}, now)
}
