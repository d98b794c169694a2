package directory

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/directory/site"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const pageAgents = 50 // agents, or changes, on a page

// templates are the pages for people: the search, a page per agent, and the page for an unknown agent.
type templates struct {
	pages                  *httpapi.PublicPages
	site                   site.Shown
	search, agent, missing *httpapi.PageTemplate
}

func newTemplates(e *echo.Echo, r *Registry, guard func(echo.HandlerFunc) echo.HandlerFunc) templates {
	p := httpapi.NewPublicPages(e)
	return templates{
		pages:   p,
		search:  p.Template(site.Files, nil, "page/shell.html", "page/search.html"),
		agent:   p.Template(site.Files, nil, "page/shell.html", "page/agent.html"),
		missing: p.Template(site.Files, nil, "page/shell.html", "page/missing.html"),
		site: site.Mount(e, site.Config{
			Shown: site.Shown{
				Operator: r.cfg.Site, Version: r.cfg.Version, Base: r.cfg.BaseURL, Protocol: wire.Version, Days: int(r.cfg.Lifetime.Hours() / 24),
				Mode: string(r.cfg.Mode), Mirror: r.cfg.ReadOnly, Join: r.JoinLink(""),
			},
			Pages: p, Guard: guard,
			Changes: func(ctx context.Context) ([]site.Change, error) { return LatestChanges(ctx, r, pageAgents) },
			Report: func(ctx context.Context, id wire.AgentID, kind, text string, from netip.Addr) error {
				return r.Report(ctx, id, ReportRequest{Kind: kind, Text: text}, from)
			},
		}),
	}
}

// shownProofs is what the directory verified, as the pages show it.
type shownProofs struct {
	wire.Verification
	Answers bool // the last probe, if any, did not fail
}

type shownTag struct{ Name, URL string }

type shownAgent struct {
	ID                           wire.AgentID
	URL, Name, Description, Host string
	Capabilities                 []shownTag
	Proofs                       shownProofs
}

type searchForm struct {
	Text, Capability, Intent, Owner, Location string
	Key, Endpoint, Alive                      bool
	Open                                      bool // a filter other than the text is set, so the page shows the filters
	Any                                       bool // the text or a filter is set
	Paged                                     bool // this is not the first page
}

type searchPage struct {
	Title                 string
	Site                  site.Shown
	Count                 int
	Form                  searchForm
	Wrong                 string // why the search was refused; "" if it was not
	Agents                []shownAgent
	Next, First, Curl     string // URLs of the next and the first page, and the command for the same search
	Capabilities, Intents []NameCount
}

func (r *Registry) showSearch(c echo.Context, count int) error {
	ctx, params := c.Request().Context(), c.QueryParams()
	p := searchPage{Title: "Find an agent", Site: r.templates.site, Count: count, Form: newSearchForm(params)}
	kept := url.Values{}
	for _, name := range queryNames {
		if values := slices.DeleteFunc(slices.Clone(params[name]), func(s string) bool { return s == "" }); len(values) > 0 {
			kept[name] = values
		}
	}
	p.Curl = "curl '" + strings.ReplaceAll(r.cfg.BaseURL+"/agents"+encodeQuery(kept), "'", "%27") + "'"
	p.First = "/" + encodeQuery(kept)
	status := http.StatusOK
	now := wire.Now()
	q, err := ParseQuery(kept.Encode())
	var found page
	if err == nil {
		q.Limit, q.Cursor = pageAgents, params.Get("cursor")
		found, err = r.search(ctx, q, now)
	}
	if refusal, ok := errors.AsType[*wire.Error](err); ok && refusal.Status == http.StatusBadRequest {
		p.Wrong, status = refusal.Message, http.StatusBadRequest
	} else if err != nil {
		return err
	}
	for _, card := range found.Cards {
		shown, _, err := newShownAgent(card, now)
		if err != nil {
			return err
		}
		p.Agents = append(p.Agents, shown)
	}
	if found.cursor != "" {
		kept.Set("cursor", found.cursor)
		p.Next = "/" + encodeQuery(kept)
	}
	if caps, err := r.Capabilities(ctx, "", "", maxLimit); err == nil {
		p.Capabilities = dropNamesWithInvisible(caps.Capabilities)
	}
	if intents, err := r.Intents(ctx, "", "", maxLimit); err == nil {
		p.Intents = dropNamesWithInvisible(intents.Intents)
	}
	return r.templates.pages.Render(c, r.templates.search, status, p)
}

