// Package mailreader reads the mailbox of a node at a directory.
//
// A directory may have a mailbox for each node that it lists (AM-64 to AM-68). A node without a public address
// names one of its mailboxes as the endpoint on its card, and keeps a long poll open at that directory. If a
// message arrives there while its sender waits, the directory passes it through and the node answers at once. At
// any other directory, the node's Reader looks into the mailbox from time to time, and when the channel that
// Config.News returned closes.
package mailreader

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	pollWait        = 25 * time.Second // the longest poll
	retryPause      = time.Second      // the pause after the first failure; it doubles with each further failure
	maxRetryPause   = time.Minute      // the longest pause, before it is varied by up to half
	maxPassThroughs = 64               // pass-through requests handled at once; each may wait for a hook
	maxPerSender    = 8                // of them, those that name one sender
	lookEvery       = 2 * time.Minute  // the pause between looks into a mailbox that is not the endpoint on the card
	maxLookPause    = time.Hour        // the longest pause after failed looks; a directory without mailboxes fails each time
)

// Node is the node whose mail a [Reader] reads.
type Node interface {
	ID() wire.AgentID
	// AwaitListing waits until the directory lists the node, or returns false if ctx ended first.
	AwaitListing(ctx context.Context, dir *client.Directory) bool
	Credential(dir *client.Directory) client.Credential
	// AnswerNow receives a message whose sender waits at the directory, and returns the body of the answer, or nil if
	// the sender gets only the directory's receipt. A message that is not answered in time comes again as mail.
	AnswerNow(ctx context.Context, item client.RelayItem) []byte
	// Calls returns the service that answers A2A calls, or nil.
	Calls() Calls
	// AcceptMail receives a message that waited in the mailbox. After an error, the Reader tries again later; a
	// final refusal is not an error.
	AcceptMail(ctx context.Context, item client.RelayItem) error
}

// Calls answers the A2A calls that a directory accepts for the node.
type Calls interface {
	// RelayCard returns the A2A card for the directory, or nil if the node takes no calls from there.
	RelayCard() []byte
	// AnswerCall carries out a call, and returns its answer with the task and the token that the call names. If the
	// call cannot be read, task is "" and answer is nil. After a *[wire.Error], the Reader tries again later.
	AnswerCall(ctx context.Context, call []byte) (task, token string, answer []byte, err error)
}

// Config configures a [Reader]. Everything is required.
type Config struct {
	Node     Node
	Dir      *client.Directory
	Endpoint bool                   // the mailbox is the endpoint on the card
	News     func() <-chan struct{} // returns a channel that closes when new mail may have come
	Logger   *slog.Logger
}

// Reader reads the mailbox at one directory.
type Reader struct {
	Config
	backlog           backlog
	passThroughs      sync.WaitGroup
	passThroughPlaces *waiting.Places // by sender
	published         []byte          // the A2A card at the directory
	publishedAt       time.Time
}

// New returns a reader.
func New(cfg Config) *Reader {
	return &Reader{Config: cfg, passThroughPlaces: waiting.NewPlaces(maxPassThroughs, maxPerSender)}
}

// Run reads the mailbox until ctx ends, then waits until the pass-through requests in progress have ended.
func (r *Reader) Run(ctx context.Context) {
	defer r.passThroughs.Wait()
	for failures := 0; r.Node.AwaitListing(ctx, r.Dir); { // a directory that does not list the node has no mailbox for it
		began, news := time.Now(), r.News()
		found, err := r.poll(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.pauseAfterError(ctx, failures, err)
			failures++
			continue
		case found: // read on at once
		case !r.Endpoint:
			pause(ctx, client.Jitter(lookEvery), news)
		case time.Since(began) < retryPause: // the directory had no place for another waiting poll
			pause(ctx, retryPause, nil)
		}
		failures = 0
	}
}

// pauseAfterError waits after a failed poll, for half to one and a half times the nominal pause.
func (r *Reader) pauseAfterError(ctx context.Context, failures int, err error) {
	first, longest, level := retryPause, maxRetryPause, slog.LevelWarn
	if !r.Endpoint {
		first, longest, level = lookEvery, maxLookPause, slog.LevelInfo
	}
	wait := min(first<<min(failures, 16), longest)
	wait = wait/2 + rand.N(wait)
	r.Logger.Log(ctx, level, "mailbox", "relay", r.Dir.Base, "again_in", wait, "err", err)
	pause(ctx, wait, nil)
}

