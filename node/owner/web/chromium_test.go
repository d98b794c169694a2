package web_test

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/agentmesh/agentmesh/node/httpapi/browsertest"
)

// tab is a tab that shows the owner's page of a node.
type tab struct {
	*browsertest.Tab
	page *ownerPage
}

func newTab(t *testing.T, browser context.Context, p *ownerPage) *tab {
	t.Helper()
	return &tab{browsertest.NewTab(t, browser), p}
}

// open goes to a page and signs in where it is asked to.
func (tb *tab) open(path string) {
	if path == "login" {
		tb.Do(chromedp.Navigate(tb.page.url(path)))
		return
	}
	tb.Open(tb.page.url(path), tb.page.token)
}

// live waits until the page hears what changes.
func (tb *tab) live() { tb.Until(`document.getElementById("stream").textContent === "Live"`) }

// scheme sets the colour scheme that the reader prefers.
func (tb *tab) scheme(name string) {
	browsertest.Call(tb.Tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}
