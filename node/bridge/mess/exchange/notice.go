package exchange

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/store"
)

// Notice says that somebody must be told of a message in a thread. It is stored in the unit that brings the message and
// goes in the unit that tells it on, so each is told exactly once, also after a restart (MESS-28).
type Notice struct {
	To     string `json:"to"` // an executor, a requester, the owner, or ToDirectory
	Kind   string `json:"kind"`
	Ref    string `json:"ref"`
	Serial int    `json:"serial"`

	key string
	rev store.Rev
}

// The kinds of notices.
const (
	NoticeOffer  = "offer"  // a thread that To may claim
	NoticeUpdate = "update" // something was said in a thread of To's
	NoticeTaken  = "taken"  // a thread that was sent to To is nothing for To any more
	NoticeTurn   = "turn"   // what the owner can do about a thread is another thing now
)

// ToDirectory is told of a thread that nobody here may claim.
const ToDirectory = "directory:"

// notify decides who must be told of a message.
func (t *tx) notify(th *thread.Thread, from string, e thread.Entry, serial int) {
	if e.Type == "request" || t.quiet {
		return // offers say it
	}
	for _, to := range []string{th.Requester, th.Holder} {
		if to != "" && to != from && !(to == th.Holder && to == th.Requester && from == to) && !isWithheld(th, to, e) {
			t.tell(to, NoticeUpdate, th.Ref, serial)
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
			t.tell(id, NoticeTaken, th.Ref, th.Serial)
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
			t.tell(th.Holder, NoticeTaken, ref, th.Serial)
		}
	}
}

// tell adds a notice for somebody who hears of things; the others ask.
func (t *tx) tell(to, kind, ref string, serial int) {
	if t.x.Hears == nil || !t.x.Hears(to) {
		return
	}
	t.told++
	if to == thread.OwnerID {
		t.owner[ref] = true
	}
	n := Notice{To: to, Kind: kind, Ref: ref, Serial: serial}
	key := fmt.Sprintf("%019d-%s-%012d", t.now.UnixNano(), ref, t.x.told.Add(1)) // several units may fall into one millisecond
	t.changes = append(t.changes, store.Change{Record: store.Record{NS: NSNotices, Key: key, Body: thread.Encode(n)}, IfRev: store.Any})
}

// tellTurns tells the owner's desk of the threads about which the owner can do another thing than before. A notice of
// any kind does.
func (t *tx) tellTurns() {
	for _, ref := range t.order {
		th, was := t.threads[ref], t.was[ref]
		turn := th.Turn()
		if !t.owner[ref] && (turn != was.turn || turn != "" && th.Holder != was.holder) {
			t.tell(thread.OwnerID, NoticeTurn, ref, th.Serial)
		}
	}
}

// Notices returns the notices that were not told yet, in pages. next is where the next page begins, "" after the last one.
func (x *Exchange) Notices(ctx context.Context, after string) (list []Notice, next string, err error) {
	page, err := x.records.List(ctx, NSNotices, "", after, 200, time.Now())
	if err != nil {
		return nil, "", err
	}
	for _, rec := range page.Records {
		n, err := decodeNotice(rec)
		if err != nil {
			return nil, "", err
		}
		list = append(list, n)
	}
	return list, page.Next, nil
}

// News has something after a notice was made, or after a call of WakeTeller.
func (x *Exchange) News() <-chan struct{} { return x.news }

func decodeNotice(rec store.Record) (Notice, error) {
	n := Notice{key: rec.Key, rev: rec.Rev}
	if err := json.Unmarshal(rec.Body, &n); err != nil {
		return n, fmt.Errorf("decode notice: %w", err)
	}
	return n, nil
}

// Done is the change that ends a notice. It fails where somebody else has told it.
func (n Notice) Done() store.Change {
	return store.Change{Record: store.Record{NS: NSNotices, Key: n.key}, IfRev: n.rev, Delete: true}
}

func (x *Exchange) WakeTeller() {
	select {
	case x.news <- struct{}{}:
	default:
	}
}

// offer tells those who may claim a thread and want to be told. An executor with a pattern that matches claims at once.
func (t *tx) offer(th *thread.Thread) {
	th.Offered = true
	t.touch(th)
	offers := t.x.Executors.route(th, t.now)
	for _, o := range offers {
		if c := t.x.Executors.get(o.ID); o.Told && c != nil && len(c.Preferences.AutoClaim) > 0 && c.autoClaims(th) {
			th.Claim(o.ID, t.now)
			t.tellState(th)
			return
		}
	}
	for _, o := range offers {
		if o.Told {
			t.tell(o.ID, NoticeOffer, th.Ref, th.Serial)
		}
	}
	if th.Requester != thread.OwnerID {
		t.tell(thread.OwnerID, NoticeOffer, th.Ref, th.Serial)
	}
	if len(offers) == 0 {
		t.tell(ToDirectory, NoticeOffer, th.Ref, th.Serial)
	}
}
