package mess

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/wire"
)

// What an executor of another exchange suggests about a thread that was sent there is carried out there: it means the
// threads, executors and times of that exchange. The requester's word goes there under the id that the suggestion has
// there. Here nothing is done; our thread goes the way of the one there.

// decides says whether an entry is the word about a suggestion.
func (e Entry) decides() bool {
	accept, ok := e.Body.Get("accept")
	return ok && e.Type == "reply" && !accept.IsNull()
}

// onlyDecides says whether a block is such words and nothing else.
func (b Block) onlyDecides() bool {
	return len(b) > 0 && !slices.ContainsFunc(b, func(e Entry) bool { return e.Type != "v" && !e.decides() })
}

func isRefusal(err error) bool {
	e, ok := errors.AsType[*wire.Error](err)
	return ok && !e.Retry
}

// decidesFor says whether an entry is the word about a suggestion that a peer made.
func (t *Thread) decidesFor(e Entry, peer string) bool {
	re := first(e.Body)
	return e.decides() && slices.ContainsFunc(t.Suggestions, func(s Suggestion) bool { return s.ID == re && s.By == peer })
}

// there is a block for another exchange, where a thread is known as ref. The word about a suggestion of its names that.
func (b Block) there(ref string) Block {
	out := b.about(ref)
	for i, e := range b {
		if e.decides() {
			out[i] = e
		}
	}
	return out
}

// madeThere says whether it is for the exchange of a peer to carry a suggestion out.
func (t *Thread) madeThere(s *Suggestion) bool { return s != nil && t.Peers[s.By].Offered }

// agreed says whether the requester said yes to a suggestion of a peer's, of one of these types.
func (t *Thread) agreed(peer string, types ...string) bool {
	return slices.ContainsFunc(t.Suggestions, func(s Suggestion) bool {
		return s.By == peer && s.Decided == "accepted" && slices.Contains(types, s.Type)
	})
}

// decideThere hands the requester's word to the exchange that made the suggestion.
func (t *tx) decideThere(ctx context.Context, th *Thread, e Entry, s *Suggestion, accept bool) error {
	word, by := "refused", s.By
	if accept {
		word = "accepted"
		switch free := th.claimable() || th.waitsForPeer(); {
		case !th.Status.Open(), th.Holder == "" && !free && th.Parked != parkedApproval:
			return conflict("the thread is %s", th.Status)
		case th.Holder != "" && th.Holder != by, !th.offeredTo(by):
			return conflict("who suggested it does not work on the thread any more")
		}
		if err := t.mayGoOn(th); err != nil {
			return err
		}
	}
	e.Body = e.Body.With("re", wire.Text(s.ID))
	if err := t.mark(ctx, th, *s, word); err != nil {
		return err
	}
	t.say(th, e)
	t.flushOne(th)
	if th.Holder != by { // who has the thread is told of all that is said in it
		t.tell(by, noticeUpdate, th.Ref, th.Serial)
	}
	return nil
}

// mark notes the word about a suggestion, and about the same one in the other threads that it is about: of a merge there,
// every thread hears for itself.
func (t *tx) mark(ctx context.Context, th *Thread, s Suggestion, word string) error {
	refs := []string{th.Ref}
	if s.Type == "merge" {
		tag := own(th.Requester, s.ID)
		more, _ := t.x.index.page("from:"+th.Requester, position{}, maxSuggestions, func(e *entry) bool {
			return e.ref != th.Ref && slices.Contains(e.tags, tag)
		})
		refs = append(refs, more...)
	}
	for _, ref := range refs {
		other, err := t.load(ctx, ref)
		if err != nil {
			return err
		}
		if same := other.suggestion(s.ID); same != nil && same.By == s.By && same.Type == s.Type {
			same.Decided = word
			t.touch(other)
		}
	}
	return nil
}

// asAgreed takes in what the exchange of a peer says about a thread when it carries out what the requester said yes to, and
// that no executor may say: other threads there take its place, or it waits there with nobody who works on it.
func (t *tx) asAgreed(th *Thread, s Status, e Entry) bool {
	by := t.who.ID
	switch {
	case t.opts.Sent == "" || !th.Status.Open():
		return false
	case s.Code == Superseded && th.agreed(by, "split", "merge") && (th.Holder == by || th.Holder == "" && th.offeredTo(by)):
		t.flushOne(th)
		th.become(Superseded, by, s.Message, t.now)
		t.touch(th)
		t.add(th, exchangeID, Block{{Type: e.Type, Body: goneOn(e.Body)}}) // no executor says that
	case s.Code == Waiting && th.claimable() && th.offeredTo(by) && th.agreed(by, "defer"):
		th.become(Waiting, by, s.Message, t.now)
		th.Parked = parkedPeer
		t.say(th, e)
	default:
		return false
	}
	return true
}

// goneOn says in words as which threads one goes on there. Their refs mean nothing here, or another thread.
func goneOn(body wire.Value) wire.Value {
	list, _ := body.Get("superseded_by")
	if list.Kind() != wire.Array {
		list = wire.Arr(list)
	}
	var names []string
	for v := range list.Elems() {
		if name, ok := v.Str(); ok && safeRef.MatchString(name) && len(names) < 50 {
			names = append(names, name)
		}
	}
	if body = body.Without("superseded_by"); len(names) == 0 && body.GetStr("message") != "" {
		return body // of an exchange behind that one
	}
	as := cmp.Or(strings.Join(names, ", "), "others")
	return body.With("message", wire.Text("it goes on there as "+as+": that is not followed here"))
}
