package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
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

	known map[string]bool // ids of new items that need no push any more; only pushNew and run use it

	mu   sync.Mutex
	conn sdk.Connection // nil until the client connects
}

// NewChannel returns a channel for messages of peers, named by id or address. Messages of others are not pushed.
func NewChannel(cfg Config, peers []string) *Channel {
	return &Channel{tools: &tools{api: cfg.Client}, peers: peers, known: make(map[string]bool)}
}

// Connect implements [sdk.Transport] and keeps the connection for pushes.
func (c *Channel) Connect(ctx context.Context) (sdk.Connection, error) {
	conn, err := c.inner.Connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	return conn, err
}

// retryFeed is how long a channel waits after a failed request, or before it opens a broken stream again.
const retryFeed = 5 * time.Second

// batchSize is the number of items that a channel reads at once. An item may have 256 KiB, and an answer 64 MiB.
const batchSize = 100

// run pushes messages of listed peers until ctx ends, each when its item becomes new: when it comes, when the owner
// releases it, or when a hook leaves it to the agent.
func (c *Channel) run(ctx context.Context) {
	for ctx.Err() == nil {
		for event, err := range c.tools.events(ctx, []string{string(owner.TopicInbox)}) {
			if err == nil {
				err = c.follow(ctx, event)
			}
			if err != nil {
				break
			}
		}
		_ = c.pushNew(ctx) // all event streams may be taken; an error comes back with the next stream
		select {
		case <-ctx.Done():
		case <-time.After(retryFeed):
		}
	}
}

// follow handles an event of the inbox, or the beginning of a stream. After an error, the next stream makes up for it.
func (c *Channel) follow(ctx context.Context, event owner.Event) error {
	switch {
	case event.Topic != owner.TopicInbox: // earlier events may be lost
		return c.pushNew(ctx)
	case event.State != string(owner.ItemNew):
		delete(c.known, event.ID)
	case !c.known[event.ID]:
		item, err := owner.Fetch(ctx, c.tools.api, owner.ShowItem.Call(event.ID))
		refusal, _ := errors.AsType[*wire.Error](err)
		switch {
		case err == nil && item.State == owner.ItemNew:
			c.push(ctx, item)
		case err != nil && (refusal == nil || refusal.Status != http.StatusNotFound):
			return err
		}
	}
	return nil
}

// pushNew pushes all new items that the channel does not know yet.
func (c *Channel) pushNew(ctx context.Context) error {
	found := make(map[string]bool)
	query := url.Values{"state": {string(owner.ItemNew)}, "limit": {strconv.Itoa(batchSize)}}
	for more := true; more; {
		list, err := owner.Fetch(ctx, c.tools.api, owner.ListInbox.Call().Ask(query))
		if err != nil {
			return err
		}
		for _, item := range list.Items {
			found[item.ID] = true
			if !c.known[item.ID] {
				c.push(ctx, item)
			}
		}
		query.Set("after", list.Next)
		more = list.Next != ""
	}
	c.known = found
	return nil
}

func (c *Channel) isListed(item owner.Item) bool {
	return slices.Contains(c.peers, string(item.Peer)) || item.Address != "" && slices.Contains(c.peers, item.Address)
}

// push writes a notification about a new item of a listed peer, unless no client is connected. A failed write is not
// repeated: the message stays in the inbox.
func (c *Channel) push(ctx context.Context, item owner.Item) {
	c.known[item.ID] = true
	c.mu.Lock()
	conn := c.conn
	c.mu.Unlock()
	if conn == nil || !c.isListed(item) {
		return
	}
	content, err := json.Marshal(untrusted(textOfJSON(item.Payload), authorOf(item), c.tools.keyOf(ctx, item), 1000))
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
