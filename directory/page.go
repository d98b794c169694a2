package directory

import (
	"embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

//go:embed page
var pageFiles embed.FS

// pageAgents is how many agents a page shows.
const pageAgents = 20

// face is the directory for people: search, a page for each agent, and how to register. It works without JavaScript,
// and what it shows is what the API answers.
type face struct {
	pages                  *httpapi.PublicPages
	search, agent, missing *template.Template
}

func newFace(e *echo.Echo) face {
	p := httpapi.NewPublicPages(e)
	return face{
		pages:   p,
		search:  p.Template(pageFiles, "page/shell.html", "page/search.html"),
		agent:   p.Template(pageFiles, "page/shell.html", "page/agent.html"),
		missing: p.Template(pageFiles, "page/shell.html", "page/missing.html"),
	}
}

// site is what every page shows.
type site struct {
	Name, Version, Base, Protocol string
}

func (r *Registry) site() site { return site{r.cfg.Name, r.cfg.Version, r.cfg.BaseURL, wire.Version} }

// shownProofs is a verification with whether the endpoint answered when it was last asked.
type shownProofs struct {
	wire.Verification
	Answers bool
}

type shownTag struct{ Name, URL string }

// shownAgent is a card in a list.
type shownAgent struct {
	URL, Name, Description, Host string
	Capabilities                 []shownTag
	Proofs                       shownProofs
}

type searchForm struct {
	Text, Capability, Intent, Owner, Location string
	Key, Endpoint, Alive                      bool
	Open, Any, Paged                          bool
}

type searchPage struct {
	Title                 string
	Site                  site
	Mode                  Mode
	Mirror                bool
	Count                 int
	Form                  searchForm
	Wrong                 string
	Agents                []shownAgent
	Next, First, Curl     string
	Capabilities, Intents []Tally
}

// showSearch answers / for people.
func (r *Registry) showSearch(c echo.Context, count int) error {
	ctx, params := c.Request().Context(), c.QueryParams()
	p := searchPage{Title: "Find an agent", Site: r.site(), Mode: r.cfg.Mode, Mirror: r.cfg.ReadOnly, Count: count, Form: formOf(params)}
	kept := url.Values{}
	for name, values := range params {
		if values = slices.DeleteFunc(slices.Clone(values), func(s string) bool { return s == "" }); name != "cursor" && len(values) > 0 && slices.Contains(queryNames, name) {
			kept[name] = values
		}
	}
	p.Curl = "curl '" + strings.ReplaceAll(r.cfg.BaseURL+"/agents"+query(kept), "'", "%27") + "'"
	p.First = "/" + query(kept)
	status := http.StatusOK
	q, err := parseQuery(kept.Encode())
	if err == nil {
		q.Limit, q.Cursor = pageAgents, params.Get("cursor")
		err = r.fillSearch(c, &p, q, kept)
	}
	if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Status == http.StatusBadRequest {
		p.Wrong, status = refused.Message, http.StatusBadRequest
	} else if err != nil {
		return err
	}
	if caps, err := r.Capabilities(ctx, "", "", maxLimit); err == nil {
		p.Capabilities = suggested(caps.Capabilities)
	}
	if intents, err := r.Intents(ctx, "", "", maxLimit); err == nil {
		p.Intents = suggested(intents.Intents)
	}
	return r.face.pages.Render(c, r.face.search, status, p)
}

// queryNames are the parameters that a page hands on to the next one.
var queryNames = []string{"q", "capability", "capability_prefix", "intent", "owner", "framework", "location", "verified"}

func query(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

func formOf(params url.Values) searchForm {
	f := searchForm{
		Text: plain(strings.Join(params["q"], " ")), Capability: plain(params.Get("capability")), Intent: plain(params.Get("intent")),
		Owner: plain(params.Get("owner")), Location: plain(params.Get("location")), Paged: params.Get("cursor") != "",
		Key:      slices.Contains(params["verified"], string(KeyProven)),
		Endpoint: slices.Contains(params["verified"], string(EndpointProven)),
		Alive:    slices.Contains(params["verified"], string(Alive)),
	}
	f.Open = f.Capability+f.Intent+f.Owner+f.Location != "" || f.Key || f.Endpoint || f.Alive
	f.Any = f.Open || f.Text != ""
	return f
}

// plain drops what acts without being seen, where a page cannot show it by its name: in a field and in a title.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// suggested are names that a field may propose.
func suggested(list []Tally) []Tally {
	return slices.DeleteFunc(list, func(t Tally) bool { return plain(t.Name) != t.Name })
}

func (r *Registry) fillSearch(c echo.Context, p *searchPage, q Query, kept url.Values) error {
	now := clock()
	found, err := r.page(c.Request().Context(), q, now)
	if err != nil {
		return err
	}
	for _, card := range found.cards {
		shown, _, err := r.shown(card, now)
		if err != nil {
			return err
		}
		p.Agents = append(p.Agents, shown)
	}
	if found.cursor != "" {
		kept.Set("cursor", found.cursor)
		p.Next = "/" + query(kept)
	}
	return nil
}

func (r *Registry) shown(c store.Card, now time.Time) (shownAgent, wire.Card, error) {
	card, err := r.stored(c)
	if err != nil {
		return shownAgent{}, wire.Card{}, err
	}
	m, err := parseMeta(c)
	if err != nil {
		return shownAgent{}, wire.Card{}, err
	}
	a := shownAgent{
		URL: "/agents/" + url.PathEscape(c.ID), Name: card.Name, Description: card.Description, Host: endpointHost(card),
		Proofs: shownProofs{m.verification(now), m.Misses == 0},
	}
	for _, tag := range card.Capabilities {
		a.Capabilities = append(a.Capabilities, shownTag{tag, "/" + query(url.Values{"capability": {tag}})})
	}
	return a, card, nil
}

type agentPage struct {
	Title                        string
	Site                         site
	Agent                        shownAgent
	ID                           wire.AgentID
	Owner, Endpoint, Key, Access string
	CardURL                      string
	Derived                      bool
	Intents                      []shownTag
	Registered, Expires          time.Time
	QR                           *qrCode
}

// showAgent answers /agents/{id}: the page of one agent.
func (r *Registry) showAgent(c echo.Context) error {
	now := clock()
	c.Response().Header().Set("Cache-Control", listAge)
	held, err := r.get(c.Request().Context(), pathID(c), now)
	if errors.Is(err, wire.ErrNoAgent) {
		return r.face.pages.Render(c, r.face.missing, http.StatusNotFound, searchPage{Title: "No such agent", Site: r.site()})
	}
	if err != nil {
		return err
	}
	shown, card, err := r.shown(held, now)
	if err != nil {
		return err
	}
	p := agentPage{
		Title: plain(card.Name), Site: r.site(), Agent: shown, ID: card.ID, Owner: card.OwnerName, Endpoint: card.Endpoint, Access: card.AccessMode,
		CardURL: r.cfg.BaseURL + "/agents/" + url.PathEscape(held.ID), Derived: shown.Proofs.ID == "derived",
		Registered: held.Registered, Expires: held.Expires, QR: newQR(card.Endpoint),
	}
	if key, err := r.keys.Parse(card.PublicKey); err == nil {
		p.Key = fingerprint(key)
	}
	for _, intent := range card.Intents {
		p.Intents = append(p.Intents, shownTag{string(intent), "/" + query(url.Values{"intent": {string(intent)}})})
	}
	return r.face.pages.Render(c, r.face.agent, http.StatusOK, p)
}
