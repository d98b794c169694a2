package relay

import (
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/httpapi"
)

const (
	statsFor = 2 * time.Second // lifetime of an answer, so that many requests cost as much as one
	maxNamed = 1000            // agents in each list of the statistics; the counts have no bound
)

// statistics holds the frame counts and the last answer of GET /stats.
type statistics struct {
	began time.Time

	counting sync.Mutex
	recent   rate.Window // frames

	mu   sync.Mutex
	made time.Time // when body was made
	body []byte
}

func (s *statistics) add(now time.Time) {
	s.counting.Lock()
	defer s.counting.Unlock()
	s.recent.Add(now)
}

func (s *statistics) perMinute(now time.Time) int {
	s.counting.Lock()
	defer s.counting.Unlock()
	return s.recent.Count(now)
}

// statsBody is the document of GET /stats, with the members of the public relay and of its documentation (AR-32).
type statsBody struct {
	Relay struct {
		Connected     int      `json:"connected"`
		Agents        []string `json:"agents"`
		Subscriptions int      `json:"subscriptions"`
	} `json:"relay"`
	Registry struct {
		Registered int      `json:"registered"`
		Agents     []string `json:"agents"`
	} `json:"registry"`
	Registered int   `json:"registered_agents"`
	Active     int   `json:"active_connections"`
	PerMinute  int   `json:"messages_per_minute"`
	Uptime     int64 `json:"uptime"`
}

func (r *Relay) getStats(c echo.Context) error {
	return httpapi.Raw(c, http.StatusOK, r.stats(time.Now()))
}

// stats returns the statistics, which are at most statsFor old.
func (r *Relay) stats(now time.Time) []byte {
	s := &r.statistics
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.body == nil || now.Sub(s.made) >= statsFor {
		s.made = now
		s.body, _ = json.Marshal(r.collectStats(now)) // numbers and strings always encode
	}
	return s.body
}

func (r *Relay) collectStats(now time.Time) statsBody {
	var out statsBody
	out.Relay.Agents, out.Registry.Agents = []string{}, []string{}
	out.Registry.Registered = r.agents.Count()
	out.Registered = out.Registry.Registered
	for _, s := range r.conns.all() {
		out.Relay.Connected++
		out.Relay.Agents = append(out.Relay.Agents, s.id)
		s.mu.Lock()
		out.Relay.Subscriptions += len(s.subs)
		s.mu.Unlock()
	}
	out.Active = out.Relay.Connected
	out.PerMinute, out.Uptime = r.statistics.perMinute(now), int64(now.Sub(r.statistics.began).Seconds())
	if r.cfg.Stats != StatsPublic {
		out.Relay.Agents = []string{}
		return out
	}
	for _, a := range r.agents.List() {
		out.Registry.Agents = append(out.Registry.Agents, a.ID)
	}
	slices.Sort(out.Registry.Agents)
	slices.Sort(out.Relay.Agents)
	out.Relay.Agents = out.Relay.Agents[:min(len(out.Relay.Agents), maxNamed)]
	out.Registry.Agents = out.Registry.Agents[:min(len(out.Registry.Agents), maxNamed)]
	return out
}

// Health is the relay's part of /health (AR-33).
type Health struct {
	Status      string `json:"status"`
	Uptime      int64  `json:"uptime"` // seconds
	Connections int    `json:"connections"`
}

// Health returns the state of the relay for /health.
func (r *Relay) Health() Health {
	return Health{"ok", int64(time.Since(r.statistics.began).Seconds()), r.conns.count()}
}
