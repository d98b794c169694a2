//go:build slow

package mess

import (
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/bridge/bridgetest"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// noisePicture returns a picture that does not compress, so that it becomes an attachment.
func noisePicture(t *testing.T, name string) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 900, 200))
	noise := rand.NewChaCha8([32]byte{})
	if _, err := noise.Read(img.Pix); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(name)
	if err == nil {
		err = png.Encode(f, img)
	}
	if err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// openPage serves the owner's page of a lab's exchange and opens a tab on it.
func openPage(t *testing.T, l *lab) (tab *browsertest.Tab, base string) {
	t.Helper()
	browser := browsertest.Start(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store, Mesh: bridgetest.NewMesh(nil, l.store), Serve: true})
	if err != nil {
		t.Fatal(err)
	}
	owner := httpapi.NewOwner(httpapi.OwnerConfig{})
	b.MountPage(owner.Pages())
	srv := httptest.NewServer(owner.Handler())
	t.Cleanup(func() { // the page keeps a stream open
		srv.CloseClientConnections()
		srv.Close()
	})
	return browsertest.NewTab(t, browser), srv.URL + httpapi.PagePath
}

// TestPageIsLive: an open page shows changes of others without a reload, and a text that is being typed stays.
func TestPageIsLive(t *testing.T) {
	l := newLab(t)
	tab, base := openPage(t, l)
	l.executor("bob")
	ref := l.request("agent", "{intent: what is in the fridge?}")
	tab.Do(chromedp.Navigate(base + "/mess"))
	tab.Shows("what is in the fridge?")
	l.request("agent", "{intent: water the roses}")
	tab.Shows("water the roses")
	l.status(thread.OwnerID, ref, "claimed")
	tab.Do(chromedp.Navigate(base+"/mess/"+ref), chromedp.SendKeys("#question", "Which shelf"))
	l.status(thread.OwnerID, ref, "in_progress, message: on my way")
	tab.Shows("on my way")
	tab.Until(`document.querySelector(".facts .tag").innerText === "in_progress"`)
	if got := browsertest.Eval[string](tab, `document.querySelector("#question").value`); got != "Which shelf" {
		t.Errorf("the owner typed %q", got)
	}
	l.do("agent", "- cancel: {re: "+ref+"}\n")
	tab.Until(`document.querySelector(".facts .tag").innerText === "cancelled"`)
}

// TestPageInBrowser: on a telephone of 320 px: the list by state, a picture in a request, claim, and complete with a
// photo from the file chooser. Nothing is wider than the screen.
func TestPageInBrowser(t *testing.T) {
	l := newLab(t)
	tab, base := openPage(t, l)
	photo := filepath.Join(t.TempDir(), "photo.png")
	data := noisePicture(t, photo)
	if len(data) < thread.MaxInline {
		t.Fatalf("the photo has %d bytes", len(data))
	}
	long := strings.Repeat("Donaudampfschifffahrt", 12)
	ref := l.request("agent", `{intent: "what is in the fridge? `+long+`", context: [dinner for four, {image: "`+dataURI("image/png", data)+`"}, {image: "https://far.example/photo.png"}]}`)
	other := l.request("agent", "{intent: water the roses}")
	l.executor("bob")
	l.status("bob", other, "claimed")

	fits := "document.documentElement.scrollWidth <= 320"
	inside := `[...document.querySelectorAll("li img, li button")].every(e => e.getBoundingClientRect().right <= e.closest("li").getBoundingClientRect().right - 8)`
	words := `document.querySelector("button[value=fetch]").innerText.startsWith("Fetch https://far.example")`
	link := func(of string) string { return fmt.Sprintf(`document.querySelector('a[href$="/mess/%s"]')`, of) }
	tab.Do(chromedp.EmulateViewport(320, 640), chromedp.Navigate(base+"/mess"))
	tab.Until(link(ref) + " && " + link(other))
	tab.Until(fits)
	tab.Click(`a[href$="?state=received"]`)
	tab.Until(`document.querySelector('[aria-current="true"][href$="state=received"]') && ` + link(ref) + " && !" + link(other))
	tab.Click(`a[href$="/mess/` + ref + `"]`)
	tab.Until(`document.querySelectorAll("img.photo").length === 1 && document.querySelector("img.photo").naturalWidth === 900`)
	tab.Until(fits + " && " + inside + " && " + words)
	tab.Click("#claim")
	tab.Do(chromedp.WaitVisible("#complete"))
	l.want(ref, thread.Claimed)
	tab.Until(fits)
	tab.CheckBarriers()
	tab.Do(chromedp.EmulateViewport(320, 640), chromedp.SetUploadFiles("#photo", []string{photo}), chromedp.SendKeys("#result", "milk\rand eggs"))
	tab.Click("#complete")
	tab.Until(`document.querySelectorAll("img.photo").length === 2 && [...document.querySelectorAll("img.photo")].every(i => i.naturalWidth === 900)`)
	tab.Until(fits + ` && document.body.innerText.includes("milk\nand eggs") && !document.querySelector(".ctl")`)
	if th := l.want(ref, thread.Completed); th.Holder != thread.OwnerID {
		t.Errorf("holder = %q", th.Holder)
	}
	tab.CheckBarriers()
	tab.Do(chromedp.Navigate(base + "/mess"))
	tab.CheckBarriers()
}
