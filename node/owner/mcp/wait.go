package mcp

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/untrusted"
	"github.com/agentmesh/agentmesh/node/waiting"
)

type waitArgs struct {
	Seconds *int     `json:"seconds,omitempty" jsonschema:"0 to 25; default 25"`
	Topics  []string `json:"topics,omitempty" jsonschema:"inbox (default), approvals, conversations, outbox"`
}

type waitResult struct {
	Changed []change    `json:"changed,omitempty"`
	Items   []inboxItem `json:"items"`
}

type change struct {
	Topic        string `json:"topic"`
	ID           string `json:"id,omitempty"`
	State        string `json:"state,omitempty"`
	Conversation string `json:"conversation,omitempty"`
}

var waitTopics = []string{string(owner.TopicInbox), string(owner.TopicApprovals), string(owner.TopicConversations), string(owner.TopicOutbox)}

// retryWait is how long mesh_wait waits after a broken stream of events.
const retryWait = time.Second

// wait waits for an event of one of the topics. If the inbox is one of them, only new items that the caller has not got
// yet end the wait.
func (t *tools) wait(ctx context.Context, req *sdk.CallToolRequest, in waitArgs) (*sdk.CallToolResult, any, error) {
	topics, seconds := in.Topics, maxWaitSeconds
	if in.Seconds != nil {
		seconds = min(max(*in.Seconds, 0), maxWaitSeconds)
	}
	if len(topics) == 0 {
		topics = []string{string(owner.TopicInbox)}
	}
	for _, topic := range topics {
		if !slices.Contains(waitTopics, topic) {
			return nil, nil, errors.New("topics are " + strings.Join(waitTopics, ", "))
		}
	}
	out, caller, ofInbox := waitResult{Items: []inboxItem{}}, callerOf(req), slices.Contains(topics, string(owner.TopicInbox))
	look := func() (err error) {
		if ofInbox {
			out.Items, err = t.news.take(ctx, t, caller)
		}
		return err
	}
	if err := look(); err != nil || len(out.Items) > 0 || seconds == 0 {
		return nil, out, err
	}
	limited, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
	defer cancel()
	for {
		for event, err := range owner.ReadEvents(limited, t.api, topics...) {
			if err != nil {
				break
			}
			switch event.Topic {
			case "", owner.TopicReset, owner.TopicInbox: // earlier events may be lost
				err = look()
			default:
				id := event.ID
				if event.Topic == owner.TopicConversations {
					id = t.handles.name(untrusted.Text(id), event.Peer)
				}
				out.Changed = []change{{string(event.Topic), id, safeID(event.State), t.handles.name(untrusted.Text(event.Conversation), event.Peer)}}
				err = look()
			}
			if err != nil || len(out.Items) > 0 || out.Changed != nil {
				return nil, out, err
			}
		}
		if !waiting.Pause(limited, retryWait) {
			return nil, out, ctx.Err()
		}
	}
}

// callerOf tells apart the callers of a server: over HTTP by token and program, otherwise there is only one.
func callerOf(req *sdk.CallToolRequest) (caller [sha256.Size]byte) {
	if req == nil || req.Extra == nil || req.Extra.Header == nil {
		return caller
	}
	h := req.Extra.Header
	return sha256.Sum256([]byte(h.Get("Authorization") + "\n" + h.Get("User-Agent")))
}

// maxCallers is how many callers a server tells apart. One more makes it forget the others, who then get new items again.
const maxCallers = 64

// news remembers which new items each caller got from mesh_wait. The zero value is ready to use.
type news struct {
	mu  sync.Mutex
	got map[[sha256.Size]byte]map[string]bool // ids of items by caller; forgotten when the item is no longer new
}

// take returns the oldest new items that the caller has not got yet, at most pageSize.
func (n *news) take(ctx context.Context, t *tools, caller [sha256.Size]byte) ([]inboxItem, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fresh, still, got := []inboxItem{}, make(map[string]bool), n.got[caller]
	query := url.Values{"state": {string(owner.ItemNew)}, "limit": {strconv.Itoa(batchSize)}}
	for more := true; more; {
		list, err := owner.Fetch(ctx, t.api, owner.ListInbox.Call().WithQuery(query))
		if err != nil {
			return fresh, err
		}
		for _, item := range list.Items {
			switch {
			case got[item.ID]:
				still[item.ID] = true
			case len(fresh) < pageSize:
				fresh = append(fresh, t.viewItem(ctx, item))
			}
		}
		query.Set("after", list.Next)
		more = list.Next != "" && len(fresh) < pageSize && len(still) < maxUnread
		if list.Next != "" && !more { // the rest was not read, so nothing is forgotten
			for id := range got {
				still[id] = true
			}
		}
	}
	fresh = fresh[:fit(fresh)]
	for _, item := range fresh {
		still[item.Item] = true
	}
	if n.got == nil || len(n.got) >= maxCallers && got == nil {
		n.got = make(map[[sha256.Size]byte]map[string]bool)
	}
	n.got[caller] = still
	return fresh, nil
}
