package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// pages is a Records that lists the records of one namespace, two on a page.
type pages struct {
	Records
	keys  []string
	fails string // the key after which List fails
}

var errPage = errors.New("no such page")

func (p pages) List(_ context.Context, ns, term, after string, _ int, _ time.Time) (RecordPage, error) {
	if after != "" && after == p.fails || ns != "n" || term != "t" {
		return RecordPage{}, errPage
	}
	i := slices.Index(p.keys, after) + 1
	var page RecordPage
	for _, key := range p.keys[i:min(i+2, len(p.keys))] {
		page.Records = append(page.Records, Record{NS: ns, Key: key})
	}
	if i+2 < len(p.keys) {
		page.Next = p.keys[i+1]
	}
	return page, nil
}

func TestAllRecords(t *testing.T) {
	for _, tt := range []struct {
		keys  []string
		fails string
		stop  int // after so many records; 0: never
		want  []string
		err   error
	}{
		{want: nil},
		{keys: []string{"a"}, want: []string{"a"}},
		{keys: []string{"a", "b"}, want: []string{"a", "b"}},
		{keys: []string{"a", "b", "c", "d", "e"}, want: []string{"a", "b", "c", "d", "e"}},
		{keys: []string{"a", "b", "c", "d", "e"}, stop: 3, want: []string{"a", "b", "c"}},
		{keys: []string{"a", "b", "c"}, fails: "b", want: []string{"a", "b"}, err: errPage},
	} {
		var got []string
		var err error
		for rec, fault := range AllRecords(t.Context(), pages{keys: tt.keys, fails: tt.fails}, "n", "t", time.Now()) {
			if err = fault; err != nil {
				continue
			}
			if got = append(got, rec.Key); len(got) == tt.stop {
				break
			}
		}
		if !slices.Equal(got, tt.want) || !errors.Is(err, tt.err) {
			t.Errorf("records of %q, stopped after %d: %q, %v, want %q, %v", tt.keys, tt.stop, got, err, tt.want, tt.err)
		}
	}
}
