package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
)

// What only waits for our owner is nobody's there: no other executor is kept from it, and our owner's no is that of one
// executor (MESS-24).
func TestConsentIsNoClaim(t *testing.T) {
	for name, c := range map[string]struct {
		decide func(a *abroad, there, here string)
		want   thread.Code // of ours
	}{
		"no": {func(a *abroad, there, here string) { a.home.decide(askHeld, acl.Reject) }, thread.Declined},
		"yes, and declined": {func(a *abroad, there, here string) {
			a.home.decide(askHeld, acl.Approve)
			a.home.reply(a.home.task(here, "work/0").ID, `{"action":"decline"}`, 200)
		}, thread.Declined},
		"held by hand": {func(a *abroad, there, here string) {
			a.home.decide(askHeld, acl.Approve)
			a.home.task(here, "work/0")
			a.home.status(thread.OwnerID, here, "held, reason: let me think")
			a.home.do(thread.OwnerID, "- cancel: {re: "+here+", reason: no}")
		}, thread.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAbroad(t, nil)
			carol := a.register("carol")
			there := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn","confirm_before":true}`).GetStr("ref")
			a.poke()
			here := a.home.theirs()
			a.home.reaches(here, thread.Held)
			c.decide(a, there, here)
			a.home.reaches(here, c.want)
			eventually(t, "our no", func() bool { return len(a.thread(there).Declined) == 1 })
			if th := a.want(200, carol, "GET", "requests/"+there, ""); strings.Contains(string(th.JSON()), `"held"`) || a.thread(there).Status != thread.Received {
				t.Errorf("there it is %s", th.JSON())
			}
			a.set(there, `{"status":"needs_confirmation","mess":[{"status":{"code":"needs_confirmation","action":"mow"}}]}`)
			if n := a.home.noticesOf("mess", "may not"); n != 0 {
				t.Errorf("the owner is told of %d refusals", n)
			}
		})
	}
}

// With the owner's consent it is claimed there, and what we say there does not come back to us: neither as a thread nor as
// a question. We do not know our name there.
func TestOurOwnWordsDoNotComeBack(t *testing.T) {
	a := newAbroad(t, func(c *Config) { c.Links[0].Policy.Access = string(acl.Approval) })
	carol := a.register("carol")
	there := a.want(201, carol, "POST", "requests", `{"intent":"mow the lawn","confirm_before":true}`).GetStr("ref")
	a.poke()
	here := a.home.theirs()
	a.home.decide(askHeld, acl.Approve)
	a.home.reply(a.home.task(here, "work/0").ID, `{"action":"accept"}`, 200)
	eventually(t, "the claim over there", func() bool { return a.thread(there).Holder == "us" })
	a.home.status(thread.OwnerID, here, "held, reason: it rains")
	eventually(t, "held over there", func() bool { return a.thread(there).Status == thread.Held })
	for range 3 {
		a.poke()
		eventually(t, "a poll", func() bool { return len(a.home.bridge.links[0].wake) == 0 })
	}
	a.home.status(thread.OwnerID, here, "needs_confirmation, action: mow")
	eventually(t, "the question over there", func() bool { return a.thread(there).Status == thread.NeedsConfirmation })
	a.want(200, carol, "PATCH", "requests/"+there, `{"mess":[{"reply":{"confirm":true}}]}`)
	a.poke()
	a.home.reaches(here, thread.InProgress)
	asks, _, err := a.home.node.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 0 {
		t.Errorf("the owner is asked %+v, %v", asks, err)
	}
	if page, err := a.home.List(t.Context(), exchange.Owner("test"), "", "", 10); err != nil || len(page.Threads) != 1 {
		t.Errorf("%d threads, %v; want one", len(page.Threads), err)
	}
}

// What our owner ends when one of ours has claimed it has come to nothing there.
func TestEndOfWhatWeClaimedThroughALink(t *testing.T) {
	for name, how := range map[string]string{"cancel": "- cancel: {re: %, reason: we move out}", "status": "- status: {re: %, code: cancelled, reason: we move out}"} {
		t.Run(name, func(t *testing.T) {
			a := newAbroad(t, nil)
			there, here, task := a.offered(`{"intent":"mow the lawn"}`)
			a.home.reply(task.ID, `{"action":"accept"}`, 200)
			eventually(t, "the claim over there", func() bool { return a.thread(there).Holder == "us" })
			a.home.do(thread.OwnerID, strings.ReplaceAll(how, "%", here))
			eventually(t, "its end over there", func() bool { return a.thread(there).Status == thread.Failed })
			if text := string(a.want(200, a.us, "GET", "requests/"+there, "").JSON()); !strings.Contains(text, "we move out") {
				t.Errorf("there it is %s", text)
			}
		})
	}
}

// That one of several executors does not want to is not said through the mesh: another may.
func TestOneNoOfSeveralThroughTheMesh(t *testing.T) {
	home, away := pair(t, acl.Open)
	away.executor("carol")
	ref := home.request("client", "{id: look, intent: look into the fridge}")
	there := away.theirs()
	away.status("bob", there, "declined, reason: no time")
	away.status("carol", there, "claimed")
	home.reaches(ref, thread.Claimed)
}
