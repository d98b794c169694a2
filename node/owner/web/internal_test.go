package web

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
)

// init sets the zone of the owner, before a server of a test reads the clock.
func init() { time.Local = time.FixedZone("PST", -8*60*60) }

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
