package mess

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// askBody is what the owner is shown. Everything in it but ref and status is a stranger's word.
type askBody struct {
	Ref        string     `json:"ref"`
	Requester  string     `json:"requester,omitempty"`
	Status     string     `json:"status,omitempty"`
	Intent     string     `json:"intent,omitempty"`
	Candidates []Agent    `json:"candidates,omitempty"`
	Executor   string     `json:"executor,omitempty"`
	Serial     int        `json:"serial,omitempty"` // of the newest message of the thread when the owner was asked
	Said       wire.Value `json:"said,omitzero"`
}

// question asks about a thread. The owner is shown what was said: the status that asks, else the request.
func (b *Bridge) question(ctx context.Context, kind string, t *Thread, more askBody, title string) ([]store.Change, error) {
	m, err := b.saying(ctx, t, kind)
	if err != nil {
		return nil, err
	}
	more.Ref, more.Requester, more.Status, more.Executor, more.Serial = t.Ref, t.Requester, string(t.Status), t.Holder, t.Serial
	more.Intent, more.Said = t.Intent, delivered(t.Ref, m.Mess)
	if len(more.Said.JSON()) > maxTask {
		more.Said = wire.Obj(wire.Member{Key: "shortened", Value: wire.Bool(true)})
	}
	return b.open(kind, about(t.Ref), more, title, time.Now()), nil
}

// saying returns the message that a question is about.
func (b *Bridge) saying(ctx context.Context, t *Thread, kind string) (Message, error) {
	const back = 50 // messages that an executor may have said since it asked
	first, last := 1, 1
	if kind == askConfirm {
		first, last = max(1, t.Serial-back), t.Serial
	}
	var m Message
	for serial := last; serial >= first; serial-- {
		rec, err := b.x.records.Get(ctx, nsMessages, messageKey(t.Ref, serial), time.Now())
		if err != nil {
			return m, err
		}
		if m, err = decodeMessage(rec); err != nil {
			return m, err
		}
		for e := range m.Mess.Elems() {
			if status, _ := e.Get("status"); kind != askConfirm || status.GetStr("code") == string(NeedsConfirmation) {
				return m, nil
			}
		}
	}
	return m, nil
}

// open asks the owner about a matter: a thread, or somebody who registered.
func (b *Bridge) open(kind, matter string, body askBody, title string, now time.Time) []store.Change {
	raw := encode(body)
	sum := sha256.Sum256(raw)
	_, changes := b.cfg.Asks.Open(acl.Ask{
		Kind: kind, Subject: "mess:" + body.Requester, About: matter, Title: title, Body: raw, Hash: hex.EncodeToString(sum[:]), Created: now,
	}, acl.Slot{Key: kind + "/" + body.Ref + "/" + fmt.Sprint(now.UnixNano()), Term: kind, Max: 200})
	return changes
}

// ask commits a unit with a question.
func (b *Bridge) ask(ctx context.Context, changes []store.Change) error {
	err := b.x.records.Apply(ctx, changes, time.Now())
	if err == nil {
		b.cfg.Asks.Published(changes)
	}
	return err
}

// maxShown is how many capabilities of somebody who registers a question names; the executors' list has them all.
const maxShown = 50

// askRegistration is the question that goes with a registration. What it shows stays so until the owner's word: who
// waits for that can change nothing.
func (b *Bridge) askRegistration(r Registration) ([]store.Change, error) {
	n := min(len(r.Capabilities), maxShown)
	ids := make([]string, n)
	for i, c := range r.Capabilities[:n] {
		ids[i] = c.ID
	}
	said := wire.Obj(wire.Member{Key: "capabilities", Value: wire.Texts(ids)})
	if more := len(r.Capabilities) - n; more > 0 {
		said = said.With("more", wire.Int(int64(more)))
	}
	if r.Name != "" {
		said = said.With("display_name", wire.Text(r.Name))
	}
	return b.open(askRegister, aboutExecutor(r.ID), askBody{Ref: r.ID, Requester: r.ID, Said: said}, "an executor wants to join your MESS exchange", time.Now()), nil
}

func aboutExecutor(id string) string { return about("executors/" + id) }

// registrationAnswered are the changes that withdraw the question about a registration: the owner answered it at another
// door.
func (b *Bridge) registrationAnswered(ctx context.Context, id string) ([]store.Change, error) {
	return b.cfg.Asks.WithdrawAbout(ctx, aboutExecutor(id), func(acl.Ask) bool { return true }, time.Now())
}

// askHeld asks the owner about the threads of a conversation that wait.
func (b *Bridge) askHeld(ctx context.Context, who, conv string) {
	if b.cfg.Asks == nil {
		return
	}
	refs, _ := b.x.index.page("from:"+who, position{}, 50, func(e *entry) bool { return e.external == conv && e.status == Held })
	for _, ref := range refs {
		t, err := b.x.read(ctx, ref, time.Now())
		if err == nil && t.Parked == parkedApproval {
			var changes []store.Change
			if changes, err = b.question(ctx, askHeld, t, askBody{}, "a request needs your word before anybody acts on it"); err == nil {
				err = b.ask(ctx, changes)
			}
		}
		if err != nil {
			b.log.Error("the owner could not be asked", "thread", ref, "error", err)
		}
	}
}
