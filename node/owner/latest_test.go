package owner

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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
		"years ago":    func(i int) time.Time { return now.Add(-8*365*24*time.Hour - time.Duration(i)*time.Hour) },
		"clock ahead":  func(i int) time.Time { return now.Add(time.Hour - time.Duration(i)*10*time.Hour) },
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
			list := func(_ context.Context, q Query) (List[string], error) {
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
				return Page(ids[from:to], next), nil
			}
			var got []string
			for before, pages := "", 0; pages == 0 || before != ""; pages++ {
				calls = 0
				out, err := ListLatest(t.Context(), "in_", Query{Limit: 25}, before, func(s string) string { return s }, list)
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
