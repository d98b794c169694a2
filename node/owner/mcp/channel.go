package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Channel pushes new messages of listed peers into the client's session, as Claude Code channels do. A client that does
// not know channels ignores them. A Channel serves one connection; make it with [NewChannel].
type Channel struct {
	tools *tools
	peers []string
	inner sdk.Transport

	held []string // the items of the peers that waited for the owner; only pushReleased and run use it

	mu   sync.Mutex
	conn sdk.Connection // nil until the client connects
}

// NewChannel returns a channel for messages of peers, named by id or address. Messages of others are not pushed.
func NewChannel(cfg Config, peers []string) *Channel {
	return &Channel{tools: &tools{api: cfg.Client}, peers: peers}
}

// Connect implements [sdk.Transport] and keeps the connection for pushes.
func (c *Channel) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := c.inner.Connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return conn, err
}

// retryFeed is how long a channel waits after a failed request, or before it looks at held items again.
const retryFeed = 5 * time.Second

// batchSize is the number of items that a channel reads at once. An item may have 256 KiB, and an answer 64 MiB.
const batchSize = 100

// run pushes messages of listed peers until ctx ends: new ones, which follow the item with the id last, and held ones
// when the owner releases them.
func (c *Channel) run(ctx context.Context, last string) {
	for ctx.Err() == nil {
		c.pushReleased(ctx, last)
		wait := maxWaitSeconds
		if len(c.held) > 0 {
			wait = int(retryFeed.Seconds())
		}
		query := url.Values{"state": {string(owner.ItemNew)}, "wait": {formatInt(wait)}, "limit": {formatInt(pageSize)}}
		if last != "" {
			query.Set("after", last)
		}
		list, err := owner.Fetch(ctx, c.tools.api, owner.ListInbox.Call().Ask(query))
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(retryFeed):
			}
			continue
		}
		for _, item := range list.Items {
			last = item.ID
			if c.isListed(item) {
				c.push(ctx, item)
			}
		}
	}
}

// pushReleased pushes the items that the owner has released since the previous call, up to the item with the id last.
// It also notes which items of listed peers are held now. If a request fails, the next call tries again.
func (c *Channel) pushReleased(ctx context.Context, last string) {
	var held []string
	query := url.Values{"state": {string(owner.ItemHeld)}, "limit": {formatInt(batchSize)}}
	for {
		list, err := owner.Fetch(ctx, c.tools.api, owner.ListInbox.Call().Ask(query))
		if err != nil {
			return
		}
		for _, item := range list.Items {
			if c.isListed(item) {
				held = append(held, item.ID)
			}
		}
		if list.Next == "" {
			break
		}
		query.Set("after", list.Next)
	}
	before := c.held
	c.held = held
	for _, id := range before {
		if id > last || slices.Contains(c.held, id) {
			continue // still held, or later than last, where run pushes it
		}
		item, err := owner.Fetch(ctx, c.tools.api, owner.ShowItem.Call(id))
		refusal, _ := errors.AsType[*wire.Error](err)
		switch {
		case err == nil && item.State == owner.ItemNew:
			c.push(ctx, item)
		case err != nil && (refusal == nil || refusal.Status != http.StatusNotFound):
			c.held = append(c.held, id)
		}
	}
}

// skipOld returns the id of the newest item that exists already, or "" if the inbox is empty. If a request fails, it
// returns the newest id that it has read.
func (c *Channel) skipOld(ctx context.Context) (last string) {
	for ctx.Err() == nil {
		list, err := owner.Fetch(ctx, c.tools.api, owner.ListInbox.Call().Ask(url.Values{"limit": {formatInt(batchSize)}, "after": {last}}))
		if err != nil || len(list.Items) == 0 {
			return last
		}
		last = list.Items[len(list.Items)-1].ID
	}
	return last
}

func (c *Channel) isListed(item owner.Item) bool {
	return slices.Contains(c.peers, string(item.Peer)) || item.Address != "" && slices.Contains(c.peers, item.Address)
}

// push writes one notification. A failed write is not repeated: the message stays in the inbox.
func (c *Channel) push(ctx context.Context, item owner.Item) {
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn == nil {
		return
	}
	content, err := json.Marshal(untrusted(textOfJSON(item.Payload), authorOf(item), c.tools.keyOf(ctx, item, map[wire.AgentID]string{}), 1000))
	if err != nil {
		return
	}
	params, err := json.Marshal(map[string]any{"content": string(content), "meta": map[string]string{
		"item": item.ID, "conversation": string(item.Conversation), "from": name(authorOf(item)),
	}})
	if err != nil {
		return
	}
	_ = conn.Write(ctx, &jsonrpc.Request{Method: "notifications/claude/channel", Params: params})
}
