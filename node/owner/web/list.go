package web

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/owner"
)

// listed is a list of which a part is shown.
type listed[T any] struct {
	Items []T
	Older string // query of the older ones, "" where there are none
}

// oldestListed is how far back a list reaches.
const oldestListed = 3 * 365 * 24 * time.Hour

// latest returns entries of a list that is kept oldest first, newest first: those before the one named before, all
// where it is empty. Ids hold their time after prefix, so the list is read from a moment on that is found by trying:
// farther back while too little has happened since, nearer where it is too much to read.
func latest[T any](
	prefix, before string, now time.Time, stamp func(time.Time) string, id func(T) string,
	list func(after string, limit int) ([]T, string, error),
) (out listed[T], err error) {
	end := now.Add(time.Minute)
	if before != "" {
		if end, err = stampOf(prefix, before); err != nil {
			return out, owner.Fault(http.StatusBadRequest, "there is no such place in the list", "")
		}
	}
	var few, many time.Duration // windows before end that hold too little, and too much
	for window := time.Minute; ; {
		found, whole, err := since(prefix+stamp(end.Add(-window)), before, id, list)
		switch {
		case err != nil:
			return out, err
		case !whole:
			many = window
		case len(found) <= pageSize && window < oldestListed:
			few = window
		default:
			return page(found, id), nil
		}
		switch {
		case many == 0:
			window *= 4
		case many-few <= time.Millisecond: // more in one moment than is read: a part of it
			return page(found, id), nil
		default:
			window = few + (many-few)/2
		}
	}
}

// since reads what comes after a key and before the entry named before. whole is false where it is too much to read;
// of what was read the newest are returned, one more than a page holds.
func since[T any](
	after, before string, id func(T) string, list func(after string, limit int) ([]T, string, error),
) (found []T, whole bool, err error) {
	const pages = 8
	for range pages {
		entries, next, err := list(after, pageSize)
		if err != nil {
			return nil, false, err
		}
		if at := slices.IndexFunc(entries, func(e T) bool { return before != "" && id(e) >= before }); at >= 0 {
			entries, next = entries[:at], ""
		}
		found = append(found, entries...)
		found = found[max(0, len(found)-pageSize-1):]
		if next == "" {
			return found, true, nil
		}
		after = next
	}
	return found, false, nil
}

// page turns what was found around, and says where the older ones begin.
func page[T any](found []T, id func(T) string) (out listed[T]) {
	if len(found) > pageSize {
		found = found[len(found)-pageSize:]
		out.Older = id(found[0])
	}
	out.Items = slices.Clone(found)
	slices.Reverse(out.Items)
	return out
}

// millis and micros are the stamps of ids, as a node makes them.
func millis(t time.Time) string { return fmt.Sprintf("%012x", t.UnixMilli()) }
func micros(t time.Time) string { return fmt.Sprintf("%014x", t.UnixMicro()) }

// stampOf returns the time that an id of a list names.
func stampOf(prefix, id string) (time.Time, error) {
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
