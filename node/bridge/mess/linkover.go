package mess

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// What somebody else asked for behind a link is ours to do only while the exchange there says so. It may have ended it, or
// given it to another. Then it ends here too, as if its requester had cancelled it: the task goes from the inbox, who works
// on it is told, and a question whether it may come in is withdrawn.

// via is the link through which somebody asked for a thread, "" for none.
func (t *Thread) via() string {
	address := t.Peers[t.Requester].Address
	if address == "" {
		return ""
	}
	a, err := bridge.ParseAddress(address)
	if err != nil {
		return ""
	}
	return a.Link
}

// opener is who asked for it, as the message says that did.
func (v remoteView) opener(otherwise string) string {
	for _, m := range v.messages {
		if b, err := FromTree(m.Mess); err == nil && m.From != "" && slices.ContainsFunc(b, func(e Entry) bool { return e.Type == "request" }) {
			return m.From
		}
	}
	return otherwise
}

// over says why nobody here need do anything about a thread that somebody else opened there; "" while that is not so. t is
// ours about it, nil for none. Who holds it there is not us where nobody here does. Where somebody does it is believed to
// be us, unless we were seen to hold it before: the name by which we are known there may be another than the configured one.
func (v remoteView) over(self string, k knownThread, t *Thread) string {
	switch {
	case v.gone:
		return "the exchange does not show it any more"
	case v.status.Terminal():
		return strings.Join(slices.DeleteFunc([]string{"it is " + string(v.status) + " there", v.lastWords()}, func(s string) bool { return s == "" }), ": ")
	case v.holder != "" && v.holder != self && (k.Held || t == nil || t.Holder == ""):
		return wire.OneLine(v.holder, 64) + " has taken it there"
	}
	return ""
}

// lastWords is the reason that the newest message gives for an end.
func (v remoteView) lastWords() string {
	if len(v.messages) == 0 {
		return ""
	}
	b, err := FromTree(v.messages[len(v.messages)-1].Mess)
	if err != nil {
		return ""
	}
	for _, e := range slices.Backward(b) {
		if code, _ := ParseCode(e.Body.GetStr("code")); e.Type == "cancel" || e.Type == "status" && code.Terminal() {
			return wire.OneLine(cmp.Or(in(e.Body, "").reason(false), e.Body.GetStr("message")), maxNote)
		}
	}
	return ""
}

// hides says whether a refusal to show a thread means that it is not there, or not for us. The same key has just listed
// threads.
func hides(e *client.SendError) bool {
	return e.Status == http.StatusNotFound || e.Status == http.StatusForbidden || e.Status == http.StatusGone
}

// standing remembers a thread that somebody else opened there, and ends ours where it is over.
func (l *link) standing(ctx context.Context, ref string, v remoteView, k knownThread, self string) error {
	changes := l.change(ref, k)
	t, err := l.here(ctx, k.Peer, k)
	if err != nil {
		return err
	}
	why := v.over(self, k, t)
	switch {
	case t != nil && t.Status.Open() && why != "":
		return l.b.end(ctx, t, "link", why, changes)
	case t == nil && why != "":
		if err := l.unask(ctx, k, why); err != nil {
			return err
		}
	case t != nil:
		delete(l.asked, k.Conv)
	}
	return l.b.x.records.Apply(ctx, changes, time.Now())
}

// end ends our thread as its requester, of whom it was heard through a channel; changes go with it.
func (b *Bridge) end(ctx context.Context, t *Thread, channel, why string, changes []store.Change) error {
	body := wire.Obj(wire.Member{Key: "re", Value: wire.Text(t.Ref)}, wire.Member{Key: "reason", Value: wire.Text(why)})
	who := Actor{ID: t.Requester, Channel: channel}
	_, err := b.x.Do(ctx, who, Block{{Type: "cancel", Body: body}}, Options{Lax: true, Re: t.Ref, Records: changes})
	if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry { // it has ended
		return b.x.records.Apply(ctx, changes, time.Now())
	}
	return err
}

// unask takes back the request of a thread that waits for the owner to let it in.
func (l *link) unask(ctx context.Context, k knownThread, why string) error {
	delete(l.asked, k.Conv)
	if l.b.cfg.Asks == nil {
		return nil
	}
	held := false
	_, err := l.b.cfg.Asks.Withdraw(ctx, store.ConvKey{Peer: l.pseudonym(k.Peer), ID: k.Conv}, func(a acl.Ask) bool {
		held = held || a.Kind == askMessage
		return false
	}, time.Now())
	if err != nil || !held {
		return err
	}
	body := wire.Obj(wire.Member{Key: "re", Value: wire.Text("last")}, wire.Member{Key: "reason", Value: wire.Text(why)})
	err = l.hand(ctx, k.Peer, k.Conv, "over", Entry{Type: "cancel", Body: body})
	if e, refused := errors.AsType[*wire.Error](err); refused && !e.Retry {
		return nil // it was decided
	}
	return err
}

