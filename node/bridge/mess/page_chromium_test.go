package mess

import (
	"context"
	"fmt"
	"image"
	"image/png"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// noisy writes a picture that does not compress, so that it is kept as an attachment.
func noisy(t *testing.T, name string) []byte {
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

// On a telephone of 320 px: the list by state, a picture that came with a request, claim, and complete with a photo from
// the file chooser. Nothing sticks out sideways.
func TestPageInBrowser(t *testing.T) {
	browser := browsertest.Start(t)
	l := newLab(t)
	b, err := New(Config{Exchange: l.Exchange, Store: l.store})
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
	photo := filepath.Join(t.TempDir(), "photo.png")
	data := noisy(t, photo)
	if len(data) < maxInline {
		t.Fatalf("the photo has %d bytes", len(data))
	}
	long := strings.Repeat("Donaudampfschifffahrt", 12)
	ref := l.request("agent", `{intent: "what is in the fridge? `+long+`", context: [dinner for four, {image: "`+dataURI("image/png", data)+`"}, {image: "https://far.example/photo.png"}]}`)
	other := l.request("agent", "{intent: water the roses}")
	l.executor("bob")
	l.status("bob", other, "claimed")

	do := func(actions ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		ctx, cancel := context.WithTimeout(browser, time.Minute)
		defer cancel()
		if err := chromedp.Do(ctx, actions...); err != nil {
			t.Fatalf("browser: %v", err)
		}
	}
	until := func(script string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(browser, time.Minute)
		defer cancel()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+script+")")); err == nil && ok {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				wide := `[...document.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > 320).map(e => e.outerHTML.slice(0, 100)).join("\n")`
				text, err := chromedp.Run(browser, chromedp.Evaluate[string](wide))
				t.Fatalf("%s never came true; beyond the edge: %s (%v)", script, text, err)
			}
		}
	}
	fits := "document.documentElement.scrollWidth <= 320"
	inside := `[...document.querySelectorAll("li img, li button")].every(e => e.getBoundingClientRect().right <= e.closest("li").getBoundingClientRect().right - 8)`
	words := `document.querySelector("button[value=fetch]").innerText.startsWith("Fetch https://far.example")`
	link := func(of string) string { return fmt.Sprintf(`document.querySelector('a[href$="/mess/%s"]')`, of) }
	do(chromedp.EmulateViewport(320, 640), chromedp.Navigate(srv.URL+httpapi.PagePath+"/mess"))
	until(link(ref) + " && " + link(other))
	until(fits)
	do(chromedp.Click(`a[href$="?state=received"]`))
	until(`document.querySelector('[aria-current="true"][href$="state=received"]') && ` + link(ref) + " && !" + link(other))
	do(chromedp.Click(`a[href$="/mess/` + ref + `"]`))
	until(`document.querySelectorAll("img.photo").length === 1 && document.querySelector("img.photo").naturalWidth === 900`)
	until(fits + " && " + inside + " && " + words)
	do(chromedp.Click("#claim"), chromedp.WaitVisible("#complete"))
	l.want(ref, Claimed)
	until(fits)
	do(chromedp.SetUploadFiles("#photo", []string{photo}), chromedp.SendKeys("#result", "milk and eggs"), chromedp.Click("#complete"))
	until(`document.querySelectorAll("img.photo").length === 2 && [...document.querySelectorAll("img.photo")].every(i => i.naturalWidth === 900)`)
	until(fits + ` && document.body.innerText.includes("milk and eggs")`)
	if th := l.want(ref, Completed); th.Holder != ownerID {
		t.Errorf("holder = %q", th.Holder)
	}
}
