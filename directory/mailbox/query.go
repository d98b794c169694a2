package mailbox

import (
	"cmp"
	"net/url"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/node/wire"
)

// Limits of a poll (AM-65).
const (
	MaxWait      = 30 * time.Second
	MaxPage      = 100
	defaultPage  = 50
	maxPageBytes = 1 << 20 // of messages on a page, whatever its limit
)

// Query selects mail of a credential.
type Query struct {
	Box          wire.AgentID        // "" for all agents of the credential
	Conversation wire.ConversationID // "" for all
	After        string              // relay id: only later messages
	Limit        int                 // 0 is 50; above 100 is 100
	Wait         time.Duration       // how long to wait for mail; above MaxWait is MaxWait
	Calls        bool                // return A2A calls too
}

// ParseQuery reads the parameters of a poll. It returns [wire.ErrQuery] if limit or wait is not valid.
func ParseQuery(params url.Values) (Query, error) {
	q := Query{
		Box: wire.AgentID(params.Get("agent_id")), Conversation: wire.ConversationID(params.Get("conversation")), After: params.Get("after"),
		Calls: params.Get("a2a") == "1",
	}
	if text := params.Get("limit"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || n < 1 {
			return q, wire.ErrQuery.At("limit must be 1 or more")
		}
		q.Limit = int(n)
	}
	if text := params.Get("wait"); text != "" {
		n, err := strconv.ParseUint(text, 10, 31)
		if err != nil || time.Duration(n)*time.Second > MaxWait {
			return q, wire.ErrQuery.At("wait must be 0 to 30 seconds")
		}
		q.Wait = time.Duration(n) * time.Second
	}
	return q, nil
}

// Bounded returns q with its limit and its wait within their bounds.
func (q Query) Bounded() Query {
	q.Limit, q.Wait = min(cmp.Or(q.Limit, defaultPage), MaxPage), min(q.Wait, MaxWait)
	return q
}
