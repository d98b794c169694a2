package web

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// init sets the zone of the owner, before a server of a test reads the clock.
func init() { time.Local = time.FixedZone("PST", -8*60*60) }

func TestNumbers(t *testing.T) {
	for got, want := range map[string]string{
		httpapi.FormatNumber(0): "0", httpapi.FormatNumber(999): "999", httpapi.FormatNumber(1000): "1,000", httpapi.FormatNumber(1234567): "1,234,567",
		formatCount(49): "49", formatCount(50): "50+",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestSkippedTime: a time that does not exist on the day of a clock change is refused, and not moved by an hour.
func TestSkippedTime(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]bool{
		"2027-03-28T01:59": true, "2027-03-28T02:00": false, "2027-03-28T02:30": false, "2027-03-28T03:00": true,
		"2027-10-31T02:30": true, // exists twice
		"2027-10-31":       false,
	} {
		if at, err := parseFormTime(text, berlin); (err == nil) != want {
			t.Errorf("%s: %s, %v, want ok = %v", text, at, err, want)
		}
	}
}

// TestWaysAreThoseOfTheDocs: the page and docs/agents.md say the same.
func TestWaysAreThoseOfTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/agents.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ways([]string{"agentmesh", "mcp"}, "agentmesh.yaml")[:4] {
		if !strings.Contains(string(doc), w.Text) || !strings.Contains(string(doc), w.Title) {
			t.Errorf("docs/agents.md does not connect %s with\n%s", w.Title, w.Text)
		}
	}
}

// TestAgreementsHaveNames: an agreed offer, which has no title, is named by its terms.
func TestAgreementsHaveNames(t *testing.T) {
	offer := owner.Agreement{Agreement: conversations.Agreement{Intent: wire.Negotiate, Price: "12 EUR"}, Standing: owner.StandingAgreed}
	if got := whatWasAgreed(offer); !strings.Contains(got, "12 EUR") {
		t.Errorf("an offer is %q", got)
	}
}
