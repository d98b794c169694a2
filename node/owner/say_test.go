package owner

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/node/zone"
)

// init sets the zone of the owner.
func init() { time.Local = time.FixedZone("PST", -8*60*60) }

func TestFactsOf(t *testing.T) {
	v, err := wire.Parse([]byte(`{"event":{"duration":"30m","title":"Coffee","proposed_times":["2027-02-19T10:00:00-08:00","2027-02-19T14:00"]},"n":1,"none":{},"deep":{"a":{"b":{"c":{"d":{"e":{"f":1}}}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Fact{
		{"event › title", "Coffee"}, {"event › duration", "30m"},
		{"event › proposed times 1", "Fri 19 Feb 2027, 10:00 PST"}, {"event › proposed times 2", "2027-02-19T14:00"},
		{"n", "1"}, {"none", "{}"}, {"deep › a › b › c › d › e", `{"f":1}`},
	}
	if diff := cmp.Diff(want, FactsOf(v, false)); diff != "" {
		t.Error(diff)
	}
	if list := FactsOf(wire.Obj(), false); len(list) != 0 {
		t.Errorf("nothing has the facts %v", list)
	}
	wide := wire.Obj()
	for i := range 10 * maxFacts {
		wide = wide.With(string(rune('a'+i%26))+string(rune('a'+i/26)), wire.Int(int64(i)))
	}
	if n := len(FactsOf(wide, false)); n != maxFacts {
		t.Errorf("%d facts are shown, want %d", n, maxFacts)
	}
}

// TestDeedsInWords: the page has words for every action of the specification, and for what our hooks answer.
func TestDeedsInWords(t *testing.T) {
	for intent, list := range map[wire.Intent][]string{
		wire.Schedule: {"propose", "counter", "accept", "decline", "cancel"}, wire.Deliver: {"deliver"},
		wire.RequestInfo: {"ask", "answer"}, wire.Negotiate: {"propose", "counter", "accept", "reject", "withdraw"},
		wire.Handoff: {"request_human"},
	} {
		for _, action := range list {
			if deed := (Said{Action: action}).Deed(intent); strings.Contains(deed, "mesh.") {
				t.Errorf("%s of %s is described as %q", action, intent, deed)
			}
		}
	}
}

func TestFormatTime(t *testing.T) {
	for in, want := range map[string]string{
		"2027-02-19T10:00:00Z": "Fri 19 Feb 2027, 02:00 PST", "2027-02-19T10:00-0800": "2027-02-19T10:00-0800", "2027-02-19T10:00:00-0800": "Fri 19 Feb 2027, 10:00 PST",
		"2027-02-19": "2027-02-19", "2027-02-19T10:00:00": "2027-02-19T10:00:00", "": "", "T": "T", "tomorrow": "tomorrow",
	} {
		if got := LocalTime(in); got != want {
			t.Errorf("LocalTime(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestSay: each kind of message becomes one sentence, and times stay as they were sent if the reader is a model.
// TestOwnerZone: people read times in the zone of the owner, wherever the machine is.
func TestOwnerZone(t *testing.T) {
	before := zone.Owner()
	t.Cleanup(func() { zone.Set(before) })
	for name, want := range map[string]string{"Asia/Kathmandu": "Thu 21 Feb 2036, 23:45 +0545", "America/New_York": "Thu 21 Feb 2036, 13:00 EST"} {
		loc, err := zone.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		zone.Set(loc)
		if got := LocalTime("2036-02-21T10:00:00-08:00"); got != want {
			t.Errorf("in %s it is %q, want %q", name, got, want)
		}
	}
	if loc, err := zone.Load("Mars/Base"); err == nil {
		t.Errorf("Mars/Base is %s", loc)
	}
}

func TestSay(t *testing.T) {
	for _, tc := range []struct {
		intent        wire.Intent
		payload, want string
	}{
		{wire.Deliver, `{"action":"deliver","message":{"body":"hello"}}`, "wrote: hello"},
		{wire.Deliver, `{"action":"deliver","message":{"subject":"Re","body":"hello","priority":"high"}}`, "wrote: Re\nhello"},
		{wire.RequestInfo, `{"action":"ask","question":"where?"}`, "asked: where?"},
		{wire.RequestInfo, `{"action":"answer","answer":"here"}`, "answered: here"},
		{wire.Schedule, `{"action":"propose","event":{"title":"Coffee","proposed_times":["2030-01-31T10:00:00Z","2030-02-01T10:00:00Z"],"duration":"90m","location":"Bar"}}`, "proposed a meeting: Coffee · 2030-01-31T10:00:00Z or 2030-02-01T10:00:00Z · 90m · Bar"},
		{wire.Schedule, `{"action":"accept","selected_time":"2030-01-31T10:00:00Z"}`, "accepted: selected_time: 2030-01-31T10:00:00Z"},
		{wire.Negotiate, `{"action":"propose","terms":{"description":"a bike","price":"5 EUR"}}`, "made an offer: description: a bike · price: 5 EUR"},
		{wire.Deliver, `{"action":"received"}`, "confirmed receipt"},
		{wire.Deliver, `{"action":"close","status":"completed"}`, "closed the conversation: status: completed"},
		{"org.example.rent", `{"action":"offer","car":"red"}`, "org.example.rent · offer: car: red"},
		{"", "not JSON", "not JSON"},
	} {
		if got := strings.TrimPrefix(Say(json.RawMessage(tc.payload), true).Sentence(tc.intent), ": "); got != tc.want {
			t.Errorf("%s\n got %q\nwant %q", tc.payload, got, tc.want)
		}
	}
}