// poll accepts the mail that one request returns. found reports whether there was any.
func (r *Reader) poll(ctx context.Context) (found bool, err error) {
	b := &r.backlog
	after, wait := b.position(time.Now()), time.Duration(0)
	if r.Endpoint {
		wait = b.maxPoll(time.Now())
	}
	cred := r.Node.Credential(r.Dir)
	calls := r.publishCard(ctx, cred)
	items, err := r.Dir.Mail(ctx, cred, r.Node.ID(), after, wait, calls != nil)
	if err != nil {
		*b = backlog{} // the next poll starts at the oldest item
		return false, err
	}
	var mail []client.RelayItem
	for _, item := range items {
		if item.ReplyBy.IsZero() {
			mail = append(mail, item)
			continue
		}
		conv := conversationOf(item)
		if b.convs[conv] {
			continue // without an answer, the directory puts it into the mailbox behind the postponed mail
		}
		leave, ok := r.passThroughPlaces.Enter(conv.Peer)
		if !ok {
			continue // it comes again as mail
		}
		r.passThroughs.Go(func() {
			defer leave()
			r.answer(ctx, cred, item)
		})
	}
	if b.hasAll(mail) {
		return true, errors.New("the mailbox returns postponed mail again: its directory does not support the query parameter \"after\"")
	}
	for _, item := range mail { // in the order of arrival
		if b.deferFollower(item) {
			continue
		}
		var err error
		if item.Call != nil {
			err = r.answerCall(ctx, calls, item)
		} else {
			err = r.Node.AcceptMail(ctx, item)
		}
		if refusal, ok := errors.AsType[*wire.Error](err); ok { // other mail need not wait for it
			r.Logger.Info("mail is postponed", "relay_id", item.ID, "code", refusal.Code, "reason", refusal.Message)
			b.postpone(item, refusal.RetryAfter, time.Now())
			if refusal.Code == wire.AgentUnavailable && !errors.Is(err, wire.ErrNoDirectory) { // this node is at fault
				return true, err
			}
			continue
		}
		if err == nil {
			err = r.Dir.Acknowledge(ctx, cred, item.ID)
		}
		if err != nil {
			return true, err // the item stays in the mailbox
		}
		b.advance(item)
	}
	return len(items) > 0, nil
}

// cardEvery is how often an unchanged A2A card is published again. A directory forgets a card after 45 days.
const cardEvery = 24 * time.Hour

// publishCard publishes the A2A card at the directory whose mailbox is the endpoint, if the card is new or was
// published more than cardEvery ago. It returns the service that answers the calls from that directory, or nil.
func (r *Reader) publishCard(ctx context.Context, cred client.Credential) Calls {
	calls := r.Node.Calls()
	if calls == nil || !r.Endpoint {
		return nil
	}
	card := calls.RelayCard()
	if card == nil {
		return nil
	}
	if !bytes.Equal(card, r.published) || time.Since(r.publishedAt) > cardEvery {
		if err := r.Dir.PublishA2ACard(ctx, cred, r.Node.ID(), card); err != nil {
			if ctx.Err() == nil && r.publishedAt.IsZero() {
				r.Logger.Info("the directory does not take A2A calls", "relay", r.Dir.Base, "err", err)
			}
			// an unchanged card is tried again in a minute, and a new one at the next poll
			r.publishedAt = time.Now().Add(time.Minute - cardEvery)
			return nil
		}
		r.published, r.publishedAt = card, time.Now()
	}
	return calls
}

// answerCall answers an A2A call that waited in the mailbox.
func (r *Reader) answerCall(ctx context.Context, calls Calls, item client.RelayItem) error {
	if calls == nil {
		return wire.ErrUnavailable // the directory sent a call although the node takes none
	}
	call := item.Call
	var err error
	for range 2 { // a second call may follow if the caller canceled the task before we took it
		var task, token string
		var answer []byte
		task, token, answer, err = calls.AnswerCall(ctx, call)
		if err != nil || task == "" {
			return err
		}
		if call, err = r.Dir.AnswerCall(ctx, task, token, answer); call == nil {
			break
		}
	}
	refusal, ok := errors.AsType[*client.DirectoryError](err)
	switch {
	case !ok || refusal.Status == 0:
		return err
	case refusal.Retry:
		return wire.ErrRateLimited.After(refusal.RetryAfter) // other mail need not wait for it
	}
	r.Logger.Warn("the directory refuses the answer to an A2A call", "relay_id", item.ID, "err", err)
	return nil
}

// answer answers a message whose sender waits at the directory. If the answer is too late, the directory has put the
// message into the mailbox, where the node recognizes it as a repeat.
func (r *Reader) answer(ctx context.Context, cred client.Credential, item client.RelayItem) {
	ctx, cancel := context.WithDeadline(ctx, item.ReplyBy)
	defer cancel()
	body := r.Node.AnswerNow(ctx, item)
	if body == nil {
		return
	}
	if err := r.Dir.Answer(ctx, cred, item.ID, body); err != nil && ctx.Err() == nil {
		r.Logger.Info("a reply did not reach its sender through the directory", "relay", r.Dir.Base, "err", err)
	}
}

// pause waits for d, until news closes, or until ctx ends.
func pause(ctx context.Context, d time.Duration, news <-chan struct{}) {
	select {
	case <-time.After(d):
	case <-news:
	case <-ctx.Done():
	}
}
