//go:build slow

package web_test

import (
	"context"
	"testing"

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

// open goes to a page and signs in if the page asks for it.
func (tb *tab) open(path string) {
	if path == "login" {
		tb.Do(chromedp.Navigate(tb.page.url(path)))
		return
	}
	tb.Open(tb.page.url(path), tb.page.token)
}

// live waits until the page receives events.
func (tb *tab) live() { tb.Until(`document.getElementById("stream").textContent === "Live"`) }
