package exchange

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A sender that lost the answer to a block (a list of MESS entries) sends the block again. If the block has a replay
// key, its answer is stored in the same transaction as its effect. A repetition gets the stored answer and changes
// nothing.

// ReplayKey identifies a block that may be sent again.
type ReplayKey struct {
	key    string // key of the replay record
	digest string // of the content: the key is refused for any other content; "" if each content has a key of its own
	keep   time.Duration
	quota  string // index term in the store: at most maxCallReplays records may have it; "" means no bound
}

const (
	// keepCallReplays is how long the answer to a call is kept; maxCallReplays bounds the kept answers of one API key.
	keepCallReplays = 24 * time.Hour
	maxCallReplays  = 10_000
	// keepMessageReplays is how long the answer to a mesh message is kept.
	keepMessageReplays = 30 * 24 * time.Hour
	// maxReplaySize bounds a stored answer: responses to queries may be large.
	maxReplaySize = wire.MaxMessage
)

// errOtherContent has the status that the draft of the Idempotency-Key header requires.
var errOtherContent = &wire.Error{Code: wire.InvalidMessage, Status: http.StatusUnprocessableEntity, Message: "Idempotency-Key: this key was already used for another request"}

// NewMessageReplay returns the replay key of a mesh message of a peer.
func NewMessageReplay(peer, id string) *ReplayKey {
	return &ReplayKey{key: "mesh/" + wire.HashOf(peer, id), keep: keepMessageReplays}
}

// NewCallReplay returns the replay key of a call with an Idempotency-Key. A repetition must have the same content.
func NewCallReplay(who Actor, name string, content wire.Value) *ReplayKey {
	k := &ReplayKey{key: "call/" + wire.HashOf(who.ID, name), digest: thread.Digest(content), keep: keepCallReplays}
	if !who.Owner {
		k.quota = "call/" + wire.HashOf(who.ID, "")
	}
	return k
}

// replayRecord is the stored answer to a block.
type replayRecord struct {
	Digest  string      `json:"digest,omitempty"`
	Mess    wire.Value  `json:"mess"` // Result.Answers
	Created []string    `json:"created,omitempty"`
	Ref     string      `json:"ref,omitempty"`
	Status  thread.Code `json:"status,omitempty"`
}

// FindAnswer returns the stored answer to a block; found is false if the block is new. A nil key finds nothing.
func (x *Exchange) FindAnswer(ctx context.Context, k *ReplayKey) (r Result, found bool, err error) {
	if k == nil {
		return r, false, nil
	}
	var stored replayRecord
	if _, found, err = store.ReadRecord(ctx, x.records, NSSeen, k.key, &stored, time.Now()); err != nil || !found {
		return r, false, err
	}
	if stored.Digest != k.digest {
		return r, false, errOtherContent
	}
	r = Result{Created: stored.Created, Ref: stored.Ref, Status: stored.Status}
	if stored.Mess.Len() > 0 {
		r.Answers, err = thread.FromTree(stored.Mess)
	}
	return r, true, err
}

// saveReplay stores the answer with the block. If the block has only queries, an answer that is too large is not
// stored, because queries can simply be repeated.
func (t *tx) saveReplay(k *ReplayKey) error {
	if k == nil {
		return nil
	}
	r := t.result
	body := wire.MustMarshal(replayRecord{Digest: k.digest, Mess: r.Answers.Tree(), Created: r.Created, Ref: r.Ref, Status: r.Status})
	if len(body) > maxReplaySize {
		if len(t.changes) == 0 && len(t.changedRefs) == 0 {
			return nil
		}
		return thread.TooLarge("the answer is too large to be kept: send queries in a block of their own")
	}
	c := store.Change{Record: store.Record{NS: NSSeen, Key: k.key, Body: body, Expires: t.now.Add(k.keep)}}
	if k.quota != "" {
		c.Record.Terms, c.Max = []string{k.quota}, maxCallReplays
	}
	t.changes = append(t.changes, c)
	return nil
}

// setResultThread sets the ref in the result, see [Result], and the status of that thread.
func (t *tx) setResultThread(ctx context.Context) error {
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

// explainQuota returns a refusal instead of err if an API key has too many stored answers.
func explainQuota(err error, k *ReplayKey) error {
	if k != nil && k.quota != "" && errors.Is(err, store.ErrQuota) {
		return thread.TooMany("too many calls with an Idempotency-Key in a day", time.Hour)
	}
	return err
}
