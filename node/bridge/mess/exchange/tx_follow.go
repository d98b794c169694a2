package exchange

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// What those say of a thread that it was sent to (Options.Sent). The exchange behind a link is right about its own threads
// (Options.Follow): ours goes to the state that it says, whatever section 5 lets an executor do. An agent of the mesh is held
// to section 5; only what its exchange may do, and no executor, is followed.

// follow applies a status of whom the thread was sent to. done is false for one that is judged as any executor's.
func (t *tx) follow(th *thread.Thread, s thread.Status, e thread.Entry) (done bool, err error) {
	by := t.who.ID
	nobody := th.Holder == "" // works on it there, as far as we know
	parks := nobody && (s.Code == thread.Held || s.Code == thread.Waiting)
	goesOn := e.Successor()
	switch {
	case t.opts.Sent == "":
		return false, nil
	case !t.opts.Follow && !parks && goesOn == "" && !slices.Contains([]thread.Code{thread.Expired, thread.Cancelled, thread.Superseded}, s.Code):
		return false, nil
	case th.Status.Terminal() && s.Code != th.Status:
		return true, thread.Conflict("the thread is %s", th.Status)
	case !nobody && th.Holder != by:
		return true, thread.ErrTaken
	case nobody && (!th.IsOfferedTo(by) || !th.IsClaimable() && !th.WaitsForPeer() && !th.Status.Terminal()):
		return true, thread.Conflict("the thread is %s", th.Status)
	}
	switch body := s.Body; {
	case th.Status.Terminal():
		t.say(th, e)
	case goesOn != "":
		t.goOn(th, s, goesOn)
	case parks:
		waits := t.opts.Sent
		if th.WaitsForPeer() && waits == thread.ParkedPending {
			waits = th.Parked // it was let in, and its owner is asked about the job now: the ack of the request is no end of that
		}
		if th.Status != s.Code {
			th.Become(s.Code, by, s.Message, t.now)
		}
		th.Parked = waits
		t.say(th, e)
	case nobody && slices.Contains([]thread.Code{thread.Declined, thread.Failed, thread.Cancelled, thread.Expired}, s.Code):
		t.dropOut(th, s, e)
	default:
		if nobody && s.Code != thread.Superseded && s.Code != thread.Received {
			th.Claim(by, t.now)
		}
		if s.Code == thread.Received { // its executor there gave it back
			th.Holder = ""
		}
		if s.Code != th.Status {
			th.Become(s.Code, by, s.Message, t.now)
		}
		th.ApplyStatus(s, t.now)
		if s.Code == thread.Claimed && body.GetStr("executor") == "" {
			body = body.With("executor", wire.Text(by))
		}
		t.say(th, thread.Entry{Type: "status", Body: goneOn(body)})
		if nobody && th.Holder != "" {
			t.claimed(th)
		}
	}
	return true, nil
}

// dropOut takes back a thread from whom it was sent to, and who has not claimed it. If nobody else is left for it, it ends as
// it ended there (MESS-24).
func (t *tx) dropOut(th *thread.Thread, s thread.Status, e thread.Entry) {
	th.Declined = append(th.Declined, t.who.ID)
	if t.x.Executors.none(th) && (t.x.Hears == nil || !t.x.Hears(ToDirectory)) {
		th.Become(s.Code, t.who.ID, cmp.Or(s.Reason, s.Message), t.now)
	}
	t.say(th, e)
	if !th.Status.Terminal() && t.x.Executors.none(th) { // others may be listed
		t.tell(ToDirectory, NoticeOffer, th.Ref, th.Serial)
	}
}

// goOn keeps a thread that was delegated to another thread there: whom it was sent to goes on with it under that name. What
// was asked in the older one is asked no more.
func (t *tx) goOn(th *thread.Thread, s thread.Status, as string) {
	if p := th.Peers[t.who.ID]; p.Address == "" {
		p.Name = as
		th.Peers[t.who.ID] = p
	}
	if th.AwaitsRequester() {
		th.Become(thread.Claimed, t.who.ID, "", t.now)
	}
	words := "it goes on there as " + wire.OneLine(as, thread.MaxID)
	if s.Delegated != "" {
		words += ", with " + wire.OneLine(s.Delegated, 64)
	}
	t.say(th, th.StatusEntry(wire.TextField("message", words)))
}

// goneOn says in words as which threads one goes on that was superseded or delegated there. Their refs mean nothing here, or
// another thread.
func goneOn(body wire.Value) wire.Value {
	list, superseded := body.Get("superseded_by")
	if body = body.Without("ref").Without("superseded_by"); !superseded {
		return body
	}
	if list.Kind() != wire.Array {
		list = wire.Arr(list)
	}
	var names []string
	for v := range list.Elems() {
		if name, ok := v.Str(); ok && thread.SafeRef.MatchString(name) && len(names) < 50 {
			names = append(names, name)
		}
	}
	if len(names) == 0 && body.GetStr("message") != "" {
		return body // of an exchange behind that one
	}
	return body.With("message", wire.Text("it goes on there as "+cmp.Or(strings.Join(names, ", "), "others")+": that is not followed here"))
}

// followResponse takes in a result from the exchange behind a link in any open state. done is false if it is judged as any
// executor's.
func (t *tx) followResponse(th *thread.Thread, e thread.Entry) (done bool) {
	if !t.opts.Follow || !th.Status.Open() || th.Holder != "" && th.Holder != t.who.ID || th.Holder == "" && !th.IsClaimable() {
		return false
	}
	if th.Holder == "" {
		th.Claim(t.who.ID, t.now)
		defer t.claimed(th)
	}
	t.say(th, e)
	return true
}

// decideThere hands the requester's word to the exchange that made a suggestion. It means the threads, executors and times of
// that exchange, which carries it out; our thread goes the way of the one there.
func (t *tx) decideThere(ctx context.Context, th *thread.Thread, e thread.Entry, s *thread.Suggestion, accept bool) error {
	word, by := "refused", s.By
	if accept {
		word = "accepted"
		switch free := th.IsClaimable() || th.WaitsForPeer(); {
		case !th.Status.Open(), th.Holder == "" && !free && th.Parked != thread.ParkedApproval:
			return thread.Conflict("the thread is %s", th.Status)
		case th.Holder != "" && th.Holder != by, !th.IsOfferedTo(by):
			return thread.Conflict("who suggested it does not work on the thread any more")
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
	if th.Holder != by { // the executor of the thread hears all that is said in it
		t.tell(by, NoticeUpdate, th.Ref, th.Serial)
	}
	return nil
}

// mark notes the word about a suggestion, and about the same one in the other threads that it is about: of a merge there,
// every thread hears for itself.
func (t *tx) mark(ctx context.Context, th *thread.Thread, s thread.Suggestion, word string) error {
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
		if same := other.FindSuggestion(s.ID); same != nil && same.By == s.By && same.Type == s.Type {
			same.Decided = word
			t.touch(other)
		}
	}
	return nil
}
