package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// TestConsentDoesNotClaim: a thread that only waits for our owner is not claimed there, so other executors can still
// claim it. If our owner says no, only one executor has declined (MESS-24).
func TestConsentDoesNotClaim(t *testing.T) {
	for name, c := range map[string]struct {
		decide func(a *foreignLink, there, here string)
		want   thread.Code // of our thread
	}{
		"no": {func(a *foreignLink, there, here string) { a.home.decide(askHeld, acl.Reject) }, thread.Declined},
		"yes, and declined": {func(a *foreignLink, there, here string) {
			a.home.decide(askHeld, acl.Approve)
			a.home.reply(a.home.task(here, "work/0").ID, `{"action":"decline"}`, 200)
		}, thread.Declined},
		"held by hand": {func(a *foreignLink, there, here string) {
			a.home.decide(askHeld, acl.Approve)
			a.home.task(here, "work/0")
			a.home.status(thread.OwnerID, here, "held, reason: let me think")
			a.home.do(thread.OwnerID, "- cancel: {re: "+here+", reason: no}")
		}, thread.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			a := newForeignLink(t, nil)
			carol := a.register("carol")
			there := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn","confirm_before":true}`).GetStr("ref")
			a.wakePoll()
			here := a.home.waitMeshThread()
			a.home.waitStatus(here, thread.Held)
			c.decide(a, there, here)
			a.home.waitStatus(here, c.want)
			eventually(t, "our no", func() bool { return len(a.thread(there).Declined) == 1 })
			if th := a.want(200, carol, "GET", "requests/"+there, ""); strings.Contains(string(th.JSON()), `"held"`) || a.thread(there).Status != thread.Received {
				t.Errorf("there it is %s", th.JSON())
			}
			a.set(there, `{"status":"needs_confirmation","mess":[{"status":{"code":"needs_confirmation","action":"mow"}}]}`)
			if n := a.home.countNotices("mess", "may not"); n != 0 {
				t.Errorf("the owner is told of %d refusals", n)
			}
		})
	}
}

// TestOwnMessagesDoNotComeBack: with the owner's consent the thread is claimed there, and our own messages there do not
// come back to us, neither as a thread nor as a question. We do not know our name there.
func TestOwnMessagesDoNotComeBack(t *testing.T) {
	a := newForeignLink(t, func(c *Config) { c.Links[0].Policy.Access = string(acl.Approval) })
	carol := a.register("carol")
	there := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn","confirm_before":true}`).GetStr("ref")
	a.wakePoll()
	here := a.home.waitMeshThread()
	a.home.decide(askHeld, acl.Approve)
	a.home.reply(a.home.task(here, "work/0").ID, `{"action":"accept"}`, 200)
	eventually(t, "the claim over there", func() bool { return a.thread(there).Holder == "us" })
	a.home.status(thread.OwnerID, here, "held, reason: it rains")
	eventually(t, "held over there", func() bool { return a.thread(there).Status == thread.Held })
	for range 3 {
		a.wakePoll()
		eventually(t, "a poll", func() bool { return len(a.home.bridge.links.All()[0].wake) == 0 })
	}
	a.home.status(thread.OwnerID, here, "needs_confirmation, action: mow")
	eventually(t, "the question over there", func() bool { return a.thread(there).Status == thread.NeedsConfirmation })
	a.want(200, carol, "PATCH", "requests/"+there, `{"mess":[{"reply":{"confirm":true}}]}`)
	a.wakePoll()
	a.home.waitStatus(here, thread.InProgress)
	asks, _, err := a.home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 0 {
		t.Errorf("the owner is asked %+v, %v", asks, err)
	}
	if page, err := a.home.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 1 {
		t.Errorf("%d threads, %v; want one", len(page.Threads), err)
	}
}

// TestOwnerEndsAClaimedForeignThread: if our owner ends a thread that an executor here has claimed, the thread fails
// there.
func TestOwnerEndsAClaimedForeignThread(t *testing.T) {
	const note = "we move out"
	for name, how := range map[string]string{"cancel": "- cancel: {re: %, reason: " + note + "}", "status": "- status: {re: %, code: cancelled, reason: " + note + "}"} {
		t.Run(name, func(t *testing.T) {
			a := newForeignLink(t, nil)
			there, here, task := a.offerRequest(`{"intent":"mow the lawn"}`)
			a.home.reply(task.ID, `{"action":"accept"}`, 200)
			eventually(t, "the claim over there", func() bool { return a.thread(there).Holder == "us" })
			a.home.do(thread.OwnerID, strings.ReplaceAll(how, "%", here))
			eventually(t, "its end over there", func() bool { return a.thread(there).Status == thread.Failed })
			if text := string(a.want(200, a.us, "GET", "requests/"+there, "").JSON()); !strings.Contains(text, note) {
				t.Errorf("there it is %s", text)
			}
		})
	}
}

// TestOneNoOfSeveralThroughTheMesh: a decline by one of several executors is not sent through the mesh, because another
// one may claim the thread.
func TestOneNoOfSeveralThroughTheMesh(t *testing.T) {
	home, away := pair(t, acl.Open)
	away.executor("carol")
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.waitMeshThread()
	away.status("bob", there, "declined, reason: no time")
	away.status("carol", there, "claimed")
	home.waitStatus(ref, thread.Claimed)
}
