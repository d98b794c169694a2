//go:build slow && linux

package web_test

import (
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
	"github.com/agentmesh/agentmesh/node/meshtest"
)

// TestWebKit: in the engine of Safari, too, two people chat with line breaks, settle a coffee and cancel it, and no page is
// wider than its window.
func TestWebKit(t *testing.T) {
	w := browsertest.StartWebKit(t, "light")
	mesh := meshtest.New(t)
	sarah, peter := mesh.Node("sarah", nil), mesh.Node("peter", nil)
	p, other := servePage(t, sarah), servePage(t, peter)
	signIn := func(p *ownerPage, path string) {
		w.Open(p.url("login"))
		w.Type("#secret", p.token+"\uE007")
		w.Until(`location.pathname === "/owner/page/"`)
		w.Open(p.url(path))
	}
	for _, size := range [][2]int{{1280, 900}, {390, 844}} {
		w.Size(size[0], size[1])
		signIn(p, "compose?to="+string(peter.ID()))
		w.Eval(`(document.getElementById("kind").value = "meeting", document.getElementById("kind").dispatchEvent(new Event("change", { bubbles: true })))`, nil)
		day := time.Now().AddDate(0, 0, 3).Format("2006-01-02")
		w.Eval(`(document.getElementById("title").value = "Coffee", document.getElementById("time-0").value = "`+day+`T10:00", document.getElementById("time-1").value = "`+day+`T15:00", document.getElementById("duration").value = "30m")`, nil)
		w.Click(`form[action$="/compose"] button[type=submit]`)
		w.Shows("We propose")
		w.Type("#text", "The later one,\uE008\uE007\uE008if you can.\uE007")
		w.Until(`[...document.querySelectorAll("div.text")].some((d) => d.innerText === "The later one,\nif you can.")`)

		signIn(other, "conversations")
		w.Click(`.list a[href*="conversations/am_"]`)
		w.Shows("if you can.")
		w.Until(`document.getElementById("stream").textContent === "Live"`)
		w.Click("#time-1")
		w.Click("#accept")
		w.Shows("Agreed")
		time.Sleep(time.Second) // a click on what has just moved is ignored
		w.Click("#cancel")
		w.Shows("Cancelled")
		for _, path := range allPages {
			w.Open(other.url(path))
			var wide, window int
			w.Eval(`document.documentElement.scrollWidth`, &wide)
			w.Eval(`innerWidth`, &window)
			if wide > window {
				t.Errorf("%q is %d px wide in a window of %d px", path, wide, window)
			}
		}
	}
}
