//go:build slow

package mess

import (
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// TestPageFormsInBrowser: on a telephone of 320 px: every state has its form, the decline opens separately, and a
// suggestion is answered.
func TestPageFormsInBrowser(t *testing.T) {
	before := newLab(t)
	before.executor("bob")
	for _, code := range thread.Codes() {
		th := before.thread(before.request("agent", "{intent: look}"))
		th.Status = code
		changes := []store.Change{{Record: store.Record{NS: exchange.NSThreads, Key: th.Ref, Body: wire.MustMarshal(th)}, IfRev: store.Any}}
		if err := before.store.Records().Apply(t.Context(), changes, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	l := labOn(t, before.store)
	tab, base := openPage(t, l)
	fits := `document.documentElement.scrollWidth <= 320 && [...document.querySelectorAll(".filters a, form *, details *")].every(e => e.getBoundingClientRect().right <= 320)`
	tab.Do(chromedp.EmulateViewport(320, 640), chromedp.Navigate(base+"/mess"))
	tab.Until(`document.querySelectorAll(".filters a").length === 17`)
	tab.Until(fits)
	ref := l.request("agent", "{intent: look}")
	tab.Do(chromedp.Navigate(base + "/mess/" + ref))
	tab.Until(`document.querySelector("#claim").checkVisibility() && !document.querySelector("#decline").checkVisibility()`)
	tab.Click("#declining summary")
	tab.Do(chromedp.WaitVisible("#decline"), chromedp.SendKeys("#reason", "we are away"))
	tab.Until(fits)
	tab.Click("#decline")
	tab.Shows("we are away")
	l.want(ref, thread.Declined)

	ref = l.request("agent", "{intent: look}")
	l.status(thread.OwnerID, ref, "claimed")
	tab.Do(chromedp.Navigate(base + "/mess/" + ref))
	tab.Until(fits + ` && document.querySelector("#bare").getBoundingClientRect().width < 40`)
	tab.Click("#fail") // without a reason the browser sends nothing
	tab.Do(chromedp.SendKeys("#why", "the door is locked"))
	tab.Click("#fail")
	tab.Until(`document.querySelector(".facts .tag").innerText === "failed"`)
	l.want(ref, thread.Failed)

	ref = l.request(thread.OwnerID, "{intent: look}")
	l.do("bob", "- suggestion: {id: s, type: split, re: "+ref+", proposed: [the top, the "+strings.Repeat("Donaudampfschifffahrt", 12)+"]}\n")
	tab.Do(chromedp.Navigate(base + "/mess/" + ref))
	tab.Until(fits)
	tab.Click("#accept")
	tab.Until(`document.querySelector(".facts .tag").innerText === "superseded"`)
	if parts := l.want(ref, thread.Superseded).Successors; len(parts) != 2 {
		t.Errorf("parts = %v", parts)
	}
}
