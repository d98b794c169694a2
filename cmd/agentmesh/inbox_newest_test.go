package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// handlerTransport answers requests with a handler in this process.
type handlerTransport struct{ http.Handler }

func (d handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestNewestItems: newest finds items that are years old, of one moment, or stamped by a clock that was ahead. It does
// not read all of a long inbox.
func TestNewestItems(t *testing.T) {
	now := time.Now()
	id := func(ago time.Duration, n int) string {
		return fmt.Sprintf("in_%012x%03xabcdefgh", now.Add(-ago).UnixMilli(), n)
	}
	var spread, moment []string
	for i := range 1000 {
		spread = append(spread, id(time.Duration(1000-i)*10*time.Hour, 0))
		moment = append(moment, id(2*365*24*time.Hour, i))
	}
	for name, ids := range map[string][]string{
		"spread": spread, "one moment": moment, "years ago": moment[:7], "ahead": append(slices.Clone(spread), id(-time.Hour, 0), id(-time.Hour, 1)),
	} {
		read := 0
		api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			limit, _ := strconv.Atoi(q.Get("limit"))
			at, found := slices.BinarySearch(ids, q.Get("after"))
			if found {
				at++
			}
			var items []wire.Value
			for _, id := range ids[at:min(at+limit, len(ids))] {
				items = append(items, wire.Obj(wire.Member{Key: "id", Value: wire.Text(id)}))
			}
			read += len(items)
			answer := wire.Obj(wire.Member{Key: "items", Value: wire.Arr(items...)})
			if at+limit < len(ids) {
				answer = answer.With("next", wire.Text(ids[at+limit-1]))
			}
			_, _ = w.Write(answer.JSON())
		})
		c, o := &inboxListCmd{Limit: 5}, &daemon.Client{Client: owner.Client{HTTP: &http.Client{Transport: handlerTransport{api}}}}
		list, err := c.newest(t.Context(), o, now)
		var got []string
		for _, i := range list {
			got = append(got, i.ID)
		}
		if want := ids[len(ids)-5:]; err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %s", name, got, err, strings.Join(want, " "))
		}
		if name == "spread" && read > 100 {
			t.Errorf("%s: %d items were read", name, read)
		}
	}
}
