package exchange

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A block whose answer was lost is sent again. Where it comes under a name, its answer is kept in the unit that takes it, and
// the same block is answered with that and changes nothing.

// Once names a block that may come again.
type Once struct {
	key    string // of the record
	digest string // of what came; "" where the name is that of one content
	keep   time.Duration
	of     string // who may have [maxOnce] of them; "" without a bound
}

const (
	// keepCalls is how long the answer of a call is kept; of one key, so many are.
	keepCalls = 24 * time.Hour
	maxOnce   = 10_000
	// keepMessages is how long the answer to a message of the mesh is kept.
	keepMessages = 30 * 24 * time.Hour
	// maxKept bounds an answer that is kept: what is said to queries may be large.
	maxKept = wire.MaxMessage
)

// errOtherContent: the draft of the header has this status for it.
var errOtherContent = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusUnprocessableEntity, Message: "Idempotency-Key: was used for something else"}

// OnceForMessage names a message of a peer.
func OnceForMessage(peer, id string) *Once {
	return &Once{key: "mesh/" + IDKey(peer, id), keep: keepMessages}
}

// OnceForCall names a call by the name that the caller gave to it. content is all that the call says.
func OnceForCall(who Actor, name string, content wire.Value) *Once {
	o := &Once{key: "call/" + IDKey(who.ID, name), digest: thread.Digest(content), keep: keepCalls}
	if !who.Owner {
		o.of = "call/" + IDKey(who.ID, "")
	}
	return o
}

// outcome is what is kept of a result.
type outcome struct {
	Digest  string      `json:"digest,omitempty"`
	Mess    wire.Value  `json:"mess"`
	Created []string    `json:"created,omitempty"`
	Ref     string      `json:"ref,omitempty"`
	Status  thread.Code `json:"status,omitempty"`
}

// FindAnswer returns the kept answer of a block; found is false where it is new.
func (x *Exchange) FindAnswer(ctx context.Context, o *Once) (r Result, found bool, err error) {
	if o == nil {
		return r, false, nil
	}
	rec, err := x.records.Get(ctx, NSSeen, o.key, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return r, false, nil
	}
	if err != nil {
		return r, false, err
	}
	var kept outcome
	if err := json.Unmarshal(rec.Body, &kept); err != nil {
		return r, false, fmt.Errorf("decode a kept answer: %w", err)
	}
	if kept.Digest != o.digest {
		return r, false, errOtherContent
	}
	r = Result{Created: kept.Created, Ref: kept.Ref, Status: kept.Status}
	if kept.Mess.Len() > 0 {
		r.Answers, err = thread.FromTree(kept.Mess)
	}
	return r, true, err
}

// remember keeps the answer of the block with what it changes. One to queries alone is not kept where it is large: they are
// answered anew.
func (t *tx) remember(o *Once) error {
	if o == nil {
		return nil
	}
	r := t.result
	body := thread.Encode(outcome{Digest: o.digest, Mess: r.Answers.Tree(), Created: r.Created, Ref: r.Ref, Status: r.Status})
	if len(body) > maxKept {
		if len(t.changes) == 0 && len(t.order) == 0 {
			return nil
		}
		return thread.TooLarge("the answer is too large to be kept: send queries in a block of their own")
	}
	c := store.Change{Record: store.Record{NS: NSSeen, Key: o.key, Body: body, Expires: t.now.Add(o.keep)}}
	if o.of != "" {
		c.Record.Terms, c.Max = []string{o.of}, maxOnce
	}
	t.changes = append(t.changes, c)
	return nil
}

// stands says where the thread is that the block was about, or made.
func (t *tx) stands(ctx context.Context) error {
	ref := t.opts.Re
	if made, ok := t.result.RequestRef(); ok && ref == "" && t.threads[made] != nil {
		ref = made
	}
	if ref == "" {
		return nil
	}
	th, err := t.load(ctx, ref)
	if err != nil {
		return IgnoreMissing(err)
	}
	t.result.Ref, t.result.Status = ref, th.Status
	return nil
}

// limitedOnce tells who has used up the names of a day.
func limitedOnce(err error, o *Once) error {
	if o != nil && o.of != "" && errors.Is(err, store.ErrQuota) {
		return limited("too many calls with an Idempotency-Key in a day", time.Hour)
	}
	return err
}
