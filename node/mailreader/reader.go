// Package mailreader reads the mailbox of a node at a directory.
//
// Each directory that a node joins has a mailbox for it (AM-64 to AM-68). A node without a public address keeps one long
// poll open at the directory whose mailbox is its endpoint. If a message arrives there while its sender waits, the
// directory passes it through and the node answers at once. The reader looks into the mailboxes of other directories
// from time to time, and whenever a channel of Config.News closes.
package mailreader

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	pollWait        = 25 * time.Second
	retryPause      = time.Second // the pause after the first failure; it doubles with each further failure
	maxRetryPause   = time.Minute
	maxPassThroughs = 16              // pass-through requests handled at once
	lookEvery       = 2 * time.Minute // the pause between looks into a mailbox that is not the endpoint on the card
	lookPause       = time.Hour       // the longest pause after failed looks: not every directory has mailboxes
)

// Node is the node whose mail a [Reader] reads.
type Node interface {
	ID() wire.AgentID
	// AwaitListing waits until the directory lists the node. It returns false if ctx ended first.
	AwaitListing(ctx context.Context, dir *client.Directory) bool
	Credential(dir *client.Directory) client.Credential
	// AnswerNow receives a message whose sender waits at the directory, and returns the body of the answer; nil if the
	// sender gets only the directory's receipt. A message that is not answered in time comes again as mail.
	AnswerNow(ctx context.Context, item client.RelayItem) []byte
	// AcceptMail receives a message that waited in the mailbox. After an error the message may be accepted later; a
	// final refusal is not an error.
	AcceptMail(ctx context.Context, item client.RelayItem) error
}

// Config configures a [Reader]. Everything is required.
type Config struct {
	Node     Node
	Dir      *client.Directory
	Endpoint bool                   // the mailbox is the endpoint on the card
	News     func() <-chan struct{} // returns a channel that closes when the reader shall look now
	Logger   *slog.Logger
}

// Reader reads the mailbox at one directory.
type Reader struct {
	Config
	backlog          backlog
	passThroughs     sync.WaitGroup
	passThroughSlots chan struct{} // one place for each pass-through request in progress
}

// New returns a reader. It starts nothing.
func New(cfg Config) *Reader {
	return &Reader{Config: cfg, passThroughSlots: make(chan struct{}, maxPassThroughs)}
}

// Run reads the mailbox until ctx ends. It returns when all its pass-through requests are answered.
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
		case found:
		case !r.Endpoint:
			pause(ctx, client.Jitter(lookEvery), news)
		case time.Since(began) < retryPause: // the directory had no place for another waiting poll
			pause(ctx, retryPause, nil)
		}
		failures = 0
	}
}

// pauseAfterError waits after a failed poll.
func (r *Reader) pauseAfterError(ctx context.Context, failures int, err error) {
	first, most, level := retryPause, maxRetryPause, slog.LevelWarn
	if !r.Endpoint {
		first, most, level = lookEvery, lookPause, slog.LevelInfo
	}
	wait := min(first<<min(failures, 16), most)
	wait = wait/2 + rand.N(wait)
	r.Logger.Log(ctx, level, "mailbox", "relay", r.Dir.Base, "again_in", wait, "err", err)
	pause(ctx, wait, nil)
}

// poll accepts the mail of one poll, and reports whether there was any.
func (r *Reader) poll(ctx context.Context) (found bool, err error) {
	b := &r.backlog
	after, wait := b.position(time.Now()), time.Duration(0)
	if r.Endpoint {
		wait = b.wait(time.Now())
	}
	cred := r.Node.Credential(r.Dir)
	items, err := r.Dir.Mail(ctx, cred, r.Node.ID(), after, wait)
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
			r.answer(ctx, cred, item)
		})
	}
	if b.hasAll(mail) {
		return true, errors.New("the mailbox returns postponed mail again: its directory does not support the parameter after")
	}
	for _, item := range mail { // in the order of their arrival
		if b.deferFollower(item) {
			continue
		}
		err := r.Node.AcceptMail(ctx, item)
		if refused, ok := errors.AsType[*wire.Error](err); ok { // refused for now: other mail need not wait for it
			r.Logger.Info("mail is put off", "relay_id", item.ID, "code", refused.Code, "reason", refused.Message)
			b.postpone(item, refused.RetryAfter, time.Now())
			if refused.Code == wire.AgentUnavailable { // a fault of this node or of a directory, which the next item may meet as well
				return true, err
			}
			continue
		}
		if err == nil {
			err = r.Dir.Acknowledge(ctx, cred, item.ID)
		}
		if err != nil {
			return true, err // it stays in the mailbox
		}
		b.advance(item)
	}
	return len(items) > 0, nil
}

// answer answers a message whose sender waits at the directory. If the answer comes too late, the directory has put the
// message into the mailbox, and the node recognizes it there as a repeat.
func (r *Reader) answer(ctx context.Context, cred client.Credential, item client.RelayItem) {
	ctx, cancel := context.WithDeadline(ctx, item.ReplyBy)
	defer cancel()
	body := r.Node.AnswerNow(ctx, item)
	if body == nil {
		return
	}
	if err := r.Dir.Answer(ctx, cred, item.ID, body); err != nil && ctx.Err() == nil {
		r.Logger.Info("a reply through the relay did not reach its sender", "relay", r.Dir.Base, "err", err)
	}
}

// pause waits for d, until news closes or until ctx ends.
func pause(ctx context.Context, d time.Duration, news <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-news:
	case <-ctx.Done():
	}
}
