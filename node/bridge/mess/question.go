package mess

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/registry"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// askBody is the content of a question to the owner. Everything except Status and Serial may come from strangers.
type askBody struct {
	Ref        string     `json:"ref"`
	Requester  string     `json:"requester,omitempty"`
	Status     string     `json:"status,omitempty"`
	Intent     string     `json:"intent,omitempty"`
	Candidates []Agent    `json:"candidates,omitempty"`
	Executor   string     `json:"executor,omitempty"`
	Serial     int        `json:"serial,omitempty"` // serial of the newest message in the thread when the question was asked
	Said       wire.Value `json:"said,omitzero"`    // the message that the question shows, or the registration
}

// newQuestion returns the changes that ask the owner about a thread. The question shows the status in which the
// executor asks, or else the request.
func (b *Bridge) newQuestion(ctx context.Context, kind string, t *thread.Thread, body askBody, title string) ([]store.Change, error) {
	m, err := b.questionMessage(ctx, t, kind)
	if err != nil {
		return nil, err
	}
	body.Ref, body.Requester, body.Status, body.Executor, body.Serial = t.Ref, t.Requester, string(t.Status), t.Holder, t.Serial
	body.Intent, body.Said = t.Intent, thread.ToResources(t.Ref, m.Mess)
	if len(body.Said.JSON()) > maxTask {
		body.Said = wire.Obj(wire.Field("shortened", wire.Bool(true)))
	}
	return b.openQuestion(kind, aboutThread(t.Ref), body, title, time.Now()), nil
}

// questionMessage returns the message of the thread that a question of this kind shows.
func (b *Bridge) questionMessage(ctx context.Context, t *thread.Thread, kind string) (thread.Message, error) {
	if kind != askConfirm {
		return b.newestMessage(ctx, t.Ref, 1, func(thread.Message) bool { return true })
	}
	return b.newestMessage(ctx, t.Ref, t.Serial, func(m thread.Message) bool {
		return slices.ContainsFunc(m.Block(), func(e thread.Entry) bool {
			return e.Type == "status" && e.Body.GetStr("code") == string(thread.NeedsConfirmation)
		})
	})
}

// newestMessage returns the newest message of a thread, with at most the given serial, for which matches returns true.
// If no message matches, it returns the first message. It ignores refused messages.
func (b *Bridge) newestMessage(ctx context.Context, ref string, serial int, matches func(thread.Message) bool) (m thread.Message, err error) {
	for ; serial >= 1; serial-- {
		if m, err = b.x.Message(ctx, ref, serial); err != nil || m.Channel != thread.ChannelRefused && matches(m) {
			return m, err
		}
	}
	return m, nil
}

// openQuestion returns the changes that ask the owner about a subject: a thread or a registration.
func (b *Bridge) openQuestion(kind, about string, body askBody, title string, now time.Time) []store.Change {
	raw := wire.MustMarshal(body)
	_, changes := b.cfg.Mesh.Asks().Open(acl.Ask{
		Kind: kind, Subject: "mess:" + body.Requester, About: about, Title: title, Body: raw, Hash: acl.HashBody(raw), Created: now,
		Lasting: kind == askRegister,
	}, acl.Slot{Key: kind + "/" + body.Ref + "/" + fmt.Sprint(now.UnixNano()), Term: kind, Max: registry.MaxQuestions})
	return changes
}

// maxShown bounds the capabilities in a question about a registration. The list of executors shows all of them.
const maxShown = 50

// askRegistration returns the changes that ask the owner about a registration. A pending executor cannot change itself,
// so the question stays correct.
func (b *Bridge) askRegistration(r *registry.Executor) ([]store.Change, error) {
	n := min(len(r.Capabilities), maxShown)
	ids := make([]string, n)
	for i, c := range r.Capabilities[:n] {
		ids[i] = c.ID
	}
	shown := wire.Obj(wire.Field("capabilities", wire.Texts(ids)))
	if more := len(r.Capabilities) - n; more > 0 {
		shown = shown.With("more", wire.Int(int64(more)))
	}
	body := askBody{Ref: r.ID, Requester: r.ID, Said: shown.WithOptional("display_name", r.Name)}
	return b.openQuestion(askRegister, aboutExecutor(r.ID), body, "an executor wants to join your MESS exchange", time.Now()), nil
}

func aboutExecutor(id string) string { return aboutThread("executors/" + id) }

// withdrawRegistration returns the changes that withdraw a question about a registration that was answered elsewhere.
func (b *Bridge) withdrawRegistration(ctx context.Context, id string) ([]store.Change, error) {
	return b.cfg.Mesh.Asks().WithdrawAbout(ctx, aboutExecutor(id), func(acl.Ask) bool { return true }, time.Now())
}
