package mess

import (
	"encoding/json"
	"fmt"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// Notice says that somebody must be told of a message in a thread. It is stored in the unit that brings the message and
// goes in the unit that tells it on, so each is told exactly once, also after a restart (MESS-28).
type Notice struct {
	To     string `json:"to"` // an executor, a requester, the owner, or toDirectory
	Kind   string `json:"kind"`
	Ref    string `json:"ref"`
	Serial int    `json:"serial"`

	key string
	rev store.Rev
}

// The kinds of notices.
const (
	noticeOffer  = "offer"  // a thread that To may claim
	noticeUpdate = "update" // something was said in a thread of To's
	noticeTaken  = "taken"  // a thread that was sent to To is nothing for To any more
	noticeTurn   = "turn"   // what the owner can do about a thread is another thing now
)

// toDirectory is told of a thread that nobody here may claim.
const toDirectory = "directory:"

// notify decides who must be told of a message.
func (t *tx) notify(th *thread.Thread, from string, e thread.Entry, serial int) {
	if e.Type == "request" || t.quiet {
		return // offers say it
	}
	for _, to := range []string{th.Requester, th.Holder} {
		if to != "" && to != from && !(to == th.Holder && to == th.Requester && from == to) && !isWithheld(th, to, e) {
			t.tell(to, noticeUpdate, th.Ref, serial)
		}
		if th.Holder == th.Requester {
			return
		}
	}
}

// isWithheld reports whether a status is not sent to the peer that asked, because nobody here has claimed the thread. Behind
// a link such a status would claim it, and one executor here that declines does not decline for all (MESS-24).
func isWithheld(t *thread.Thread, to string, e thread.Entry) bool {
	p, peer := t.Peers[to]
	if !peer || to != t.Requester || t.Holder != "" || e.Type != "status" || t.Status.Terminal() {
		return false
	}
	code, _ := thread.ParseCode(e.Body.GetStr("code"))
	return p.Address != "" || code == thread.Declined
}

// tellOffered has the peers that a thread was sent to, and that have not declined it, take it back, but for one.
func (t *tx) tellOffered(th *thread.Thread, but string) {
	for id, p := range th.Peers {
		if p.Offered && id != but && th.IsOfferedTo(id) {
			t.tell(id, noticeTaken, th.Ref, th.Serial)
		}
	}
}

// tellEnded has the peers that may claim a thread which has ended, or who has, take it back, but for who ended it.
func (t *tx) tellEnded() {
	for _, ref := range t.order {
		th := t.threads[ref]
		if !th.Status.Terminal() || t.was[ref].code.Terminal() {
			continue
		}
		by := th.History[len(th.History)-1].By
		if th.Holder == "" {
			t.tellOffered(th, by)
		} else if th.Holder != by && th.Peers[th.Holder].Offered {
			t.tell(th.Holder, noticeTaken, ref, th.Serial)
		}
	}
}

// tell adds a notice for somebody who hears of things; the others ask.
func (t *tx) tell(to, kind, ref string, serial int) {
	if t.x.hears == nil || !t.x.hears(to) {
		return
	}
	t.told++
	if to == thread.OwnerID {
		t.owner[ref] = true
	}
	n := Notice{To: to, Kind: kind, Ref: ref, Serial: serial}
	key := fmt.Sprintf("%019d-%s-%012d", t.now.UnixNano(), ref, t.x.told.Add(1)) // several units may fall into one millisecond
	t.changes = append(t.changes, store.Change{Record: store.Record{NS: nsNotices, Key: key, Body: thread.Encode(n)}, IfRev: store.Any})
}

// tellTurns tells the owner's desk of the threads about which the owner can do another thing than before. A notice of
// any kind does.
func (t *tx) tellTurns() {
	for _, ref := range t.order {
		th, was := t.threads[ref], t.was[ref]
		turn := turnOf(th)
		if !t.owner[ref] && (turn != was.turn || turn != "" && th.Holder != was.holder) {
			t.tell(thread.OwnerID, noticeTurn, ref, th.Serial)
		}
	}
}

func decodeNotice(rec store.Record) (Notice, error) {
	n := Notice{key: rec.Key, rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, &n); err != nil {
		return n, fmt.Errorf("decode notice: %w", err)
	}
	return n, nil
}

// done is the change that ends a notice. It fails where somebody else has told it.
func (n Notice) done() store.Change {
	return store.Change{Record: store.Record{NS: nsNotices, Key: n.key}, IfRev: n.rev, Delete: true}
}

func (x *Exchange) wakeCourier() {
	select {
	case x.news <- struct{}{}:
	default:
	}
}

// offer tells those who may claim a thread and want to be told. An executor with a pattern that matches claims at once.
func (t *tx) offer(th *thread.Thread) {
	th.Offered = true
	t.touch(th)
	offers := t.x.crew.route(th, t.now)
	for _, o := range offers {
		if c := t.x.crew.get(o.ID); o.Told && c != nil && len(c.Preferences.AutoClaim) > 0 && c.autoClaims(th) {
			th.Claim(o.ID, t.now)
			t.tellState(th)
			return
		}
	}
	for _, o := range offers {
		if o.Told {
			t.tell(o.ID, noticeOffer, th.Ref, th.Serial)
		}
	}
	if th.Requester != thread.OwnerID {
		t.tell(thread.OwnerID, noticeOffer, th.Ref, th.Serial)
	}
	if len(offers) == 0 {
		t.tell(toDirectory, noticeOffer, th.Ref, th.Serial)
	}
}
