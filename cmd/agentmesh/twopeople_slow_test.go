//go:build slow && linux

package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// window is a window of a browser.
type window interface {
	Open(address string)
	Until(script string)
	Type(selector, keys string) // as of [browsertest.WebKit]
}

// chromium is a window of Chromium.
type chromium struct{ *browsertest.Tab }

func (c chromium) Open(address string) { c.Do(chromedp.Navigate(address)) }

func (c chromium) Type(selector, keys string) {
	for i, line := range strings.Split(keys, "\uE008\uE007\uE008") {
		if i > 0 {
			c.Do(chromedp.KeyEvent("\r", chromedp.KeyModifiers(chromedp.ModifierShift)))
		}
		c.Do(chromedp.SendKeys(selector, strings.ReplaceAll(line, "\uE007", "\r")))
	}
}

// reader is a person who knows only the words of the pages: each step names what is written on a page.
type reader struct {
	window
	words func(string) // adds to the list of what was pressed
}

// find is a script with functions that find what a person sees under some words: a button, a link or a field.
const find = `const seen = (e) => (e.localName === "option" || e.checkVisibility()) && !e.disabled;
	const says = (e) => (e.getAttribute("aria-label") || e.innerText || e.placeholder || "").replace(/\s+/g, " ").trim();
	const pick = (list, words) => list.find((e) => seen(e) && says(e) === words) ?? list.find((e) => seen(e) && says(e).startsWith(words)) ?? list.find((e) => seen(e) && says(e).includes(words));
	const all = (what) => [...document.querySelectorAll(what)];
	const field = (words) => pick(all("input, textarea, select"), words) ?? pick(all("label"), words)?.control;`

// press presses what has the words, once: the answer of the script is lost if the page is left meanwhile, and then the next
// page knows from the session that it was pressed.
func (r reader) press(words string) {
	r.words(words)
	r.Until(fmt.Sprintf(`(() => { %s const press = %q; if (sessionStorage.pressed === press) return true;
		const e = pick(all("button, a, summary, label"), %q); if (e) { sessionStorage.pressed = press; e.click(); } return e; })()`, find, rand.Text(), words))
}

// fill writes a text into the field with the words.
func (r reader) fill(words, text string) {
	r.Until(fmt.Sprintf(`(() => { %s const e = field(%q); if (!e) return false; const text = %q; e.value = pick([...e.options ?? []], text)?.value ?? text; e.dispatchEvent(new Event("input", { bubbles: true })); e.dispatchEvent(new Event("change", { bubbles: true })); return e.value; })()`, find, words, text))
}

// sees waits for words on the page.
func (r reader) sees(words string) {
	r.Until(fmt.Sprintf(`document.body.innerText.replace(/\s+/g, " ").includes(%q)`, words))
}

// goes presses an entry of the navigation and waits for its page.
func (r reader) goes(page string) {
	r.press(page)
	r.Until(`document.querySelector("h1").innerText === "` + page + `"`)
}

// TestTwoPeople: two people who know only the words of the pages begin with empty folders. They join a directory with links of
// its operator, find each other, chat with line breaks, settle a coffee and cancel it; one blocks the other and undoes it, and
// finds an old message. The same in Chromium and in WebKit, on a screen and on a phone, light and dark.
func TestTwoPeople(t *testing.T) {
	engines := map[string]func(t *testing.T, width, height int, scheme string) window{
		"WebKit": func(t *testing.T, width, height int, scheme string) window {
			w := browsertest.StartWebKit(t, scheme)
			w.Size(width, height)
			return w
		},
	}
	browser := browsertest.Start(t)
	engines["Chromium"] = func(t *testing.T, width, height int, scheme string) window {
		tab := browsertest.NewTab(t, browser)
		tab.Size(int64(width), int64(height))
		tab.Scheme(scheme)
		tab.Forgive("ERR_") // while a node starts again with its new name
		tab.Forgive("Failed to load resource")
		return chromium{tab}
	}
	type screen struct {
		width, height int
		scheme        string
	}
	screens := []screen{{1280, 900, "light"}, {390, 844, "dark"}}
	if os.Getenv("PICTURES") != "" || browsertest.HasAxe() { // only then does anyone look at the colors
		screens = append(screens, screen{1280, 900, "dark"}, screen{390, 844, "light"})
	}
	for _, name := range []string{"Chromium", "WebKit"} {
		for _, screen := range screens {
			t.Run(fmt.Sprintf("%s %d %s", name, screen.width, screen.scheme), func(t *testing.T) {
				meet(t, func() window { return engines[name](t, screen.width, screen.height, screen.scheme) }, screen.scheme)
			})
		}
	}
}

