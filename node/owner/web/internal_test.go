package web

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
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

// TestPlanWeek: a meeting stands on its day in the zone of the owner, in the order of time, and an empty week is none.
func TestPlanWeek(t *testing.T) {
	berlin, err := zone.Load("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	before := zone.Owner()
	zone.Set(berlin)
	defer zone.Set(before)
	now := time.Date(2026, 12, 1, 22, 30, 0, 0, time.UTC) // 23:30 in Berlin
	at := func(days int, clock string) weekEvent {
		when, err := time.Parse("15:04", clock)
		if err != nil {
			t.Fatal(err)
		}
		return weekEvent{At: time.Date(2026, 12, 1+days, when.Hour(), when.Minute(), 0, 0, time.UTC)}
	}
	days := planWeek([]weekEvent{at(0, "23:15"), at(3, "15:00"), at(3, "08:00"), at(9, "10:00"), at(-1, "10:00")}, now)
	var got []string
	for _, d := range days {
		for _, e := range d.Events {
			got = append(got, d.Day+" "+e.Clock())
		}
	}
	if want := []string{"Wed 2 00:15", "Fri 4 09:00", "Fri 4 16:00"}; !slices.Equal(got, want) || len(days) != 7 || days[0].Day != "Tue 1" {
		t.Errorf("%d days, events %q, want %q", len(days), got, want)
	}
	if days := planWeek([]weekEvent{at(9, "10:00")}, now); days != nil {
		t.Errorf("an empty week: %v", days)
	}
}
