package client

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Query selects agents in a directory (AM-52). The zero value selects all agents.
type Query struct {
	Capabilities []string      // agents must have all of them
	Intents      []wire.Intent // agents must accept all of them
	Text         string        // words that the name or the description must contain
	Limit        int           // agents per page, 1 to 100; 0 means the default of the directory
	Cursor       string        // the cursor of the previous page
}

func (q Query) values() url.Values {
	v := url.Values{"capability": q.Capabilities}
	for _, i := range q.Intents {
		v.Add("intent", string(i))
	}
	if q.Text != "" {
		v.Set("q", q.Text)
	}
	if q.Limit != 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	if q.Cursor != "" {
		v.Set("cursor", q.Cursor)
	}
	return v
}

// pageValues bounds the number of JSON values in a page: 100 cards of the largest size and the data around them.
const pageValues = 100 * (wire.MaxValues + 20)

// Search returns one page. Even a page with a cursor may be the last, because some directories send a cursor with a
// full last page. The cards are not checked; see [wire.ParseCard].
func (d *Directory) Search(ctx context.Context, q Query) (wire.Listing, error) {
	path := "/agents"
	if params := q.values().Encode(); params != "" {
		path += "?" + params
	}
	resp, err := d.do(ctx, request{op: opSearch, method: http.MethodGet, path: path, max: maxPageAnswer}, http.StatusOK)
	if err != nil {
		return wire.Listing{}, err
	}
	page, err := parseListing(resp.body)
	if err != nil {
		return wire.Listing{}, d.badAnswer(opSearch, resp.status, err)
	}
	return page, nil
}

func parseListing(body []byte) (wire.Listing, error) {
	v, err := wire.ParseLimits(body, wire.MaxDepth+2, pageValues) // each card is in an array in an object
	if err != nil {
		return wire.Listing{}, err
	}
	agents, ok := v.Get("agents")
	if !ok || agents.Kind() != wire.Array {
		return wire.Listing{}, errors.New("the answer has no list of agents")
	}
	page := wire.Listing{Cursor: v.GetStr("cursor")}
	for card := range agents.Elems() {
		if !wire.AgentID(card.GetStr("agent_id")).Valid() {
			return wire.Listing{}, errors.New("the answer has a card without an agent id")
		}
		page.Agents = append(page.Agents, card)
	}
	verification, _ := v.Get("verification")
	for _, m := range verification.Members() {
		var proven wire.Verification
		if json.Unmarshal(m.Value.JSON(), &proven) != nil {
			continue // another directory may use another format
		}
		if page.Verification == nil {
			page.Verification = make(map[wire.AgentID]wire.Verification, verification.Len())
		}
		page.Verification[wire.AgentID(m.Key)] = proven
	}
	return page, nil
}

// FindCards asks each directory for one page, in order, and returns the matching valid cards, at most q.Limit if that
// is positive. The cards are untrusted. If it finds none, it returns the error of the last directory that failed, or
// nil.
func FindCards(ctx context.Context, directories []*Directory, q Query) ([]wire.Card, error) {
	var out []wire.Card
	var lastErr error
	for _, d := range directories {
		page, err := d.Search(ctx, q)
		if err != nil {
			lastErr = err
			continue
		}
		for _, v := range page.Agents { // a call of the endpoint checks whether it may use http
			if card, err := wire.ParseCard(v, wire.CardRules{AllowHTTP: func(string) bool { return true }}); err == nil {
				out = append(out, card)
			}
		}
	}
	if len(out) > 0 {
		if q.Limit > 0 {
			out = out[:min(len(out), q.Limit)]
		}
		return out, nil
	}
	return nil, lastErr
}
