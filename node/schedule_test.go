package node_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/wire"
)

// workday returns midnight UTC of a working day at least three days ahead.
func workday() time.Time {
	d := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 3)
	for d.Weekday() == time.Saturday || d.Weekday() == time.Sunday {
		d = d.AddDate(0, 0, 1)
	}
	return d
}

// scheduling configures a node that answers mesh.schedule from a calendar that is busy between the hours from and
// until of the day.
func scheduling(t *testing.T, day time.Time, from, until int, limits calendar.Limits) func(*node.Config) {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nUID:busy\r\nDTSTART:%s\r\nDTEND:%s\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n",
		day.Add(time.Duration(from)*time.Hour).Format("20060102T150405Z"), day.Add(time.Duration(until)*time.Hour).Format("20060102T150405Z"))
	if err := os.WriteFile(filepath.Join(dir, "busy.ics"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		book := calendar.NewBook(calendar.BookConfig{Records: cfg.Store.Records()})
		planner, err := calendar.NewPlanner(calendar.Config{Sources: []calendar.Source{calendar.Files{Path: dir}, book}})
		if err != nil {
			t.Fatal(err)
		}
		cfg.Agreed = book
		cfg.Routes = []node.Route{{
			Pattern: string(wire.Schedule), Name: "calendar", Repeatable: true, Replies: true,
			Handler: hook.Calendar{Scheduler: &calendar.Scheduler{Planner: planner, Book: book, Limits: limits}},
		}}
	}
}

func coffee(t *testing.T, at ...time.Time) wire.Value {
	t.Helper()
	var texts []string
	for _, a := range at {
		texts = append(texts, a.Format(time.RFC3339Nano))
	}
	return wire.Obj(
		wire.Member{Key: "action", Value: wire.Text("propose")},
		wire.Member{Key: "event", Value: wire.Obj(
			wire.Member{Key: "title", Value: wire.Text("Coffee")}, wire.Member{Key: "proposed_times", Value: wire.Texts(texts)},
			wire.Member{Key: "duration", Value: wire.Text("30 minutes")}, wire.Member{Key: "location", Value: wire.Text("Sightglass")},
		)},
	)
}

// agreedEvents lists the events in the book of a member.
func agreedEvents(t *testing.T, m *meshtest.Member) []calendar.Event {
	t.Helper()
	events, err := calendar.NewBook(calendar.BookConfig{Records: m.Store.Records()}).Events(t.Context(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return events
}

// TestTwoCalendars: two calendars agree on the coffee of the specification without their owners. The proposed time is
// busy for Sarah, her first offer is busy for Chris, and the second one fits both.
func TestTwoCalendars(t *testing.T) {
	day := workday()
	mesh := meshtest.New(t)
	limits := calendar.Limits{Accept: true, Strangers: true}
	sarah := mesh.Node("sarah", scheduling(t, day, 9, 12, limits))
	chris := mesh.Node("chris", scheduling(t, day, 12, 13, limits))
	out := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: coffee(t, day.Add(10*time.Hour)), Conv: "conv_coffee", Via: "owner"}
	mustSend(t, chris.Node, out, 10*time.Second)
	waitFor(t, "the conversation is completed", func() bool {
		return convState(t, chris.Store, out) == conversations.Completed &&
			convState(t, sarah.Store, node.Outgoing{To: chris.ID(), Conv: out.Conv}) == conversations.Completed
	})
	for _, m := range []*meshtest.Member{sarah, chris} {
		events := agreedEvents(t, m)
		if len(events) != 1 || !events[0].Start.Equal(day.Add(13*time.Hour)) || events[0].Duration != 30*time.Minute ||
			events[0].Title != "Coffee" || events[0].Location != "Sightglass" {
			t.Errorf("%s: agreed events = %+v, want coffee at %v", m.Name, events, day.Add(13*time.Hour))
		}
		if n := countAgreed(t, m); n != 1 {
			t.Errorf("%s: the owner got %d notices of agreements, want 1", m.Name, n)
		}
	}
}

// TestCalendarAcceptsFractionOfSecond: an accept selects exactly the proposed time, even between two seconds. For the
// proposer, another time would be a new proposal.
func TestCalendarAcceptsFractionOfSecond(t *testing.T) {
	day := workday()
	mesh := meshtest.New(t)
	limits := calendar.Limits{Accept: true, Strangers: true}
	sarah := mesh.Node("sarah", scheduling(t, day, 9, 10, limits))
	chris := mesh.Node("chris", nil)
	out := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: coffee(t, day.Add(10*time.Hour+500*time.Millisecond)), Conv: "conv_coffee", Via: "owner"}
	mustSend(t, chris.Node, out, 10*time.Second)
	waitFor(t, "the conversation is completed", func() bool {
		return convState(t, chris.Store, out) == conversations.Completed
	})
	if n := len(agreedEvents(t, sarah)); n != 1 {
		t.Errorf("Sarah has %d agreed events, want 1", n)
	}
}

// TestCalendarAsks: a time that fits waits for the owner, who sees the reason and agrees by approving.
func TestCalendarAsks(t *testing.T) {
	day := workday()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", scheduling(t, day, 9, 12, calendar.Limits{}))
	chris := mesh.Node("chris", open)
	out := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: coffee(t, day.Add(14*time.Hour)), Conv: "conv_coffee", Via: "owner"}
	mustSend(t, chris.Node, out, 10*time.Second)
	asks, _, err := sarah.Asks().List(t.Context(), acl.AskFilter{State: acl.AskPending}, "", 10, time.Now())
	if err != nil || len(asks) != 1 || !strings.Contains(string(asks[0].Body), "agreeing is left to you") {
		t.Fatalf("asks = %+v, %v", asks, err)
	}
	if len(agreedEvents(t, sarah)) != 0 {
		t.Error("an event was agreed before the owner approved")
	}
	if _, err := sarah.Asks().Decide(t.Context(), asks[0].ID, asks[0].Hash, acl.Approve, "test", time.Now()); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the event is agreed", func() bool {
		return len(agreedEvents(t, sarah)) == 1 && convState(t, chris.Store, out) == conversations.Completed
	})
}

// TestCalendarCountsAllCounters: after three counters the owner is asked, even if the peer has sent many other messages
// in between, so that no peer learns one free time after the other.
func TestCalendarCountsAllCounters(t *testing.T) {
	day := workday()
	mesh := meshtest.New(t)
	sarah := mesh.Node("sarah", scheduling(t, day, 9, 12, calendar.Limits{Strangers: true}))
	chris := mesh.Node("chris", open)
	busy := node.Outgoing{To: sarah.ID(), Intent: wire.Schedule, Payload: coffee(t, day.Add(10*time.Hour)), Conv: "conv_coffee", Via: "owner"}
	for range 3 {
		if sent := mustSend(t, chris.Node, busy, 10*time.Second); sent.Status != http.StatusOK {
			t.Fatalf("an early proposal: %+v", sent)
		}
	}
	talk := busy
	talk.Intent, talk.Payload = wire.Deliver, parsePayload(t, `{"action":"deliver","message":{"body":"hello"}}`)
	for range 10 {
		mustSend(t, chris.Node, talk, 10*time.Second)
	}
	if sent := mustSend(t, chris.Node, busy, 10*time.Second); sent.Status != http.StatusAccepted {
		t.Errorf("the fourth proposal: %+v, want it to wait for the owner", sent)
	}
}
