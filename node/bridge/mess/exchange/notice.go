package exchange

import (
	"fmt"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Notice says that the bridge must tell somebody about a message in a thread. It is stored in the transaction that
// stores the message, and removed in the transaction that delivers it, so each notice is delivered exactly once, even
// after a restart (MESS-28).
type Notice struct {
	To     string `json:"to"` // a peer, the owner, or ToDirectory
	Kind   string `json:"kind"`
	Ref    string `json:"ref"`
	Serial int    `json:"serial"`

	key string
	rev store.Rev
}

// Kinds of notices.
const (
	NoticeOffer  = "offer"  // To may claim the thread
	NoticeUpdate = "update" // a thread of To has a new message
	NoticeTaken  = "taken"  // a thread that was sent to To is no longer available to it
	NoticeTurn   = "turn"   // what the owner can do about the thread has changed (see [thread.Thread.Turn])
)

// ToDirectory is the recipient of offers of threads that no executor here may claim.
const ToDirectory = "directory:"

// notices collects the notices that a transaction causes.
type notices struct {
	want func(to string) bool // nil means that nobody gets notices
	list []Notice
}

// wants reports whether the recipient receives notices. All others poll.
func (n *notices) wants(to string) bool { return n.want != nil && n.want(to) }

func (n *notices) add(to, kind string, th *thread.Thread) {
	if n.wants(to) {
		n.list = append(n.list, Notice{To: to, Kind: kind, Ref: th.Ref, Serial: th.Serial})
	}
}

// addMessage adds notices about a new message for the requester and the holder.
func (n *notices) addMessage(th *thread.Thread, from string, e thread.Entry) {
	if e.Type == "request" {
		return // offers announce requests
	}
	for _, to := range []string{th.Requester, th.Holder} {
		if to != "" && to != from && !isWithheld(th, to, e) {
			n.add(to, NoticeUpdate, th)
		}
		if th.Holder == th.Requester { // one notice is enough
			return
		}
	}
}

// isWithheld reports whether a status is kept from the requesting peer because nobody here has claimed the thread.
// Behind a link, at another exchange, such a status would claim the thread, and one executor here that declines does
// not decline for all (MESS-24).
func isWithheld(t *thread.Thread, to string, e thread.Entry) bool {
	p, isPeer := t.Peers[to]
	if !isPeer || to != t.Requester || t.Holder != "" || e.Type != "status" || t.Status.Terminal() {
		return false
	}
	code, _ := thread.ParseCode(e.Body.GetStr("code"))
	isBehindLink := p.Address != ""
	return isBehindLink || code == thread.Declined
}

// withdrawOffers adds a notice for every peer that has an open offer of the thread, except one.
func (n *notices) withdrawOffers(th *thread.Thread, except string) {
	for id := range th.Peers {
		if id != except && th.HasOffer(id) {
			n.add(id, NoticeTaken, th)
		}
	}
}

// addChange adds the notices that follow from what a transaction changed in a thread. The owner gets one if the owner's
// turn has changed, or if it is the owner's turn and the holder has changed, unless the transaction has a notice for
// the owner already. An ended thread is withdrawn from its holder or, if it has none, from the peers that may claim it,
// except the actor that ended it.
func (n *notices) addChange(th *thread.Thread, was snapshot) {
	turn := th.Turn()
	isTold := slices.ContainsFunc(n.list, func(n Notice) bool { return n.To == thread.OwnerID && n.Ref == th.Ref })
	if !isTold && (turn != was.turn || turn != "" && th.Holder != was.holder) {
		n.add(thread.OwnerID, NoticeTurn, th)
	}
	if len(th.Peers) == 0 || !th.Status.Terminal() || was.code.Terminal() {
		return
	}
	by := th.History[len(th.History)-1].By
	if th.Holder == "" {
		n.withdrawOffers(th, by)
	} else if th.Holder != by && th.Peers[th.Holder].Offered {
		n.add(th.Holder, NoticeTaken, th)
	}
}

// change returns the change that stores the notice. count makes the keys of this process in one millisecond unique. If
// another process has stored a notice with the same key, the transaction fails and runs again with other counts.
func (n Notice) change(now time.Time, count uint64) store.Change {
	key := fmt.Sprintf("%019d-%s-%012d", now.UnixNano(), n.Ref, count)
	return store.Change{Record: store.Record{NS: NSNotices, Key: key, Body: wire.MustMarshal(n), Due: store.DueNow, Party: n.To}, IfRev: store.Absent}
}

// DecodeNotice returns the notice in a record of NSNotices.
func DecodeNotice(rec store.Record) (Notice, error) {
	n, err := store.Decode[Notice](rec)
	n.key, n.rev = rec.Key, rec.Rev
	return n, err
}

// Removal returns the change that removes a delivered notice. The change fails if somebody else has delivered it.
func (n Notice) Removal() store.Change {
	return store.Change{Record: store.Record{NS: NSNotices, Key: n.key}, IfRev: n.rev, Delete: true}
}

// offer adds the notices about a thread that may now be claimed: for the owner, unless the owner requested it, for the
// exchange of the link that alone may have it, and for ToDirectory, if no executor may claim it. Executors look for
// requests themselves.
func (t *tx) offer(th *thread.Thread) {
	th.Offered = true
	t.touch(th)
	if th.Requester != thread.OwnerID {
		t.notices.add(thread.OwnerID, NoticeOffer, th)
	}
	if th.Only != "" {
		t.notices.add(th.Only, NoticeOffer, th)
	} else if t.x.Executors.HasNoCandidate(th) {
		t.notices.add(ToDirectory, NoticeOffer, th)
	}
}