// maxMissing is how many threads that the list does not show are looked at in one poll.
const maxMissing = 20

// missing looks at threads that are open here, or that the owner is asked about, and that the list does not show. An
// exchange shows nobody what another has taken, so this is how that is learned. A list may also be too short for all
// threads: one that is still there is looked at ever more seldom.
func (l *link) missing(ctx context.Context, list []remoteThread, self string) error {
	if err := errors.Join(l.b.x.load(), l.knowAsked(ctx)); err != nil {
		return err
	}
	via := "via:" + l.cfg.Name
	if l.b.x.index.length(via)+len(l.asked) == 0 {
		clear(l.hidden)
		return nil
	}
	listed := make(map[string]bool, len(list))
	for _, r := range list {
		listed[l.convOf(r.ref)] = true
		delete(l.hidden, l.convOf(r.ref))
	}
	if len(l.hidden) > maxNoted {
		clear(l.hidden)
	}
	due := func(conv string) bool { return !listed[conv] && !time.Now().Before(l.hidden[conv].at) }
	entries, _ := l.b.x.index.entries(via, position{}, maxMissing, func(e *entry) bool { return due(e.external) })
	convs := make([]string, 0, maxMissing)
	for _, e := range entries {
		convs = append(convs, e.external)
	}
	for conv := range l.asked {
		if len(convs) < maxMissing && due(conv) {
			convs = append(convs, conv)
		}
	}
	for _, conv := range convs {
		pause := min(max(2*l.hidden[conv].pause, firstPause), lastPause)
		l.hidden[conv] = postponed{at: time.Now().Add(pause), pause: pause}
		err := l.lookFor(ctx, conv, self)
		if ctx.Err() != nil || errors.Is(err, errAway) || errors.Is(err, store.ErrUnavailable) {
			delete(l.hidden, conv)
			return err
		}
		if err != nil {
			l.b.log.Info("a thread that a link does not show waits", "link", l.cfg.Name, "conversation", conv, "error", err)
		}
	}
	return nil
}

// lookFor looks at the thread of a conversation.
func (l *link) lookFor(ctx context.Context, conv, self string) error {
	rec, err := l.b.x.records.Get(ctx, nsMeta, l.convRecord(conv), time.Now())
	if err != nil {
		return ignoreMissing(err)
	}
	l.making.Lock()
	defer l.making.Unlock()
	ref := string(rec.Body)
	k, found, err := l.load(ctx, ref)
	if err != nil || !found {
		return err
	}
	return l.follow(ctx, remoteThread{ref: ref, updated: k.Updated}, k, self)
}

// askMessage is the kind of the node's questions whether a message may come in.
const askMessage = "message"

// knowAsked finds, after a start, the threads that wait for the owner to let them in.
func (l *link) knowAsked(ctx context.Context) error {
	if l.asked != nil || l.b.cfg.Asks == nil {
		return nil
	}
	asked := map[string]bool{}
	for after := ""; ; {
		asks, next, err := l.b.cfg.Asks.List(ctx, acl.AskFilter{State: acl.AskPending}, after, 100, time.Now())
		if err != nil {
			return err
		}
		for _, a := range asks {
			var held struct {
				Address string `json:"address"`
			}
			if a.Kind != askMessage || json.Unmarshal(a.Body, &held) != nil {
				continue
			}
			if from, err := bridge.ParseAddress(held.Address); err == nil && from.Kind == Kind && from.Link == l.cfg.Name {
				asked[a.Conv.ID] = true
			}
		}
		if after = next; after == "" {
			l.asked = asked
			return nil
		}
	}
}

// answers says whether a block is answers and nothing else: an exchange takes them of who asked for the thread, and of its
// owner in that place.
func (b Block) answers() bool {
	return !slices.ContainsFunc(b, func(e Entry) bool { return e.Type != "v" && e.Type != "reply" && e.Type != "answer" })
}

// unnamed has entries about a foreign thread speak of the newest, which in its conversation it is: its ref is that
// exchange's, and may be another thread's here.
func (b Block) unnamed(ref string) Block {
	out := slices.Clone(b)
	for i, e := range out {
		if e.Body.Kind() == wire.Object && first(e.Body) == ref {
			out[i].Body = e.Body.With("re", wire.Text("last"))
		}
	}
	return out
}
