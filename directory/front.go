package directory

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
)

// countAge is how long the number of cards may be old: counting costs as much as there are cards.
const countAge = 10 * time.Second

type cachedCount struct {
	mu sync.Mutex
	n  int
	at time.Time
}

// agents returns the number of live cards, at most countAge old.
func (r *Registry) agents(ctx context.Context, now time.Time) (int, error) {
	r.count.mu.Lock()
	defer r.count.mu.Unlock()
	if age := now.Sub(r.count.at); !r.count.at.IsZero() && age >= 0 && age < countAge {
		return r.count.n, nil
	}
	n, err := r.cards.Count(ctx, now)
	if err != nil {
		return 0, err
	}
	r.count.n, r.count.at = n, now
	return n, nil
}

// Health is the directory's part of the health document: whether it takes cards, and how many there are.
func (r *Registry) Health(ctx context.Context) (any, error) {
	if err := r.cfg.Store.Ping(ctx); err != nil {
		return nil, err
	}
	n, err := r.agents(ctx, clock())
	if err != nil {
		return nil, err
	}
	return struct {
		Status string `json:"status"`
		Agents int    `json:"agents"`
	}{"ok", n}, nil
}

// RelayHealth is the relay's part of the health document: whether it takes mail. A full relay is told, and no error: who fills mailboxes must not
// take the whole process out of service.
func (r *Registry) RelayHealth(ctx context.Context) (any, error) {
	if err := r.cfg.Store.Ping(ctx); err != nil {
		return nil, err
	}
	_, full, err := r.waiting(ctx)
	if err != nil {
		return nil, err
	}
	return struct {
		Status    string `json:"status"`
		Connected int    `json:"connected"` // agents' owners that wait for mail now
	}{map[bool]string{false: "ok", true: "full"}[full], r.desks.connected()}, nil
}

// waiting is what waits in all mailboxes.
func (r *Registry) waiting(ctx context.Context) (all load, full bool, err error) {
	now := clock()
	room, err := r.room(ctx, now)
	if err != nil {
		return load{}, false, err
	}
	all, full = room.waiting(now)
	return all, full, nil
}

// front answers / with a page for people and {name, version, agents} for programs.
func (r *Registry) front(c echo.Context) error {
	n, err := r.agents(c.Request().Context(), clock())
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Add("Vary", "Accept")
	h.Set("Cache-Control", listAge)
	if wantsPage(c.Request()) {
		return r.showSearch(c, n)
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Agents  int    `json:"agents"`
	}{r.cfg.Name, r.cfg.Version, n})
}

// wantsPage says whether the client is a browser: it names HTML, and before JSON where it names both.
func wantsPage(req *http.Request) bool {
	accept := req.Header.Get("Accept")
	page, data := strings.Index(accept, "text/html"), strings.Index(accept, "application/json")
	return page >= 0 && (data < 0 || page < data)
}
