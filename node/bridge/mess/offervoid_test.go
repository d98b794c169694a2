package mess

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

func (s *sharedFolder) sendAway(here string) (there string) {
	s.t.Helper()
	address := bridge.Address{Kind: Kind, Link: "shed", Peer: thread.ExchangeID}
	if err := s.home.bridge.offerTo(s.t.Context(), here, string(address.Pseudonym()), address.String(), nil); err != nil {
		s.t.Fatal(err)
	}
	others := s.side("neighbour")
	eventually(s.t, "the request in the folder", func() bool {
		list, err := others.list(s.t.Context())
		if err == nil && len(list) == 1 {
			there = list[0].ref
		}
		return there != ""
	})
	return there
}

func (s *sharedFolder) waitRemoteState(there string, code thread.Code) {
	s.t.Helper()
	others := s.side("neighbour")
	eventually(s.t, there+" "+string(code), func() bool {
		if _, err := others.list(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
		v, err := others.view(s.t.Context(), there)
		return err == nil && v.status == code
	})
}

// TestOfferInADirectoryIsVoid: a thread in a folder is ended only by us, even at its deadline.
func TestOfferInADirectoryIsVoid(t *testing.T) {
	t.Parallel()
	for name, inGit := range map[string]bool{"plain": false, "git": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("cancelled", func(t *testing.T) {
				s := newSharedFolder(t, inGit, nil)
				here := s.home.request(thread.OwnerID, "{id: saw, intent: lend me a saw}")
				there := s.sendAway(here)
				s.home.do(thread.OwnerID, "- cancel: {re: "+here+", reason: found mine}")
				s.waitRemoteState(there, thread.Cancelled)
			})
			t.Run("expired", func(t *testing.T) {
				s := newSharedFolder(t, inGit, nil)
				here := s.home.request(thread.OwnerID, "{id: saw, intent: lend me a saw, needed_by: \""+time.Now().Add(6*time.Second).UTC().Format(time.RFC3339Nano)+"\"}")
				there := s.sendAway(here)
				s.home.waitStatus(here, thread.Expired)
				s.waitRemoteState(there, thread.Cancelled)
			})
		})
	}
}

// TestOfferIsVoid: if an offer becomes void, the exchange with the offer gets a cancel, whether or not somebody there
// has claimed the thread.
func TestOfferIsVoid(t *testing.T) {
	type ending struct {
		end  func(p *meshNode, ref string)
		want thread.Code
	}
	ends := map[string]ending{
		"a status":          {func(p *meshNode, ref string) { p.status("client", ref, "cancelled") }, thread.Cancelled},
		"declined by owner": {func(p *meshNode, ref string) { p.status(thread.OwnerID, ref, "declined, reason: not needed") }, thread.Declined},
		"superseded": {func(p *meshNode, ref string) {
			p.do(thread.OwnerID, "- suggestion: {id: s1, type: split, re: "+ref+", proposed: [{intent: y}, {intent: z}], reason: two jobs}")
			p.do("client", "- reply: {re: s1, accept: true}")
		}, thread.Superseded},
		"handed over": {func(p *meshNode, ref string) {
			p.do(thread.OwnerID, "- suggestion: {id: s1, type: delegate, re: "+ref+", proposed: {executor: eve}, reason: she can}")
			p.do("client", "- reply: {re: s1, accept: true}")
		}, thread.Delegated},
	}
	for name, c := range ends {
		for what, claimed := range map[string]bool{"unclaimed": false, "claimed": true} {
			t.Run(name+", "+what, func(t *testing.T) {
				home, away := pair(t, acl.Open)
				ref := home.request("client", "{id: look, intent: look into the fridge}")
				there := away.waitMeshThread()
				home.executor("eve")
				if claimed {
					away.status("bob", there, "claimed")
					home.waitStatus(ref, thread.Claimed)
				}
				c.end(home, ref)
				home.want(ref, c.want)
				away.waitStatus(there, thread.Cancelled)
				for _, p := range []*meshNode{home, away} {
					if n := p.countNotices("undelivered", ""); n != 0 {
						t.Errorf("%d messages could not be delivered", n)
					}
				}
			})
		}
	}
}

// TestOfferIsVoidWhileItsOwnerIsAsked: the question to the owner of a peer is withdrawn when the offer becomes void,
// and a thread that this owner holds back ends.
func TestOfferIsVoidWhileItsOwnerIsAsked(t *testing.T) {
	for name, how := range map[string]string{"cancel": "- cancel: {re: look}", "status": "- status: {re: look, code: cancelled}"} {
		t.Run(name, func(t *testing.T) {
			home, away := pair(t, acl.Approval)
			ref := home.request("client", "{id: look, intent: look into the fridge}")
			home.waitStatus(ref, thread.Held)
			home.do("client", how)
			eventually(t, "the end of the question", func() bool {
				asks, _, err := away.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
				return err == nil && len(asks) == 0
			})
			if page, err := away.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 0 {
				t.Errorf("%d threads, %v", len(page.Threads), err)
			}
		})
	}
	t.Run("held back", func(t *testing.T) {
		home, away := pair(t, acl.Open)
		ref := home.request("client", "{id: look, intent: look into the fridge, confirm_before: true}")
		home.waitStatus(ref, thread.Held)
		there := away.waitMeshThread()
		home.do("client", "- cancel: {re: look}")
		away.waitStatus(there, thread.Cancelled)
	})
}
