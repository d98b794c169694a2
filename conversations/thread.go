package conversations

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/agentmesh/agentmesh/store"
)

// Thread is one conversation under change: what happened is recorded, and becomes part of the caller's step. It
// belongs to one goroutine. Where the step conflicts, load the conversation again and decide again.
type Thread struct {
	book    *Book
	conv    Conversation
	row     store.Conversation
	entries []store.Entry
}

// New says whether the conversation had not begun when it was loaded.
func (t *Thread) New() bool { return t.row.Rev == store.Absent }

// Conversation returns the state after all that was recorded.
func (t *Thread) Conversation() Conversation { return t.conv }

// Record applies an event; see [Conversation.Next] for what it refuses.
func (t *Thread) Record(e Event) error {
	next, err := t.conv.Next(e, t.book.IdleFor())
	if err != nil {
		return err
	}
	t.conv = next
	return nil
}

// Append adds a message to the transcript. N and Chain are given here. It is apart from Record because a message may
// be kept without being an event, as the echo of a close is.
func (t *Thread) Append(e store.Entry) {
	t.entries = append(t.entries, e)
	t.conv.Bytes += int64(len(e.Raw))
}

// Full says whether the transcript holds as much as one may. It is for the caller to refuse what comes then: a close,
// and the answer to what was accepted before, are still appended.
func (t *Thread) Full() bool { return t.conv.Bytes >= cmp.Or(t.book.MaxBytes, DefaultMaxBytes) }

// Into puts the conversation and its new entries into a step, which then is the caller's to apply. A conversation
// that has not begun must not get into one.
func (t *Thread) Into(step *store.Step) {
	row := t.row
	prev := row.Chain
	for i, e := range t.entries {
		prev = Link(prev, e)
		e.N, e.Chain = row.Entries+uint64(i)+1, prev
		step.Append = append(step.Append, e)
	}
	body, err := json.Marshal(t.conv)
	if err != nil {
		panic(fmt.Sprintf("conversations: encode: %v", err)) // only fields we filled
	}
	row.Body, row.Chain, row.Updated = body, prev, step.Now
	row.Terms = []string{stateTerm(t.conv.State), peerTerm(t.conv.Key.Peer)}
	row.Open = t.conv.State == Open
	row.Expires = step.Now.Add(cmp.Or(t.book.Retention, DefaultRetention))
	if row.Open {
		// It may expire without another word, and then nobody writes the row again.
		row.Expires = t.conv.ends(t.book.IdleFor()).Add(cmp.Or(t.book.Retention, DefaultRetention))
	}
	row.Expires = Sooner(row.Expires, t.conv.Purge)
	step.Conv = &row
}
