package conversations

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/agentmesh/agentmesh/store"
)

// The defaults of AM-38 and AM-40, and of the size of one conversation.
const (
	DefaultIdle      = 24 * time.Hour
	DefaultRetention = 30 * 24 * time.Hour
	DefaultMaxBytes  = 64 << 20
)

// Book reads and changes all conversations of a node. It is safe for concurrent use.
type Book struct {
	Steps     store.Steps
	Idle      time.Duration // silence after which a conversation expires; zero means DefaultIdle
	Retention time.Duration // how long an ended conversation is kept; zero means DefaultRetention
	MaxBytes  int64         // size at which a transcript is full; zero means DefaultMaxBytes
}

// IdleFor returns Idle or its default.
func (b *Book) IdleFor() time.Duration { return cmp.Or(b.Idle, DefaultIdle) }

// Load loads the conversation of key, which need not have begun. The unit is only for reading; to change a
// conversation, use [Book.Do].
func (b *Book) Load(ctx context.Context, key store.ConvKey, now time.Time) (*Unit, error) {
	u := &Unit{Now: now, book: b, conv: Conversation{Key: key}, row: store.Conversation{Key: key}}
	if key == (store.ConvKey{}) { // a unit without a conversation
		return u, nil
	}
	row, err := b.Steps.Conversation(ctx, key, now)
	if errors.Is(err, store.ErrNotFound) {
		return u, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load conversation: %w", err)
	}
	u.row = row
	u.conv, err = Decode(row)
	return u, err
}

// Filter narrows a list. A zero field matches everything.
type Filter struct {
	Peer  string // the id of the peer, or the name under which rules apply to it
	State State
}

// Page is a page of conversations, newest first. Next is 0 on the last page. A page may have fewer conversations than
// the limit, even zero, and still have a Next.
type Page struct {
	Conversations []Conversation
	Next          uint64
}

// List returns a page of conversations. before is the Next of the previous page, or 0. A conversation that has expired
// is listed as Expired.
func (b *Book) List(ctx context.Context, f Filter, before uint64, limit int, now time.Time) (Page, error) {
	term := ""
	switch {
	case f.Peer != "":
		term = peerTerm(f.Peer)
	case f.State == Expired: // stored as open
		term = stateTerm(Open)
	case f.State != "":
		term = stateTerm(f.State)
	}
	rows, err := b.Steps.Conversations(ctx, term, before, limit, now)
	if err != nil {
		return Page{}, fmt.Errorf("list conversations: %w", err)
	}
	page := Page{Next: rows.Next}
	for _, row := range rows.Conversations {
		c, err := Decode(row)
		if err != nil {
			return Page{}, err
		}
		c.State = c.StateAt(now, b.IdleFor())
		if f.State == "" || c.State == f.State {
			page.Conversations = append(page.Conversations, c)
		}
	}
	return page, nil
}

// All returns the conversations that f selects, newest first. An error ends the iteration.
func (b *Book) All(ctx context.Context, f Filter, now time.Time) iter.Seq2[Conversation, error] {
	return store.All(func(before uint64) ([]Conversation, uint64, error) {
		page, err := b.List(ctx, f, before, 500, now)
		return page.Conversations, page.Next, err
	})
}

// Transcript returns at most limit entries. after is the number of the last entry that the caller has read, or 0.
func (b *Book) Transcript(ctx context.Context, key store.ConvKey, after uint64, limit int) ([]store.Entry, error) {
	entries, err := b.Steps.Transcript(ctx, key, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read transcript: %w", err)
	}
	return entries, nil
}

// Check verifies the hash chain of a whole transcript, and that it ends with the hash in the conversation's row. It
// returns store.ErrConflict if messages arrive meanwhile.
func (b *Book) Check(ctx context.Context, key store.ConvKey, now time.Time) error {
	row, err := b.Steps.Conversation(ctx, key, now)
	if err != nil {
		return fmt.Errorf("load conversation: %w", err)
	}
	var head [32]byte
	n := uint64(0)
	for {
		entries, err := b.Transcript(ctx, key, n, 100)
		if err != nil {
			return err
		}
		if head, err = Verify(head, n, entries); err != nil {
			return err
		}
		if n += uint64(len(entries)); len(entries) == 0 {
			break
		}
	}
	if n == row.Entries && head == row.Chain {
		return nil
	}
	current, err := b.Steps.Conversation(ctx, key, now)
	if err == nil && current.Rev != row.Rev {
		return fmt.Errorf("check transcript: %w", store.ErrConflict)
	}
	return fmt.Errorf("the transcript ends at entry %d with a chain that does not match the conversation, which has %d entries", n, row.Entries)
}

// Decode reads the state of a conversation from its row.
func Decode(row store.Conversation) (Conversation, error) {
	var c Conversation
	if err := json.Unmarshal(row.Body, &c); err != nil {
		return Conversation{}, fmt.Errorf("decode conversation: %w", err)
	}
	c.Key, c.Entries = row.Key, row.Entries
	return c, nil
}

func stateTerm(s State) string    { return "state:" + string(s) }
func peerTerm(peer string) string { return "peer:" + peer }
