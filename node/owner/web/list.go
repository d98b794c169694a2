package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
)

type listPage[T any] struct {
	Items []T
	Older string // the query parameter that selects the next older page; "" on the last page
}

// maxAge is how far back a list reaches.
const maxAge = 3 * 365 * 24 * time.Hour

// lister returns a page of a list, oldest first.
type lister[T any] func(context.Context, owner.Query) (owner.List[T], error)

// listLatest returns a page of a list newest first, although the list is stored oldest first. The page has only entries
// that are older than the entry with the id newerID, or the newest entries if newerID is empty. Ids contain their time
// after prefix, so listLatest searches for the moment to start reading: further back if too few entries follow it,
// nearer if there are too many.
func listLatest[T any](ctx context.Context, prefix, state, newerID string, id func(T) string, list lister[T]) (out listPage[T], err error) {
	read := func(after string) (owner.List[T], error) {
		return list(ctx, owner.Query{State: state, After: after, Limit: pageSize})
	}
	end := time.Now().Add(time.Minute) // the clock of another process may be ahead
	if newerID != "" {
		if end, err = timeAfter(prefix, newerID); err != nil {
			return out, owner.Fault(http.StatusBadRequest, "before must be the id of an entry of this list", "")
		}
	}
	var few, many time.Duration // windows before end with too few and too many entries
	for window := time.Minute; ; {
		found, complete, err := readSince(idPrefixAt(prefix, end.Add(-window)), newerID, id, read)
		switch {
		case err != nil:
			return out, err
		case !complete:
			many = window
		case len(found) <= pageSize && window < maxAge:
			few = window
		default:
			return newestFirst(found, id), nil
		}
		switch {
		case many == 0:
			window *= 4
		case many-few <= time.Millisecond: // one moment has too many entries: return the newest of them
			return newestFirst(found, id), nil
		default:
			window = few + (many-few)/2
		}
	}
}

// readSince reads the entries that follow startKey and are older than the entry with the id newerID. found has the
// newest of them, at most one more than a page. If there are too many entries to read, complete is false, and found has
// the newest of those that were read.
func readSince[T any](startKey, newerID string, id func(T) string, read func(after string) (owner.List[T], error)) (found []T, complete bool, err error) {
	const pages = 8
	for range pages {
		page, err := read(startKey)
		if err != nil {
			return nil, false, err
		}
		entries, next := page.Items, page.Next
		if at := slices.IndexFunc(entries, func(e T) bool { return newerID != "" && id(e) >= newerID }); at >= 0 {
			entries, next = entries[:at], ""
		}
		found = append(found, entries...)
		found = found[max(0, len(found)-pageSize-1):]
		if next == "" {
			return found, true, nil
		}
		startKey = next
	}
	return found, false, nil
}

// newestFirst reverses found into a page and sets where older entries begin.
func newestFirst[T any](found []T, id func(T) string) (out listPage[T]) {
	if len(found) > pageSize {
		found = found[len(found)-pageSize:]
		out.Older = id(found[0])
	}
	out.Items = slices.Clone(found)
	slices.Reverse(out.Items)
	return out
}

// idPrefixAt returns the beginning that all ids of time t share in the list whose ids begin with prefix.
func idPrefixAt(prefix string, t time.Time) string {
	if prefix == "out_" { // ids of the outbox have microseconds, all others milliseconds
		return fmt.Sprintf("%s%014x", prefix, t.UnixMicro())
	}
	return fmt.Sprintf("%s%012x", prefix, t.UnixMilli())
}

// timeAfter returns the first moment after the time in an id.
func timeAfter(prefix, id string) (time.Time, error) {
	digits, ok := strings.CutPrefix(id, prefix)
	size := 12
	if prefix == "out_" {
		size = 14
	}
	if !ok || len(digits) < size {
		return time.Time{}, errors.New("not an id of this list")
	}
	number, err := strconv.ParseInt(digits[:size], 16, 64)
	if err != nil {
		return time.Time{}, err
	}
	if size == 14 {
		return time.UnixMicro(number + 1), nil
	}
	return time.UnixMilli(number + 1), nil
}
