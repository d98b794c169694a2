package owner

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Latest is a page of a list, newest first.
type Latest[T any] struct {
	Items []T
	Older string // selects the next older page: the newerID of [ListLatest]; "" on the last page
}

// maxAge is how far back [ListLatest] reaches.
const maxAge = 10 * 365 * 24 * time.Hour

// lister returns a page of a list, oldest first.
type lister[T any] func(context.Context, Query) (List[T], error)

// ListLatest returns a page of a list newest first, although the list is stored oldest first. The page has only entries
// that are older than the entry with the id newerID, or the newest entries if newerID is empty. Ids contain their time
// after prefix, so ListLatest searches for the moment to start reading: further back if too few entries follow it,
// nearer if there are too many.
func ListLatest[T any](ctx context.Context, prefix string, q Query, newerID string, id func(T) string, list lister[T]) (out Latest[T], err error) {
	size := q.Limit
	read := func(after string) (List[T], error) {
		q.After = after
		return list(ctx, q)
	}
	end := time.Now().Add(time.Minute) // the clock of another process may be ahead
	if newerID != "" {
		if end, err = timeAfter(prefix, newerID); err != nil {
			return out, Fault(http.StatusBadRequest, "before must be the id of an entry of this list", "")
		}
	}
	var few, many time.Duration // windows before end with too few and too many entries
	for window := time.Minute; ; {
		found, complete, err := readSince(idPrefixAt(prefix, end.Add(-window)), newerID, size, id, read)
		switch {
		case err != nil:
			return out, err
		case !complete:
			many = window
		case len(found) <= size && window < maxAge:
			few = window
		default:
			return newestFirst(found, size, id), nil
		}
		switch {
		case many == 0:
			window *= 4
		case many-few <= time.Millisecond: // one moment has too many entries: return the newest of them
			return newestFirst(found, size, id), nil
		default:
			window = few + (many-few)/2
		}
	}
}

// readSince reads the entries that follow startKey and are older than the entry with the id newerID. found has the
// newest of them, at most one more than a page. If there are too many entries to read, complete is false, and found has
// the newest of those that were read.
func readSince[T any](startKey, newerID string, size int, id func(T) string, read func(after string) (List[T], error)) (found []T, complete bool, err error) {
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
		found = found[max(0, len(found)-size-1):]
		if next == "" {
			return found, true, nil
		}
		startKey = next
	}
	return found, false, nil
}

// newestFirst reverses found into a page and sets where older entries begin.
func newestFirst[T any](found []T, size int, id func(T) string) (out Latest[T]) {
	if len(found) > size {
		found = found[len(found)-size:]
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