// look reports barriers of a page in Chromium, and saves a picture of it if PICTURES names a folder.
func look(t *testing.T, w window, name string) {
	t.Helper()
	tab, ok := w.(chromium)
	if !ok {
		return
	}
	if browsertest.HasAxe() {
		if found := tab.Barriers(); found != "" {
			t.Errorf("%s:\n%s", name, found)
		}
	}
	if to := os.Getenv("PICTURES"); to != "" && to != "docs" {
		tab.WaitUntilStable()
		tab.Picture(filepath.Join(to, fmt.Sprintf("people-%s-%d-%v.png", name, browsertest.Eval[int](tab.Tab, `innerWidth`), browsertest.Eval[bool](tab.Tab, `matchMedia("(prefers-color-scheme: dark)").matches`))))
	}
}

func meet(t *testing.T, open func() window, scheme string) {
	class := newClass(t)
	links := class.invite(2)
	person := func(name string) reader {
		r := reader{window: open(), words: func(w string) { t.Logf("%s presses %q", name, w) }}
		r.Open(strings.TrimSpace(class.run(name, "page")))
		r.press("Sign in")
		r.sees("Today")
		r.Until(fmt.Sprintf(`matchMedia("(prefers-color-scheme: %s)").matches`, scheme))
		return r
	}

	class.serve("ann")
	ann := person("ann")
	ann.sees("Welcome")
	ann.fill("Name of your agent", "Ann's agent")
	ann.fill("Your name", "Ann")
	ann.fill("Directories to join", links[0])
	ann.press("Save")
	ann.sees("Saved.")
	ann.sees("registered")

	// Bob reads the page of his link, and runs the line for people without an agent.
	ann.Open(links[1])
	ann.sees("You have no agent yet")
	ann.Until(fmt.Sprintf(`document.getElementById("start").innerText === "agentmesh quickstart agent --join '%s' && agentmesh serve"`, links[1]))
	class.run("bob", "quickstart", "agent", "--join", links[1], "--yes", "--name", "Bob's agent")
	class.serve("bob")
	bob := person("bob")
	bob.sees("Nothing waits for you.")
	ann.Open(strings.TrimSpace(class.run("ann", "page")))
	ann.press("Sign in")

	ann.goes("Discover")
	ann.fill("Find agents", "Bob")
	ann.press("Search")
	ann.sees("Bob's agent")
	ann.press("Write")
	ann.fill("Text", "Hello Bob!\nShall we meet?")
	ann.press("Send")
	ann.sees("their owner decides")

	bob.sees("Shall we meet?")
	bob.press("Let them in")
	bob.sees("Let in.")
	bob.Type("textarea", "Gladly.\uE008\uE007\uE008What about coffee?\uE007")
	bob.sees("What about coffee?")
	ann.Until(`[...document.querySelectorAll("div.text")].some((d) => d.innerText === "Gladly.\nWhat about coffee?")`)

	ann.goes("Write")
	ann.fill("To", "Bob's agent")
	ann.fill("What", "A meeting")
	ann.fill("Subject", "Coffee")
	day := time.Now().AddDate(0, 0, 3).Format("2006-01-02")
	ann.fill("First time", day+"T10:00")
	ann.fill("Second time", day+"T15:00")
	ann.fill("Duration", "30m")
	ann.fill("Where", "Cafe Luna")
	ann.press("Send")
	ann.sees("We propose")

	bob.goes("Today")
	bob.press("Ann's agent")
	bob.sees("Coffee")
	bob.press("15:00")
	bob.press("Accept")
	for _, r := range []reader{bob, ann} {
		r.sees("Agreed")
		r.goes("Today")
		r.sees("Add to a calendar")
		r.Until(`document.querySelector("[aria-label='The next seven days']").innerText.includes("15:00")`)
		look(t, r.window, "today")
		r.press("Coffee")
	}
	bob.press("Cancel it")
	bob.sees("Cancelled")
	ann.sees("Cancelled")

	bob.goes("People")
	bob.press("Ann's agent")
	bob.press("Block")
	bob.sees("Blocked.")
	bob.press("Undo")
	bob.sees("The block is gone.")
	bob.goes("Conversations")
	bob.fill("Find", "Shall we meet")
	bob.press("Find")
	bob.sees("Shall we meet?")
	bob.press("Ann's agent")
	bob.sees("What about coffee?")
	for _, page := range []string{"Today", "Conversations", "People", "Discover", "Settings"} {
		bob.goes(page)
		bob.Until(`document.documentElement.scrollWidth <= innerWidth`)
		look(t, bob.window, page)
	}
}
