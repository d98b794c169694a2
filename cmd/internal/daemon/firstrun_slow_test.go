//go:build slow

package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/cmd/internal/config"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// person is somebody who uses a page with pointer and keyboard. spent is the time that the clicks and the keys take.
type person struct {
	*browsertest.Tab
	spent *time.Duration
}

const (
	perClick = 2 * time.Second
	perKey   = 200 * time.Millisecond
)

func (p person) click(selector string) {
	*p.spent += perClick
	p.Submit(selector)
}

func (p person) fill(selector, text string) {
	*p.spent += perClick + time.Duration(len(text))*perKey
	p.set(selector, "")
	p.Do(chromedp.SendKeys(selector, text))
}

func (p person) set(selector, value string) {
	p.Until(fmt.Sprintf(`(document.querySelector(%q).value = %q, true)`, selector, value))
}

// TestFirstRun is a person who gets from an empty folder to an appointment with a foreign agent, on the page alone.
func TestFirstRun(t *testing.T) {
	t.Parallel()
	browser := browsertest.Start(t)
	type screen struct {
		width, height int64
		scheme        string
	}
	screens := []screen{{1280, 900, "light"}, {390, 844, "dark"}}
	if os.Getenv("PICTURES") != "" || browsertest.HasAxe() { // only then does anyone look at the colors
		screens = append(screens, screen{1280, 900, "dark"}, screen{390, 844, "light"})
	}
	for _, screen := range screens {
		t.Run(fmt.Sprintf("%d %s", screen.width, screen.scheme), func(t *testing.T) {
			var spent time.Duration
			open := func(link string) person {
				tab := browsertest.NewTab(t, browser)
				tab.Size(screen.width, screen.height)
				tab.Scheme(screen.scheme)
				tab.Do(chromedp.Navigate(link))
				p := person{tab, &spent}
				p.click("form.sign-in button")
				return p
			}
			shoot := func(p person, name string) {
				takePicture(t, p.Tab, fmt.Sprintf("%s-%d-%s", name, screen.width, screen.scheme))
			}

			bob, _ := runNew(t, config.Setting{Key: "name", Value: "Bob's agent"})
			ann, file := runNew(t)
			a := open(signIn(t, ann))
			a.Shows("Welcome")
			shoot(a, "welcome")
			a.fill("#name", "Ann's agent")
			a.fill("#owner", "Ann")
			a.fill("#directories", bob.Directory)
			a.click("#save")
			a.Shows("Saved. Your agent uses it from now on.")
			a.Until(`document.body.innerText.includes("registered")`)
			if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), "name: Ann's agent\nowner:\n  zone: UTC\n  name: Ann\n") { // the zone of the browser
				t.Errorf("the configuration has (%v)\n%s", err, text)
			}
			shoot(a, "profile")
			a.click("#hello")
			a.Shows("You said: Hello!")
			shoot(a, "hello")
			a.click(`nav a[href$="/discover"]`)
			a.fill("#q", "Bob")
			a.click(`form[role=search] button`)
			a.Shows("Bob's agent")
			shoot(a, "discover")
			a.click(`a[href*="compose?to="]`)
			*a.spent += 2 * perClick // the list of kinds
			a.set("#kind", "meeting")
			a.fill("#title", "Coffee")
			day := time.Now().AddDate(0, 0, 3).Format("2006-01-02")
			for i, at := range []string{"T10:00", "T15:00"} {
				*a.spent += perClick + 16*perKey
				a.set(fmt.Sprintf("#time-%d", i), day+at)
			}
			a.fill("#duration", "30m")
			a.fill("#place", "Cafe Luna")
			shoot(a, "compose")
			a.click(`main form.card button.strong`)
			a.Shows("We propose")

			b := open(signIn(t, bob))
			b.Shows("Coffee")
			b.WaitUntilStable()
			shoot(b, "stranger")
			inView(t, b, `button[value="approve"]`)
			b.click(`button[value="approve"]`)
			b.Shows("They propose")
			b.WaitUntilStable()
			shoot(b, "meeting")
			inView(t, b, "#accept")
			*b.spent += perClick
			b.Click("#time-1")
			b.click("#accept")
			b.Shows("Agreed")
			a.Shows("Agreed")
			a.Shows("15:00")
			for _, p := range []person{a, b} {
				p.Until(`!document.title.startsWith("(")`) // nothing needs either of them
			}
			shoot(a, "agreed")
			findBarriers(t, a)
			t.Logf("%v", spent)
			if spent > 3*time.Minute {
				t.Errorf("this took %v, want less than three minutes", spent)
			}
			a.Forgive("ERR_") // while the process starts again
			a.Forgive("Failed to load resource")
		})
	}
}

// findBarriers runs axe on every page that a link of a navigation leads to.
func findBarriers(t *testing.T, p person) {
	t.Helper()
	if !browsertest.HasAxe() {
		return
	}
	const links = `Array.from(document.querySelectorAll("nav a, .filters a, main a:not([download])"), (a) => a.href).filter((h) => h.startsWith(location.origin + "/owner/page/"))`
	seen, next := map[string]bool{}, browsertest.Eval[[]string](p.Tab, links)
	for len(next) > 0 {
		at := strings.SplitN(next[0], "#", 2)[0]
		if next = next[1:]; seen[at] || len(seen) > 60 {
			continue
		}
		seen[at] = true
		p.Do(chromedp.Navigate(at))
		if found := p.Barriers(); found != "" {
			t.Errorf("%s:\n%s", at, found)
		}
		next = append(next, browsertest.Eval[[]string](p.Tab, links)...)
	}
	t.Logf("axe saw %d pages", len(seen))
}

func signIn(t *testing.T, info daemon.ServeInfo) string {
	t.Helper()
	in, err := info.SignIn()
	if err != nil {
		t.Fatal(err)
	}
	return in.Link()
}

// inView fails the test if a person must scroll to an element.
func inView(t *testing.T, p person, selector string) {
	t.Helper()
	if bottom := browsertest.Eval[float64](p.Tab, fmt.Sprintf(`document.querySelector(%q).getBoundingClientRect().bottom - innerHeight`, selector)); bottom > 0 {
		t.Errorf("%s is %.0f px below the fold", selector, bottom)
	}
}

// pictures are the screenshots that docs/img has.
var pictures = []string{"welcome-1280-light", "stranger-1280-light", "meeting-390-light", "meeting-390-dark", "discover-1280-dark", "agreed-1280-light"}

// takePicture saves a screenshot: with PICTURES=folder all of them, with PICTURES=docs the ones of the documentation.
func takePicture(t *testing.T, tab *browsertest.Tab, name string) {
	t.Helper()
	dir := os.Getenv("PICTURES")
	if dir == "docs" {
		if dir = filepath.Join("..", "..", "..", "docs", "img"); !slices.Contains(pictures, name) {
			return
		}
	}
	if dir != "" {
		tab.Picture(filepath.Join(dir, name+".png"))
	}
}
