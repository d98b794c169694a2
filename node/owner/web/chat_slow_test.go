//go:build slow

package web_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// browserChat: two people chat, settle a coffee and cancel it, on a phone. What they read are words and names: ids, names of
// members and JSON are only in what was exactly sent. A settled coffee with six messages takes at most two screens.
func browserChat(t *testing.T, browser context.Context) {
	const width, height = 390, 844
	mesh := meshtest.New(t)
	sarah, peter := mesh.Node("sarah", nil), mesh.Node("peter", nil)
	ours, theirs := newTab(t, browser, servePage(t, sarah)), newTab(t, browser, servePage(t, peter))
	for _, tb := range []*tab{ours, theirs} {
		tb.Size(width, height)
	}
	picture := func(tb *tab, name string) {
		if to := os.Getenv("PICTURES"); to != "" && to != "docs" {
			tb.WaitUntilStable()
			tb.Picture(filepath.Join(to, name+".png"))
		}
	}
	ours.open("compose?to=" + string(peter.ID()))
	ours.Do(chromedp.SetValue("#kind", "meeting"), chromedp.SetValue("#title", "Coffee"))
	day := time.Now().AddDate(0, 0, 3).Format("2006-01-02")
	ours.Do(chromedp.SetValue("#time-0", day+"T10:00"), chromedp.SetValue("#time-1", day+"T15:00"), chromedp.SetValue("#duration", "30m"), chromedp.SetValue("#place", "Cafe Luna"))
	ours.Click(`form[action$="/compose"] button[type=submit]`)
	ours.Shows("We propose")
	theirs.open("")
	theirs.Shows("proposed a meeting: Coffee")
	picture(theirs, "today-new")
	theirs.open(link(t, theirs.page.must("conversations"), "conversations/am_"))
	theirs.live()
	theirs.Do(chromedp.SendKeys("#text", "Which one is quieter?"))
	theirs.Click(".composer button")
	ours.live()
	ours.Shows("Which one is quieter?")
	ours.Do(chromedp.SendKeys("#text", "The later one, I think."))
	ours.Click(".composer button")
	theirs.Shows("The later one, I think.")
	picture(theirs, "offer")
	theirs.Click("#time-1")
	theirs.WaitUntilStable()
	theirs.Click("#accept")
	for _, tb := range []*tab{ours, theirs} {
		tb.Shows("Agreed")
		tb.Shows("15:00")
	}
	picture(ours, "agreed")
	for name, tb := range map[string]*tab{"ours": ours, "theirs": theirs} {
		if high := browsertest.Eval[int](tb.Tab, `document.documentElement.scrollHeight`); high > 2*height {
			t.Errorf("%s: a settled coffee is %d px high", name, high)
		}
		if code := browsertest.Eval[string](tb.Tab, `(document.getElementById("live").innerText.match(/am_[a-z0-9]{6,}|conv_|msg_|mesh\\.\\w+|in_reply_to|selected_time|[{}]/) ?? [""])[0]`); code != "" {
			t.Errorf("%s: the chat shows %q", name, code)
		}
		if end := browsertest.Eval[float64](tb.Tab, `document.getElementById("live").lastElementChild.getBoundingClientRect().bottom - innerHeight`); end > 0 {
			t.Errorf("%s: the newest message is %.0f px below the screen", name, end)
		}
	}
	theirs.Do(chromedp.SendKeys("#text", "See you then.")) // the conversation has ended, and the form is that of an open one
	theirs.Click(".composer button")
	theirs.Shows("It is on its way.")
	theirs.Shows("See you then.")
	ours.open("")
	ours.Shows("Add to a calendar")
	picture(ours, "today-agreed")
	ours.open("conversations?state=completed")
	ours.Shows("Agreed: Coffee")
	ours.open("conversations")
	ours.Shows("See you then.")
	picture(ours, "conversations")
	ours.open("conversations?q=quieter")
	ours.Shows("Which one is quieter?")
	ours.Click(`.list a[href*="#e"]`)
	ours.Shows("Cafe Luna")
	ours.WaitUntilStable()
	ours.Click("#cancel")
	ours.Shows("The cancellation is on its way.")
	ours.Shows("Cancelled")
	picture(ours, "cancelled")
	ours.open("conversations?q=" + fmt.Sprint("nothing", "like", "this"))
	ours.Shows("No message and no name has these words")
}
