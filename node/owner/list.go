package owner

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// List is a page of a list. Next is the parameter "after" of the next page; it is empty on the last page.
type List[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Page returns a page of a list. Its Items are never nil, so the JSON has an array.
func Page[T any](items []T, next string) List[T] {
	if items == nil {
		items = []T{}
	}
	return List[T]{Items: items, Next: next}
}

// Query selects a page of a list. A list ignores the parameters that it does not support.
type Query struct {
	State  string // "" for all
	After  string // Next of the previous page; "" for the first page
	Before uint64 // as After, for [ConversationList]; 0 for the first page
	Limit  int
	Newest bool          // newest first: After then selects what is older
	Wait   time.Duration // how long to wait for a first entry

	Peer         string // the agent id of the peer; empty: all
	Conversation string // of inbox items, together with Peer; empty: all; no HTTP request sets it
}

// CheckAfter refuses an After that is not the id of an entry of the list.
func (q Query) CheckAfter(prefix, entry string) error {
	if q.After != "" && !strings.HasPrefix(q.After, prefix) {
		return Fault(http.StatusBadRequest, "after must be the id of "+entry, "take next of the page before")
	}
	return nil
}

// ReadQuery parses the parameters of a list. It accepts only the given states. The default limit is 50.
func ReadQuery[S ~string](c echo.Context, states ...S) (q Query, err error) {
	q = Query{State: c.QueryParam("state"), After: c.QueryParam("after"), Peer: c.QueryParam("peer"), Limit: 50, Newest: c.QueryParam("newest") == "true"}
	if q.State != "" && !slices.Contains(states, S(q.State)) {
		names := make([]string, len(states))
		for i, s := range states {
			names[i] = string(s)
		}
		return q, Fault(http.StatusBadRequest, "there is no such state", "states are "+strings.Join(names, ", "))
	}
	if s := c.QueryParam("limit"); s != "" {
		if q.Limit, err = strconv.Atoi(s); err != nil || q.Limit < 1 || q.Limit > 1000 {
			return q, Fault(http.StatusBadRequest, "limit must be 1 to 1000", "")
		}
	}
	if s := c.QueryParam("before"); s != "" {
		if q.Before, err = strconv.ParseUint(s, 10, 64); err != nil {
			return q, Fault(http.StatusBadRequest, "before must be a number", "")
		}
	}
	if s := c.QueryParam("wait"); s != "" {
		seconds, err := strconv.Atoi(s)
		if err != nil || seconds < 0 || seconds > maxWait {
			return q, Fault(http.StatusBadRequest, "wait must be 0 to 55 seconds", "")
		}
		q.Wait = time.Duration(seconds) * time.Second
	}
	return q, nil
}

// serveList returns the operation of a list, which accepts only the given states.
func serveList[S ~string, Out any](e Endpoint[None, Out], list func(context.Context, Query) (Out, error), states ...S) Operation {
	return e.Serve(func(c echo.Context, _ None) (out Out, err error) {
		q, err := ReadQuery(c, states...)
		if err != nil {
			return out, err
		}
		return list(c.Request().Context(), q)
	})
}

// maxWait bounds, in seconds, how long a request waits for a first delivery, an answer or an item.
const maxWait = 55

// parseWait returns how long a request waits for an answer, and keeps its connection open that long.
func parseWait(c echo.Context, seconds int) (time.Duration, error) {
	if seconds < 0 || seconds > maxWait {
		return 0, Fault(http.StatusBadRequest, "wait_seconds must be 0 to 55", "")
	}
	wait := time.Duration(seconds) * time.Second
	return wait, httpapi.KeepOpen(c, wait+10*time.Second)
}
