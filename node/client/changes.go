package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

const (
	maxChanges       = 100
	maxChangesAnswer = 16 << 20 // 100 cards of 64 KiB and the data around them
)

var errWrongChange = errors.New("a line of the feed has the card of another agent")

// Changes returns a page of the changes of the directory's cards. since is the Next of the previous page; "" starts
// with all listed cards. If nothing has changed, the directory delays its answer until something changes, at most for
// the time wait. The directory counts whole seconds of wait and refuses more than 30 s. Only directories of this
// project have a change feed. Changes checks only that each card has the id of its line.
func (d *Directory) Changes(ctx context.Context, since string, wait time.Duration) (wire.ChangePage, error) {
	params := url.Values{"limit": {strconv.Itoa(maxChanges)}, "wait": {strconv.Itoa(int(wait / time.Second))}}
	if since != "" {
		params.Set("since", since)
	}
	r := request{op: opChanges, method: http.MethodGet, path: "/changes?" + params.Encode(), max: maxChangesAnswer, timeout: defaultAnswer + wait}
	resp, err := d.do(ctx, r, http.StatusOK)
	if err != nil {
		return wire.ChangePage{}, err
	}
	var page wire.ChangePage
	if err := decodeStrict(resp.body, wire.MaxDepth+4, &page); err != nil { // four levels are around each card
		return wire.ChangePage{}, d.badAnswer(r.op, resp.status, err)
	}
	for _, c := range page.Changes {
		if !c.AgentID.Valid() || c.Record != nil && c.Record.Card.GetStr("agent_id") != string(c.AgentID) {
			return wire.ChangePage{}, d.badAnswer(r.op, resp.status, errWrongChange)
		}
	}
	return page, nil
}