// queryNames are the parameters that a page passes on to the next page.
var queryNames = []string{"q", "capability", "capability_prefix", "intent", "owner", "framework", "location", "verified"}

func encodeQuery(v url.Values) string {
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

func newSearchForm(params url.Values) searchForm {
	f := searchForm{
		Text: dropInvisible(strings.Join(params["q"], " ")), Capability: dropInvisible(params.Get("capability")), Intent: dropInvisible(params.Get("intent")),
		Owner: dropInvisible(params.Get("owner")), Location: dropInvisible(params.Get("location")), Paged: params.Get("cursor") != "",
		Key:      slices.Contains(params["verified"], string(listing.KeyProven)),
		Endpoint: slices.Contains(params["verified"], string(listing.EndpointProven)),
		Alive:    slices.Contains(params["verified"], string(listing.Alive)),
	}
	f.Open = f.Capability+f.Intent+f.Owner+f.Location != "" || f.Key || f.Endpoint || f.Alive
	f.Any = f.Open || f.Text != ""
	return f
}

// dropInvisible drops unprintable characters. Elsewhere a page shows their codes; form fields and titles cannot.
func dropInvisible(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// dropNamesWithInvisible drops names with invisible characters, because a form field cannot show their codes.
func dropNamesWithInvisible(list []NameCount) []NameCount {
	return slices.DeleteFunc(list, func(t NameCount) bool { return dropInvisible(t.Name) != t.Name })
}

func newShownAgent(c store.Card, now time.Time) (shownAgent, wire.Card, error) {
	card, m, err := listing.Parse(c)
	if err != nil {
		return shownAgent{}, wire.Card{}, err
	}
	a := shownAgent{
		ID: card.ID, URL: "/agents/" + url.PathEscape(c.ID), Name: card.Name, Description: card.Description, Host: listing.Host(card),
		Proofs: shownProofs{m.Verification(now), m.Misses == 0},
	}
	for _, tag := range card.Capabilities {
		a.Capabilities = append(a.Capabilities, shownTag{tag, "/" + encodeQuery(url.Values{"capability": {tag}})})
	}
	return a, card, nil
}

type agentPage struct {
	Title                        string
	Site                         site.Shown
	Agent                        shownAgent
	ID                           wire.AgentID
	Owner, Endpoint, Key, Access string
	CardURL                      string
	Derived                      bool
	Intents                      []shownTag
	Registered, Expires          time.Time
	QR                           *site.QR
}

func (r *Registry) showAgent(c echo.Context) error {
	now := wire.Now()
	c.Response().Header().Set("Cache-Control", listAge)
	held, err := listing.Get(c.Request().Context(), r.cards, pathID(c), now)
	if errors.Is(err, wire.ErrNoAgent) {
		return r.templates.pages.Render(c, r.templates.missing, http.StatusNotFound, searchPage{Title: "No such agent", Site: r.templates.site})
	}
	if err != nil {
		return err
	}
	shown, card, err := newShownAgent(held, now)
	if err != nil {
		return err
	}
	p := agentPage{
		Title: dropInvisible(card.Name), Site: r.templates.site, Agent: shown, ID: card.ID, Owner: card.OwnerName, Endpoint: card.Endpoint, Access: card.AccessMode,
		CardURL: r.cfg.BaseURL + "/agents/" + url.PathEscape(held.ID), Derived: shown.Proofs.ID == "derived",
		Registered: held.Registered, Expires: held.Expires, QR: site.NewQR(card.Endpoint),
	}
	if key, err := r.keys.Parse(card.PublicKey); err == nil {
		p.Key = listing.Fingerprint(key)
	}
	for _, intent := range card.Intents {
		p.Intents = append(p.Intents, shownTag{string(intent), "/" + encodeQuery(url.Values{"intent": {string(intent)}})})
	}
	return r.templates.pages.Render(c, r.templates.agent, http.StatusOK, p)
}
