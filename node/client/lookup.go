package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Fetched is the card of an agent as a directory served it.
type Fetched struct {
	Card wire.Value
	ETag string
	// MaxAge is how long the directory allows caching the card. It is negative if the directory sets no limit.
	MaxAge time.Duration
	// NotModified is true if the card has not changed since the caller got ETag. Card is then null.
	NotModified bool
	// EndpointProven is true if the directory claims that it has proven the card's endpoint (AM-63).
	EndpointProven bool
}

// Card returns the card of id. It checks only that the card has this id; see [wire.ParseCard].
func (d *Directory) Card(ctx context.Context, id wire.AgentID) (wire.Value, error) {
	f, err := d.Fetch(ctx, id, "")
	return f.Card, err
}

// Fetch reads a card like [Directory.Card], and returns the data that a cache needs. With an etag, the directory sends
// the card only if it has changed.
func (d *Directory) Fetch(ctx context.Context, id wire.AgentID, etag string) (Fetched, error) {
	path, err := agentPath(id)
	if err != nil {
		return Fetched{}, err
	}
	r := request{op: opCard, method: http.MethodGet, path: path, header: http.Header{}, timeout: lookupTimeout}
	statuses := []int{http.StatusOK}
	if etag != "" {
		r.header.Set("If-None-Match", etag)
		statuses = append(statuses, http.StatusNotModified)
	}
	resp, err := d.do(ctx, r, statuses...)
	if err != nil {
		return Fetched{}, err
	}
	f := Fetched{ETag: resp.header.Get("ETag"), MaxAge: maxAge(resp.header), EndpointProven: isEndpointProven(resp.header)}
	if resp.status == http.StatusNotModified {
		f.NotModified, f.ETag = true, etag
		return f, nil
	}
	if len(resp.body) > wire.MaxCard {
		return Fetched{}, d.badAnswer(r.op, resp.status, ErrAnswerTooLarge)
	}
	if f.Card, err = wire.ParseObject(resp.body); err != nil {
		return Fetched{}, d.badAnswer(r.op, resp.status, err)
	}
	if f.Card.GetStr("agent_id") != string(id) {
		return Fetched{}, d.badAnswer(r.op, resp.status, errors.New("it is the card of another agent"))
	}
	return f, nil
}

func isEndpointProven(h http.Header) bool {
	for part := range strings.SplitSeq(h.Get(wire.HeaderVerification), ";") {
		if stamp, ok := strings.CutPrefix(strings.TrimSpace(part), "endpoint="); ok {
			_, ok := wire.ParseTime(stamp)
			return ok
		}
	}
	return false
}

// lookupTimeout bounds one request of a look-up. A sender may wait for our reply, and gives up after 30 s (AM-32).
const lookupTimeout = 10 * time.Second

// maxAge returns the max-age of the answer, reduced by the Age that a cache on the way added (AM-59). It returns 0 if
// the answer must not be cached or its max-age is not valid, and a negative value if the answer sets no limit.
func maxAge(h http.Header) time.Duration {
	age := time.Duration(-1)
	for _, line := range h.Values("Cache-Control") {
		for directive := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.ToLower(strings.TrimSpace(directive)), "=")
			switch name {
			case "no-store", "no-cache":
				return 0
			case "max-age":
				n, err := strconv.ParseUint(strings.Trim(value, `"`), 10, 31)
				if err != nil {
					return 0
				}
				age = time.Duration(n) * time.Second
			}
		}
	}
	if elapsed, err := strconv.ParseUint(h.Get("Age"), 10, 31); err == nil && age > 0 {
		age = max(0, age-time.Duration(elapsed)*time.Second)
	}
	return age
}

// Record returns all that the directory knows about id. Only directories of this project serve records.
func (d *Directory) Record(ctx context.Context, id wire.AgentID) (wire.CardRecord, error) {
	var rec wire.CardRecord
	err := d.getDocument(ctx, request{op: opRecord}, id, "/record", &rec)
	if err == nil && rec.Card.GetStr("agent_id") != string(id) {
		err = d.badAnswer(opRecord, http.StatusOK, errors.New("it is the record of another agent"))
	}
	return rec, err
}

// Keys returns the key history of id (AM-60). Only directories of this project serve it.
func (d *Directory) Keys(ctx context.Context, id wire.AgentID) (wire.KeyHistory, error) {
	var keys wire.KeyHistory
	err := d.getDocument(ctx, request{op: opKeys, max: maxKeysAnswer, timeout: lookupTimeout}, id, "/keys", &keys)
	if err == nil && keys.AgentID != id {
		err = d.badAnswer(opKeys, http.StatusOK, errors.New("they are the keys of another agent"))
	}
	return keys, err
}

// getDocument fetches a document about id and decodes it into dst.
func (d *Directory) getDocument(ctx context.Context, r request, id wire.AgentID, suffix string, dst any) error {
	path, err := agentPath(id)
	if err != nil {
		return err
	}
	r.method, r.path = http.MethodGet, path+suffix
	resp, err := d.do(ctx, r, http.StatusOK)
	if err != nil {
		return err
	}
	if err := decodeStrict(resp.body, wire.MaxDepth+3, dst); err != nil { // at most three levels are around a card
		return d.badAnswer(r.op, resp.status, err)
	}
	return nil
}

// decodeStrict decodes a document of at most pageValues values, as many as a page of a search may have. The strict
// reader comes first, because json.Unmarshal accepts duplicate names and any number of values.
func decodeStrict(body []byte, depth int, dst any) error {
	if _, err := wire.ParseLimits(body, depth, pageValues); err != nil {
		return err
	}
	return json.Unmarshal(body, dst)
}
