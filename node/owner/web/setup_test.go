package web_test

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
)

// TestPageProfile: the form shows what it has, and a refused value stays in it.
func TestPageProfile(t *testing.T) {
	p := servePage(t, meshtest.New(t).Node("sarah", nil))
	body := p.must("profile")
	for _, want := range []string{"your card, as others see it", "no program is connected", `readonly value="Sarah&#39;s agent"`, ">https://directory.example/v1</textarea>"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q:\n%s", want, body)
		}
	}
	status, body := p.post("profile", url.Values{"name": {"<i>Ann"}, "directories": {"https://a.example/v1 https://b.example/v1"}})
	if status != http.StatusBadRequest || !goldentest.Page(t, "refused by the process", body) || !strings.Contains(body, "https://a.example/v1\nhttps://b.example/v1</textarea>") {
		t.Errorf("a refused value: %d\n%s", status, body)
	}
	many := url.Values{"directories": {strings.Repeat("https://a.example/v1 ", 21)}}
	if status, body := p.post("profile", many); status != http.StatusBadRequest || !goldentest.Page(t, "many directories", body) {
		t.Errorf("too many directories: %d\n%s", status, body)
	}
	p.directories = slices.Repeat([]string{"https://b.example/v1"}, 20) // the configuration file has 21
	for name, form := range map[string]url.Values{"the button that skips the form": {"keep": {"1"}}, "another name": many} {
		if _, body := p.post("profile", form); !goldentest.Page(t, name, body) {
			t.Errorf("%s, with 21 configured directories:\n%s", name, body)
		}
	}
	if body := p.must("connect"); !strings.Contains(body, "claude mcp add --scope user agentmesh -- agentmesh --data &#39;/my data&#39; mcp") {
		t.Errorf("the page for programs:\n%s", body)
	}
}

// TestRegistrationEvent: a page that shows registrations learns that one has changed.
func TestRegistrationEvent(t *testing.T) {
	sarah := meshtest.New(t).Node("sarah", nil)
	events, stop := sarah.OwnerAPI().Watch()
	defer stop()
	if _, err := sarah.OwnerAPI().WithdrawFrom(t.Context(), owner.Withdraw{}, "test"); err != nil {
		t.Fatal(err)
	}
	for e := range events {
		if e.Topic == owner.TopicStatus {
			return
		}
	}
	t.Error("no event came")
}
