package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Channel pushes new messages of listed peers into the client's session, as Claude Code channels do. A client that does
// not know channels ignores them. A Channel serves one connection; make it with [NewChannel].
type Channel struct {
	tools   *tools
	peers   []string
	aliased []string // the ids of the peers that are named by an alias
	inner   sdk.Transport
	conn    sdk.Connection
	known   map[string]bool // ids of new items of listed peers that need no push any more; nil before the first list
}

// NewChannel returns a channel for the messages of these peers, each named by id, alias or address. Messages of others
// are not pushed.
func NewChannel(cfg Config, peers []string) *Channel {
	return &Channel{tools: &tools{api: cfg.Client, handles: sharedHandles}, peers: peers}
}

// Connect implements [sdk.Transport]. It starts the pushes, which end with ctx.
func (c *Channel) Connect(ctx context.Context) (sdk.Connection, error) {
	_ = c.pushNew(ctx) // only notes the items that exist already; after an error, the first stream makes up for it
	var err error
	if c.conn, err = c.inner.Connect(ctx); err == nil {
		go c.run(ctx)
	}
	return c.conn, err
}

// retryFeed is how long a channel waits after a failed request, or before it opens a broken stream again.
const retryFeed = 5 * time.Second

// batchSize is the number of items that a channel reads at once. An item may have 256 KiB, and an answer 64 MiB.
const batchSize = 20

// maxUnread is how many new messages of listed peers a channel remembers. When it remembers so many, it pushes no
// others until the agent has read some.
const maxUnread = 10_000

// run pushes messages of listed peers until ctx ends, each when its item becomes new: when it arrives, when the owner
// releases it, or when a hook leaves it to the agent.
func (c *Channel) run(ctx context.Context) {
	for ctx.Err() == nil {
		for event, err := range owner.ReadEvents(ctx, c.tools.api, string(owner.TopicInbox)) {
			if err == nil {
				err = c.follow(ctx, event)
			}
			if err != nil {
				break
			}
		}
		_ = c.pushNew(ctx) // in case no event stream is free; after an error, the next stream makes up for it
		waiting.Pause(ctx, retryFeed)
	}
}

// follow handles an event of the inbox, or the beginning of a stream. After an error, the next stream makes up for it.
func (c *Channel) follow(ctx context.Context, event owner.Event) error {
	switch {
	case event.Topic != owner.TopicInbox: // a new stream or a reset: earlier events may be lost
		return c.pushNew(ctx)
	case event.State != string(owner.ItemNew):
		delete(c.known, event.ID)
	case !c.known[event.ID]:
		item, err := owner.Fetch(ctx, c.tools.api, owner.ShowItem.Call(event.ID))
		refusal, _ := errors.AsType[*wire.Error](err)
		switch {
		case err == nil && item.State == owner.ItemNew:
			c.push(ctx, item)
		case err != nil && (refusal == nil || refusal.Status != http.StatusNotFound): // otherwise the item was deleted
			return err
		}
	}
	return nil
}

// pushNew pushes the new items that the channel does not know yet. The first time, it pushes nothing.
func (c *Channel) pushNew(ctx context.Context) error {
	if err := c.resolveAliases(ctx); err != nil {
		return err
	}
	found := make(map[string]bool)
	query := url.Values{"state": {string(owner.ItemNew)}, "limit": {strconv.Itoa(batchSize)}}
	for {
		list, err := owner.Fetch(ctx, c.tools.api, owner.ListInbox.Call().WithQuery(query))
		if err != nil {
			return err
		}
		for _, item := range list.Items {
			if !c.isListed(item) || len(found) == maxUnread {
				continue
			}
			found[item.ID] = true
			if c.known != nil {
				c.push(ctx, item)
			}
		}
		if list.Next == "" || len(found) == maxUnread {
			c.known = found
			return nil
		}
		query.Set("after", list.Next)
	}
}

// resolveAliases looks up the peers that are named by an alias. It reads the list of peers only if there is such a name,
// because the list may be long.
func (c *Channel) resolveAliases(ctx context.Context) error {
	isAlias := func(name string) bool { return !wire.AgentID(name).Valid() && !strings.Contains(name, ":") }
	if !slices.ContainsFunc(c.peers, isAlias) {
		return nil
	}
	list, err := owner.Fetch(ctx, c.tools.api, owner.ListPeers.Call())
	if err != nil {
		return err
	}
	c.aliased = nil
	for _, p := range list.Items {
		if slices.ContainsFunc(p.Aliases, func(alias string) bool { return slices.Contains(c.peers, alias) }) {
			c.aliased = append(c.aliased, p.ID)
		}
	}
	return nil
}

// isListed reports whether the owner named the sender of an item: by its id, its alias or, if it is a foreign peer, its
// address.
func (c *Channel) isListed(item owner.Item) bool {
	return slices.ContainsFunc([]string{string(item.Peer), item.Address, shortAddress(item.Address)}, func(name string) bool {
		return name != "" && (slices.Contains(c.peers, name) || slices.Contains(c.aliased, name))
	})
}

// push writes a notification about a new item of a listed peer, unless the channel knows the item. A failed write is
// not repeated: the message stays in the inbox.
func (c *Channel) push(ctx context.Context, item owner.Item) {
	if c.known[item.ID] || !c.isListed(item) || len(c.known) >= maxUnread {
		return
	}
	c.known[item.ID] = true
	content, err := json.Marshal(c.tools.handles.mark(textOfItem(item), authorOf(item), c.tools.keyOf(ctx, item), 1000))
	if err != nil {
		return
	}
	params, err := json.Marshal(map[string]any{"content": string(content), "meta": map[string]string{
		"item": item.ID, "conversation": c.tools.handles.name(untrusted.Text(item.Conversation), string(item.Peer)), "from": c.tools.handles.partner(authorOf(item)),
	}})
	if err != nil {
		return
	}
	_ = c.conn.Write(ctx, &jsonrpc.Request{Method: "notifications/claude/channel", Params: params})
}
