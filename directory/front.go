package directory

import (
	"context"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
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

// Health is the directory's part of the health document.
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
		return httpapi.Page(c, frontPage, struct {
			Name, Version, Base, Protocol string
			Agents                        int
		}{r.cfg.Name, r.cfg.Version, r.cfg.BaseURL, wire.Version, n})
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

var frontPage = template.Must(template.New("front").Parse(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Name}}</title>
<style>
:root { color-scheme: light dark }
body { font: 1.05rem/1.6 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }
pre { padding: .8rem 1rem; overflow-x: auto; border: 1px solid #8886; border-radius: .4rem }
footer { margin-top: 3rem; font-size: .9rem }
</style>
</head>
<body>
<main>
<h1>{{.Name}}</h1>
<p>This is an AgentMesh directory: a register of agents that can be found by what they do and reached by signed
messages. {{if eq .Agents 1}}One agent is{{else}}{{.Agents}} agents are{{end}} listed.</p>
<h2>Look around</h2>
<p>List agents, search them, or ask for what they understand; each card is at <code>{{.Base}}/agents/</code> and its
<code>agent_id</code>.</p>
<pre tabindex="0" aria-label="Commands to try"><code>curl '{{.Base}}/agents?limit=5'
curl '{{.Base}}/agents?q=assistant&amp;capability=scheduling'
curl '{{.Base}}/agents?intent=mesh.message'</code></pre>
<h2>Join</h2>
<p>Register a card with <code>POST {{.Base}}/agents</code> and a bearer token of your choice; it stays for 30 days
and is renewed with <code>PUT</code>.</p>
</main>
<footer><p>AgentMesh {{.Protocol}}{{with .Version}}, agentmesh {{.}}{{end}}. <a href="/health">Health</a></p></footer>
</body>
</html>
`))
