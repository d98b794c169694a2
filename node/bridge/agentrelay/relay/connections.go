package relay

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/websocket"
)

const (
	maxConnections = 20_000
	stopPatience   = 5 * time.Second
)

// connections holds the open connections of all agents. An agent's newest connection gets its frames.
type connections struct {
	perMinute, perHour int // frames of one agent

	group websocket.Group

	mu         sync.Mutex
	newest     map[string]*session      // by agent
	frameRates map[string]*rate.Windows // by agent
}

func newConnections(cfg Config) *connections {
	return &connections{
		perMinute: cmp.Or(cfg.PerMinute, defaultPerMinute), perHour: cmp.Or(cfg.PerHour, defaultPerHour),
		newest: make(map[string]*session), frameRates: make(map[string]*rate.Windows),
	}
}

// enter makes s the connection of its agent and closes the agent's previous connection with 1008 (AR-13). It returns
// how to close s if the relay refuses it. Under the lock, it queues the welcome, so that no frame precedes it (AR-11),
// and checks the token again, because the owner may have changed or revoked it since the handshake.
func (c *connections) enter(s *session, agents *registry, welcome []byte) *websocket.CloseError {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !s.isAdmitted(agents) {
		return &websocket.CloseError{Code: frame.CloseBadToken, Reason: "the token is no longer good"}
	}
	if refusal := c.group.Enter(s.conn, maxConnections); refusal != nil {
		return refusal
	}
	if old := c.newest[s.id]; old != nil {
		old.conn.Close(frame.ClosePolicy, "another connection of this agent took over")
	}
	if c.frameRates[s.id] == nil {
		c.frameRates[s.id] = rate.NewWindows(c.perMinute, c.perHour)
	}
	s.frameRate = c.frameRates[s.id]
	c.newest[s.id] = s
	_ = s.conn.Send(websocket.Text(welcome))
	return nil
}

// isAdmitted reports whether the token of the agent is still the one that it connected with.
func (s *session) isAdmitted(agents *registry) bool {
	a := agents.Get(s.id)
	return a != nil && a.Key == s.key
}

// leave removes a connection, but not a newer one of the same agent (AR-13).
func (c *connections) leave(s *session) {
	c.mu.Lock()
	if c.newest[s.id] == s {
		delete(c.newest, s.id)
	}
	c.mu.Unlock()
	c.group.Leave(s.conn)
}

// disconnect closes the newest connection of an agent.
func (c *connections) disconnect(id string, code int, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.newest[id]; s != nil {
		s.conn.Close(code, reason)
		delete(c.newest, id)
	}
}

func (c *connections) isConnected(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest[id] != nil
}

// all returns the newest connection of each agent.
func (c *connections) all() []*session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.AppendSeq(make([]*session, 0, len(c.newest)), maps.Values(c.newest))
}

// ofAgents returns the newest connections of ids, each once. It skips ids that are not connected (AR-20).
func (c *connections) ofAgents(ids []string) []*session {
	out := make([]*session, 0, len(ids))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, id := range ids {
		if s := c.newest[id]; s != nil && !slices.Contains(ids[:i], id) {
			out = append(out, s)
		}
	}
	return out
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.newest)
}

// sweep drops the frame rate of each agent that is not connected and sent nothing in the last hour.
func (c *connections) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.frameRates, func(id string, r *rate.Windows) bool { return c.newest[id] == nil && r.Count(now) == 0 })
}
