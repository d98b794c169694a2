//go:build slow

package operator_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/directory"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// TestInBrowser: the pages fit a phone and a desk, in light and dark, and the operator bans with a few clicks. With
// AGENTMESH_PICTURES set to a folder, the test writes what the pages look like.
func TestInBrowser(t *testing.T) {
	browser := browsertest.Start(t)
	dir := t.TempDir()
	w := newWorld(t, httpapi.OwnerConfig{Dir: dir, Listen: "127.0.0.1:0"}, func(c *directory.Config) { c.Mode = directory.Open })
	w.register("am_sarah", "Sarah's Assistant", "Books meetings")
	w.register("am_evil", "Wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"+hostile, hostile)
	for i := range 30 {
		w.register(fmt.Sprintf("am_%02d", i), "One of many", "")
	}
	if err := w.reg.Report(t.Context(), "am_evil", directory.ReportRequest{Kind: "spam", Text: "It sends advertising. " + hostile}, netip.MustParseAddr("192.0.2.7")); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		w.public.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/agents?q=many", nil))
	}
	if err := w.owner.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.owner.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	token, err := os.ReadFile(filepath.Join(dir, "owner.token"))
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + w.owner.Addr().String() + "/owner/page/"
	tab := browsertest.NewTab(t, browser)
	open := func(path string) { tab.Open(base+path, strings.TrimSpace(string(token))) }

	open("")
	tab.Until(`location.pathname === "/owner/page/directory" && document.querySelector(".mark").innerText === "Agents of Cork"`)
	open("directory/cards?q=evil")
	tab.Click("summary")
	tab.Do(chromedp.SendKeys("#why-am_evil", "advertising"))
	tab.Submit(`button[value="am-evil.example"]`)
	tab.Shows("Banned. The cards that match were removed.")
	tab.Shows("am-evil.example")
	open("directory/invites")
	tab.Submit(`button[value="make"]`)
	tab.Shows("It is shown only now.")

	for _, path := range paths {
		open(path)
		tab.CheckBarriers()
	}
	for _, scheme := range []string{"light", "dark"} {
		tab.Scheme(scheme)
		for _, width := range []int64{320, 390, 1280} {
			tab.Size(width, 844)
			for _, path := range paths {
				open(path)
				if wide := browsertest.Eval[int](tab, `document.documentElement.scrollWidth`); int64(wide) > width {
					t.Errorf("%s is %d px wide on a screen of %d", path, wide, width)
				}
				if small := browsertest.Eval[string](tab, smallTargets); small != "" {
					t.Errorf("%s has small targets at %d:\n%s", path, width, small)
				}
				if to := os.Getenv("AGENTMESH_PICTURES"); to != "" {
					tab.Picture(filepath.Join(to, fmt.Sprintf("%s-%s-%d.png", strings.ReplaceAll(path, "/", "-"), scheme, width)))
				}
			}
		}
	}
}

// smallTargets lists controls that are too small for a finger.
const smallTargets = `Array.from(document.querySelectorAll("button, nav a, .filters a, summary, input:not([type=hidden]), .button"))
	.filter((e) => e.offsetParent && e.getBoundingClientRect().height < 43.5).map((e) => e.outerHTML.slice(0, 80)).join("\n")`
