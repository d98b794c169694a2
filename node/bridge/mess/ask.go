package mess

import (
	"context"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
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
func (b *Bridge) question(ctx context.Context, kind string, t *thread.Thread, more askBody, title string) ([]store.Change, error) {
	m, err := b.saying(ctx, t, kind)
	if err != nil {
		return nil, err
	}
	more.Ref, more.Requester, more.Status, more.Executor, more.Serial = t.Ref, t.Requester, string(t.Status), t.Holder, t.Serial
	more.Intent, more.Said = t.Intent, thread.ToResources(t.Ref, m.Mess)
	if len(more.Said.JSON()) > maxTask {
		more.Said = wire.Obj(wire.Field("shortened", wire.Bool(true)))
	}
	return b.open(kind, about(t.Ref), more, title, time.Now()), nil
}

// saying returns the message that a question is about.
func (b *Bridge) saying(ctx context.Context, t *thread.Thread, kind string) (thread.Message, error) {
	if kind != askConfirm {
		return b.newest(ctx, t.Ref, 1, func(thread.Message) bool { return true })
	}
	return b.newest(ctx, t.Ref, t.Serial, func(m thread.Message) bool {
		for e := range m.Mess.Elems() {
			if status, _ := e.Get("status"); status.GetStr("code") == string(thread.NeedsConfirmation) {
				return true
			}
		}
		return false
	})
}

// newest returns the newest message of a thread up to serial that is, however much was said since; else the first one.
// What the state machine refused counts for nothing.
func (b *Bridge) newest(ctx context.Context, ref string, serial int, is func(thread.Message) bool) (m thread.Message, err error) {
	for ; serial >= 1; serial-- {
		if m, err = b.x.Message(ctx, ref, serial); err != nil || m.Channel != thread.ChannelRefused && is(m) {
			return m, err
		}
	}
	return m, nil
}

// open asks the owner about a matter: a thread, or somebody who registered.
func (b *Bridge) open(kind, matter string, body askBody, title string, now time.Time) []store.Change {
	raw := thread.Encode(body)
	_, changes := b.cfg.Mesh.Asks().Open(acl.Ask{
		Kind: kind, Subject: "mess:" + body.Requester, About: matter, Title: title, Body: raw, Hash: acl.HashBody(raw), Created: now,
	}, acl.Slot{Key: kind + "/" + body.Ref + "/" + fmt.Sprint(now.UnixNano()), Term: kind, Max: exchange.MaxQuestions})
	return changes
}

// ask commits a unit with a question.
func (b *Bridge) ask(ctx context.Context, changes []store.Change) error {
	return b.records.Apply(ctx, changes, time.Now())
}

// maxShown is how many capabilities of somebody who registers a question names; the executors' list has them all.
const maxShown = 50

// askRegistration is the question that goes with a registration. What it shows stays so until the owner's word: who
// waits for that can change nothing.
func (b *Bridge) askRegistration(r exchange.Registration) ([]store.Change, error) {
	n := min(len(r.Capabilities), maxShown)
	ids := make([]string, n)
	for i, c := range r.Capabilities[:n] {
		ids[i] = c.ID
	}
	said := wire.Obj(wire.Field("capabilities", wire.Texts(ids)))
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
	return b.cfg.Mesh.Asks().WithdrawAbout(ctx, aboutExecutor(id), func(acl.Ask) bool { return true }, time.Now())
}
