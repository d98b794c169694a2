package web

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// init sets the zone of the owner, before a server of a test reads the clock.
func init() { time.Local = time.FixedZone("PST", -8*60*60) }

func TestFactsOf(t *testing.T) {
	v, err := wire.Parse([]byte(`{"event":{"duration":"30m","title":"Coffee","proposed_times":["2027-02-19T10:00:00-08:00","2027-02-19T14:00"]},"n":1,"none":{},"deep":{"a":{"b":{"c":{"d":{"e":{"f":1}}}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []fact{
		{"event › title", "Coffee"}, {"event › duration", "30m"},
		{"event › proposed times 1", "Fri 19 Feb 2027, 10:00 PST"}, {"event › proposed times 2", "2027-02-19T14:00"},
		{"n", "1"}, {"none", "{}"}, {"deep › a › b › c › d › e", `{"f":1}`},
	}
	if diff := cmp.Diff(want, factsOf(v)); diff != "" {
		t.Error(diff)
	}
	if list := factsOf(wire.Obj()); len(list) != 0 {
		t.Errorf("nothing has the facts %v", list)
	}
	wide := wire.Obj()
	for i := range 10 * maxFacts {
		wide = wide.With(string(rune('a'+i%26))+string(rune('a'+i/26)), wire.Int(int64(i)))
	}
	if n := len(factsOf(wide)); n != maxFacts {
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
			if deed := (content{Action: action}).Deed(intent); strings.Contains(deed, "mesh.") {
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
		if got := formatTime(in); got != want {
			t.Errorf("formatTime(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestTimeAfter(t *testing.T) {
	for _, tc := range []struct {
		prefix, id string
		ok         bool
	}{
		{"in_", "in_01a1fc76c606abcd", true}, {"out_", "out_01a1fc76c606ab", true}, {"out_", "out_01a1fc76c606", false},
		{"in_", "ask_01a1fc76c606abcd", false}, {"in_", "in_", false}, {"in_", "in_zzzzzzzzzzzz", false},
	} {
		if _, err := timeAfter(tc.prefix, tc.id); (err == nil) != tc.ok {
			t.Errorf("timeAfter(%s, %s) = %v", tc.prefix, tc.id, err)
		}
	}
}

// TestLatest walks lists of every density: newest first, nothing twice, nothing missing, and with few reads.
func TestLatest(t *testing.T) {
	now := time.Now()
	for name, at := range map[string]func(i int) time.Time{
		"one a day":    func(i int) time.Time { return now.Add(-time.Duration(i) * 24 * time.Hour) },
		"one a second": func(i int) time.Time { return now.Add(-time.Duration(i) * time.Second) },
		"one a moment": func(i int) time.Time { return now.Add(-time.Duration(i) * time.Millisecond) },
		"an old burst": func(i int) time.Time { return now.Add(-200*24*time.Hour - time.Duration(i)*10*time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			const total = 700
			var ids []string
			for i := range total {
				ids = append(ids, idPrefixAt("in_", at(i))+fmt.Sprintf("%08d", total-i))
			}
			want := slices.Clone(ids) // newest first
			slices.Sort(ids)
			calls := 0
			list := func(_ context.Context, q owner.Query) (owner.List[string], error) {
				calls++
				from, found := slices.BinarySearch(ids, q.After)
				if found {
					from++
				}
				to := min(from+q.Limit, len(ids))
				next := ""
				if to < len(ids) && to > from {
					next = ids[to-1]
				}
				return owner.Page(ids[from:to], next), nil
			}
			var got []string
			for before, pages := "", 0; pages == 0 || before != ""; pages++ {
				calls = 0
				out, err := listLatest(t.Context(), "in_", "", before, func(s string) string { return s }, list)
				if err != nil {
					t.Fatal(err)
				}
				if calls > 200 {
					t.Errorf("a page took %d reads", calls)
				}
				got = append(got, out.Items...)
				if before = out.Older; pages > total {
					t.Fatal("it does not end")
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

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
