package exchange

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
)

// This file applies what peers say about threads that were sent to them (see [Authority]). A foreign exchange, behind
// a link, is the authority for its own threads: our thread takes the state that it reports, even one that an executor may
// not set by the state table in section 5 of MESS. An agent of the mesh may report only the states that the table allows
// an executor, and those that its exchange sets: expired, cancelled and superseded.

// follow applies a status from the peer to which the thread was sent. done is false if the usual rules apply instead.
func (t *tx) follow(th *thread.Thread, s thread.Status, e thread.Entry) (done bool, err error) {
	by := t.who.ID
	isUnclaimed := th.Holder == "" // the peer has not told us of an executor
	isParking := isUnclaimed && (s.Code == thread.Held || s.Code == thread.Waiting)
	successor := e.Successor()
	switch {
	case t.opts.Authority == OurExchange:
		return false, nil
	// a mesh agent reports a state that an executor may set
	case t.opts.Authority == SentToAgent && !isParking && successor == "" && !slices.Contains([]thread.Code{thread.Expired, thread.Cancelled, thread.Superseded}, s.Code):
		return false, nil
	case th.Status.Terminal() && s.Code != th.Status:
		return true, thread.Conflict("the thread is %s", th.Status)
	case th.Holder != "" && th.Holder != by:
		return true, thread.ErrTaken
	case isUnclaimed && (!th.IsOfferedTo(by) || !th.IsClaimable() && !th.WaitsForPeer() && !th.Status.Terminal()):
		return true, thread.Conflict("the thread is %s", th.Status)
	}
	switch body := s.Body; {
	case th.Status.Terminal():
		t.post(th, e)
	case successor != "":
		t.post(th, th.ContinueAs(by, s, successor, t.now))
	case isParking:
		reason := thread.ParkedPeer
		switch {
		case t.opts.Pending && th.WaitsForPeer():
			// The peer has accepted the request and asks its owner about the work. A late acknowledgement of the request
			// must not end that wait.
			reason = th.Parked
		case t.opts.Pending:
			reason = thread.ParkedPending
		}
		if th.Status != s.Code {
			th.Become(s.Code, by, s.Message, t.now)
		}
		th.Parked = reason
		t.post(th, e)
	case isUnclaimed && slices.Contains([]thread.Code{thread.Declined, thread.Failed, thread.Cancelled, thread.Expired}, s.Code):
		t.withdrawPeer(th, s, e)
	default:
		if isUnclaimed && s.Code != thread.Superseded && s.Code != thread.Received {
			th.Claim(by, t.now)
		}
		if s.Code == thread.Received { // the peer's executor gave it back
			th.Holder = ""
		}
		if s.Code != th.Status {
			th.Become(s.Code, by, s.Message, t.now)
		}
		th.ApplyStatus(s, t.now)
		if s.Code == thread.Claimed && body.GetStr("executor") == "" {
			body = body.With("executor", wire.Text(by))
		}
		t.post(th, thread.Entry{Type: "status", Body: describeSuccessors(body)})
		if isUnclaimed && th.Holder != "" {
			t.notices.withdrawOffers(th, th.Holder)
		}
	}
	return true, nil
}

// withdrawPeer handles a peer that has not claimed the thread and now never will. If nobody else may claim the thread, it
// ends with the peer's status (MESS-24).
func (t *tx) withdrawPeer(th *thread.Thread, s thread.Status, e thread.Entry) {
	th.Declined = append(th.Declined, t.who.ID)
	if t.x.Executors.HasNoCandidate(th) {
		th.Become(s.Code, t.who.ID, cmp.Or(s.Reason, s.Message), t.now)
	}
	t.post(th, e)
}

// describeSuccessors replaces the refs of the successors of the peer's thread with a message. In our exchange the refs
// would mean nothing, or another thread.
func describeSuccessors(body wire.Value) wire.Value {
	list, isSuperseded := body.Get("superseded_by")
	if body = body.Without("ref").Without("superseded_by"); !isSuperseded {
		return body
	}
	if list.Kind() != wire.Array {
		list = wire.Arr(list)
	}
	var names []string
	for v := range list.Elems() {
		if name, ok := v.Str(); ok && thread.IsSafeRef(name) && len(names) < 50 {
			names = append(names, name)
		}
	}
	if len(names) == 0 && body.GetStr("message") != "" {
		return body // another exchange has already replaced the refs with this message
	}
	return body.With("message", wire.Text("it continues there as "+cmp.Or(strings.Join(names, ", "), "others")+", which are not followed here"))
}

// followResponse applies a result from the exchange behind a link, in any open state. done is false if the usual rules
// apply instead.
func (t *tx) followResponse(th *thread.Thread, e thread.Entry) (done bool) {
	if t.opts.Authority != SentToExchange || !th.Status.Open() || th.Holder != "" && th.Holder != t.who.ID || th.Holder == "" && !th.IsClaimable() {
		return false
	}
	if th.Holder == "" {
		th.Claim(t.who.ID, t.now)
		t.notices.withdrawOffers(th, th.Holder)
	}
	t.post(th, e)
	return true
}

// forwardDecision passes the requester's decision to the exchange that made the suggestion. That exchange carries the
// suggestion out, because its own threads and executors are concerned; our thread follows the thread there.
func (t *tx) forwardDecision(th *thread.Thread, e thread.Entry, s *thread.Suggestion, accept bool) error {
	word, by := "refused", s.By
	if accept {
		word = "accepted"
		switch canProceed := th.IsClaimable() || th.WaitsForPeer(); {
		case !th.Status.Open(), th.Holder == "" && !canProceed && th.Parked != thread.ParkedApproval:
			return thread.Conflict("the thread is %s", th.Status)
		case th.Holder != "" && th.Holder != by, !th.IsOfferedTo(by):
			return thread.Conflict("the executor that suggested it no longer works on the thread")
		}
		if err := checkOwnerHold(t.who, th); err != nil {
			return err
		}
	}
	e.Body = e.Body.With("re", wire.Text(s.ID))
	s.Decided = word
	t.post(th, e)
	t.flush(th)
	if th.Holder != by { // the holder gets a notice of every message anyway
		t.notices.add(by, NoticeUpdate, th)
	}
	return nil
}
