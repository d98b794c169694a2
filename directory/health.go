package directory

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// countAge is how old the cached number of cards may be. Counting takes time proportional to the number of cards.
const countAge = 10 * time.Second

type cachedCount struct {
	mu sync.Mutex
	n  int
	at time.Time
}

// countAgents returns the number of live cards, as counted at most countAge ago.
func (r *Registry) countAgents(ctx context.Context, now time.Time) (int, error) {
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

// Health returns the directory's part of the health document. It fails if the store accepts no writes.
func (r *Registry) Health(ctx context.Context) (any, error) {
	if err := r.cfg.Store.Ping(ctx); err != nil {
		return nil, err
	}
	n, err := r.countAgents(ctx, wire.Now())
	if err != nil {
		return nil, err
	}
	return struct {
		Status string `json:"status"`
		Agents int    `json:"agents"`
	}{"ok", n}, nil
}

// getFront answers with the search page, or with JSON for a client that is not a browser.
func (r *Registry) getFront(c echo.Context) error {
	n, err := r.countAgents(c.Request().Context(), wire.Now())
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h.Add("Vary", "Accept")
	h.Set("Cache-Control", listAge)
	if httpapi.WantsPage(c.Request()) {
		return r.showSearch(c, n)
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Agents  int    `json:"agents"`
	}{r.cfg.Site.Name, r.cfg.Version, n})
}
