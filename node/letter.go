package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	nsOutbox  = "outbox"
	maxQueued = 10_000 // letters that wait for delivery

	giveUpAfter = 72 * time.Hour   // AM-47
	sameBytes   = 14 * time.Minute // how long the first signature is good enough (AM-48)
)

// Letter is a message of ours in the outbox, as it is stored.
type Letter struct {
	owner.OutboxEntry
	Signer string    `json:"-"` // fingerprint of the key that signed the bytes that go out now
	Keep   time.Time `json:"-"` // when the record of an ended letter may go

	Raw []byte `json:"-"` // the bytes that go out now
	rev store.Rev
}

// storedLetter is a letter as its record holds it.
type storedLetter struct {
	Letter
	Signer string `json:"signer"`
	Raw    []byte `json:"raw,omitempty"`
}

func (l Letter) key() store.ConvKey {
	return store.ConvKey{Peer: string(l.To), ID: string(l.Conversation)}
}

func waitTerm(key store.ConvKey) string { return "wait:" + key.Peer + "/" + key.ID }

// change writes the letter if it is still the one that was read. One that waits is also found as such by its
// conversation.
func (l Letter) change() store.Change {
	body, err := json.Marshal(storedLetter{Letter: l, Signer: l.Signer, Raw: l.Raw})
	if err != nil {
		panic(fmt.Sprintf("encode letter: %v", err)) // only fields we filled
	}
	terms := []string{"state:" + string(l.State), convTerm(l.key())}
	if l.State == SendQueued {
		terms = append(terms, waitTerm(l.key()))
	}
	return store.Change{IfRev: l.rev, Record: store.Record{NS: nsOutbox, Key: l.ID, Body: body, Terms: terms, Expires: l.Keep}}
}

func decodeLetter(r store.Record) (Letter, error) {
	var s storedLetter
	if err := json.Unmarshal(r.Body, &s); err != nil {
		return Letter{}, fmt.Errorf("decode letter: %w", err)
	}
	l := s.Letter
	l.Raw, l.Signer, l.rev, l.Keep = s.Raw, s.Signer, r.Rev, r.Expires
	return l, nil
}

// sent is the letter as its sender is told: under the id that it was given first.
func (l Letter) sent() Sent {
	return Sent{
		MessageID: l.First, Conversation: l.Conversation, State: l.State, Status: l.Status, Err: l.Err, Hint: l.Hint,
	}
}

// message is what goes out now.
func (l Letter) message() (wire.Message, error) {
	tree, err := wire.ParseObject(l.Raw)
	if err != nil {
		return wire.Message{}, fmt.Errorf("read own message: %w", err)
	}
	return wire.ParseMessage(tree)
}

// Outbox lists letters in the order of sending, those in state (all where it is empty), after the one named after.
// next is empty on the last page.
func (n *Node) Outbox(ctx context.Context, state SendState, after string, limit int) (letters []Letter, next string, err error) {
	term := ""
	if state != "" {
		term = "state:" + string(state)
	}
	return n.letters(ctx, term, after, limit)
}

func (n *Node) letters(ctx context.Context, term, after string, limit int) (letters []Letter, next string, err error) {
	page, err := n.store.Records().List(ctx, nsOutbox, term, after, limit, time.Now())
	if err != nil {
		return nil, "", fmt.Errorf("list outbox: %w", err)
	}
	for _, r := range page.Records {
		l, err := decodeLetter(r)
		if err != nil {
			return nil, "", err
		}
		letters = append(letters, l)
	}
	return letters, page.Next, nil
}

// endedLetters returns the changes that remove the letters of a conversation which have ended.
func (n *Node) endedLetters(ctx context.Context, key store.ConvKey) (changes []store.Change, err error) {
	for after := ""; ; {
		letters, next, err := n.letters(ctx, convTerm(key), after, 100)
		if err != nil {
			return nil, err
		}
		for _, l := range letters {
			if l.State != SendQueued {
				gone := store.Change{Record: store.Record{NS: nsOutbox, Key: l.ID}, IfRev: l.rev, Delete: true}
				changes = append(changes, gone)
			}
		}
		if after = next; after == "" {
			return changes, nil
		}
	}
}

func (n *Node) letter(ctx context.Context, id string) (Letter, error) {
	r, err := n.store.Records().Get(ctx, nsOutbox, id, time.Now())
	if err != nil {
		return Letter{}, err
	}
	return decodeLetter(r)
}

// sendPauses are the waits after the first attempts; the last one repeats (AM-47).
var sendPauses = [...]time.Duration{
	5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour, 3 * time.Hour,
}

// pauseAfter is how long to wait after the given number of attempts: the schedule, a fifth more or less, or what the
// peer asked for where that is longer.
func pauseAfter(attempts int, asked time.Duration) time.Duration {
	d := sendPauses[min(max(attempts, 1), len(sendPauses))-1]
	return max(client.Jitter(d), asked)
}
