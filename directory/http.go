package directory

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/directory/cached"
	"github.com/agentmesh/agentmesh/directory/discovery"
	"github.com/agentmesh/agentmesh/directory/listing"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Mount adds the public routes: the pages, the documents of package discovery, and the API under /v1 with the relay.
func (r *Registry) Mount(e *echo.Echo) {
	guard := r.cfg.Addresses.Guard
	read := func(path string, h echo.HandlerFunc) {
		h = guard(h)
		if !r.cfg.Local { // in the local profile, pages of other origins may not read (AM-82)
			h = httpapi.AnyOrigin(h)
		}
		e.GET(path, h)
		e.HEAD(path, h)
	}
	r.templates = newTemplates(e, r, guard)
	documents := discovery.New(discovery.Config{
		BaseURL: r.cfg.BaseURL, Local: r.cfg.Local, Name: r.cfg.Site.Name, Referrals: r.cfg.Referrals, Record: r.Record, Guard: guard,
		Find: func(ctx context.Context, s discovery.Search) (discovery.Found, error) { return findRanked(ctx, r, s) },
	}, r.cfg.Entries)
	documents.Mount(e)
	front := func(c echo.Context) error {
		documents.Links(c)
		c.Response().Header().Add("Link", `</openapi.yaml>; rel="service-desc"`) // RFC 8631: an agent with curl finds the API
		return r.getFront(c)
	}
	if r.cfg.WrapFront != nil {
		front = r.cfg.WrapFront(front)
	}
	read("/", front)
	read("/agents/:id", r.showAgent)
	read("/v1/agents", r.listAgents)
	read("/v1/capabilities", handleNames(r.Capabilities))
	read("/v1/intents", handleNames(r.Intents))
	read("/v1/changes", r.getChanges)
	read("/v1/agents/:id", r.getAgent)
	read("/v1/agents/:id/record", handleDocument(r.Record))
	read("/v1/agents/:id/keys", handleDocument(r.Keys))
	if !r.cfg.ReadOnly { // the agents on a mirror cannot collect mail there
		r.relay.Mount(e, guard)
		r.calls.Mount(e, guard)
	}
	e.POST("/v1/agents", guard(r.postAgent))
	e.POST("/v1/agents/:id/reports", guard(r.postReport))
	e.PUT("/v1/agents/:id", guard(r.putAgent))
	e.DELETE("/v1/agents/:id", guard(r.deleteAgent))
}

func pathID(c echo.Context) wire.AgentID { return wire.AgentID(c.Param("id")) }

func newSubmission(c echo.Context) Submission {
	req := c.Request()
	bearer, _ := httpapi.Bearer(req)
	return Submission{
		Body:          func() ([]byte, error) { return httpapi.Body(c, wire.MaxCard) },
		Bearer:        bearer,
		Invite:        req.Header.Get(wire.HeaderInvite),
		Proof:         req.Header.Get(wire.HeaderKeyProof),
		PreviousProof: req.Header.Get(wire.HeaderPreviousKeyProof),
		Client:        httpapi.ClientAddr(c),
		Host:          req.Host,
	}
}

func (r *Registry) postAgent(c echo.Context) error {
	httpapi.Private(c)
	result, err := r.Register(c.Request().Context(), newSubmission(c))
	if err != nil {
		return err
	}
	c.Response().Header()["Location"] = []string{r.cfg.BaseURL + "/agents/" + string(result.AgentID)}
	c.Response().Header().Set(wire.HeaderDirectory, r.cfg.BaseURL)
	return httpapi.JSON(c, http.StatusCreated, result)
}

func (r *Registry) putAgent(c echo.Context) error {
	httpapi.Private(c)
	result, err := r.Renew(c.Request().Context(), pathID(c), newSubmission(c))
	if err != nil {
		return err
	}
	c.Response().Header().Set(wire.HeaderDirectory, r.cfg.BaseURL)
	return httpapi.JSON(c, http.StatusOK, result)
}

func (r *Registry) deleteAgent(c echo.Context) error {
	httpapi.Private(c)
	if err := r.Withdraw(c.Request().Context(), pathID(c), newSubmission(c)); err != nil {
		return err
	}
	return c.NoContent(http.StatusNoContent)
}

const (
	cardAge = 300 * time.Second
	listAge = "public, max-age=10"
)

var fullAge = []string{"public, max-age=300"}

func (r *Registry) getAgent(c echo.Context) error {
	now := wire.Now()
	v, card, err := r.loadView(c.Request().Context(), pathID(c), now)
	if errors.Is(err, wire.ErrNoAgent) {
		err = r.explainMissing(c.Request().Context(), pathID(c), now)
	}
	if err != nil {
		return err
	}
	h := c.Response().Header()
	h["Etag"] = v.etag
	h["Last-Modified"] = v.modified
	h["Cache-Control"] = maxAge(v.expires, now)
	h["Agentmesh-Verification"] = v.header // the canonical spelling of wire.HeaderVerification
	if cached.IsCurrent(c.Request(), v.updated, v.etag[0]) {
		return c.NoContent(http.StatusNotModified)
	}
	h["Content-Length"] = v.length
	return cached.RespondBody(c, card)
}

// maxAge returns the header Cache-Control for a card that expires at the given time.
func maxAge(expires, now time.Time) []string {
	left := expires.Sub(now)
	if expires.IsZero() || left >= cardAge {
		return fullAge
	}
	return []string{"public, max-age=" + strconv.FormatInt(int64(left/time.Second), 10)}
}

// usedPages are pages of cards that listAgents has sent, for the next ones.
var usedPages sync.Pool

// listAgents answers a search, with a cached page if no card was written since.
func (r *Registry) listAgents(c echo.Context) error {
	raw := c.Request().URL.RawQuery
	now, gen := wire.Now(), r.views.generation()
	position, err := feedPosition(c.Request().Context(), r)
	if err != nil {
		return err
	}
	if p, ok := r.pages.Get(raw); ok && p.gen == gen && p.position == position && !now.Before(p.readAt) && now.Before(p.staleAt) {
		return p.Respond(c, listAge)
	}
	q, err := ParseQuery(raw)
	if err != nil {
		return err
	}
	run, err := q.plan()
	if err != nil {
		return err
	}
	run.query.Reuse, _ = usedPages.Get().(*store.CardPage)
	found, err := r.runPlan(c.Request().Context(), run, q.Cursor, now)
	if err != nil {
		return err
	}
	p, err := encodePage(found, gen, now)
	if err != nil {
		return err
	}
	usedPages.Put(&found.CardPage)
	p.position = position
	if len(raw)+p.Len() <= maxKeptPage {
		r.pages.Add(raw, p)
	}
	return p.Respond(c, listAge)
}

// ParseQuery reads the parameters of AM-52. It ignores unknown parameters and empty filters.
func ParseQuery(raw string) (Query, error) {
	params, err := url.ParseQuery(raw)
	if err != nil {
		return Query{}, wire.ErrQuery.Because(err)
	}
	given := func(name string) []string {
		return slices.DeleteFunc(params[name], func(s string) bool { return s == "" })
	}
	q := Query{
		Capabilities: given("capability"),
		Intents:      given("intent"),
		Prefixes:     given("capability_prefix"),
		Owner:        strings.Join(given("owner"), " "),
		Framework:    strings.Join(given("framework"), " "),
		Location:     strings.Join(given("location"), " "),
		Text:         strings.Join(given("q"), " "),
		Cursor:       params.Get("cursor"),
	}
	for _, check := range given("verified") {
		q.Verified = append(q.Verified, listing.Check(check))
	}
	if err := readNumber(params, "limit", 1, maxLimit, &q.Limit); err != nil {
		return Query{}, err
	}
	return q, nil
}

// readNumber stores the parameter with this name in *number. The value must be from least to most. Without the
// parameter, *number stays as it is.
func readNumber(params url.Values, name string, least, most int, number *int) error {
	if !params.Has(name) {
		return nil
	}
	n, err := strconv.ParseUint(params.Get(name), 10, 16)
	if err != nil || int(n) < least || int(n) > most {
		return wire.ErrQuery.At(fmt.Sprintf("%s must be %d to %d", name, least, most))
	}
	*number = int(n)
	return nil
}

// encodedPage is a page of a search as it is sent. It may be sent again from readAt until staleAt, unless a card is
// written.
type encodedPage struct {
	cached.Document
	gen             uint64 // r.views.generation() before the cards were read
	position        uint64 // of the feed, before the cards were read
	readAt, staleAt time.Time
}

const (
	cachedPages = 64
	maxKeptPage = 64 << 10 // bytes of a cached page and of its query
)

// encodePage encodes a page of a search, with the verification of each card.
func encodePage(found page, gen uint64, now time.Time) (*encodedPage, error) {
	staleAt := now.Add(maxKeptAge)
	heads := make([]listing.Head, len(found.Cards))
	size := 64 + len(found.cursor)
	for i, card := range found.Cards {
		var err error
		if heads[i], err = listing.ParseHead(card); err != nil {
			return nil, err
		}
		for _, end := range []time.Time{card.Expires, heads[i].ChangesAt(now)} {
			if !end.IsZero() && end.Before(staleAt) {
				staleAt = end
			}
		}
		size += len(card.Body) + len(card.ID) + 192 // for the verification and the version
	}
	out := append(make([]byte, 0, size), `{"agents":[`...)
	for i, card := range found.Cards {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, card.Body...)
	}
	bodies := len(out)
	out = append(out, ']')
	if found.cursor != "" {
		out = wire.AppendString(append(out, `,"cursor":`...), found.cursor)
	}
	out = append(out, `,"verification":{`...)
	for i, h := range heads {
		if i > 0 {
			out = append(out, ',')
		}
		out = h.Verification(now).AppendJSON(append(wire.AppendString(out, found.Cards[i].ID), ':'))
	}
	out = append(out, "}}"...)
	tags := out[len(out):] // the versions of the cards stand for their bodies, so only a part of the page is hashed
	for _, c := range found.Cards {
		for _, n := range [...]uint64{c.Seq, uint64(c.Rev), uint64(c.Updated.UnixNano())} {
			tags = binary.BigEndian.AppendUint64(tags, n)
		}
	}
	return &encodedPage{Document: cached.Tagged(out, httpapi.EntityTag(out[bodies:], tags)), gen: gen, readAt: now, staleAt: staleAt}, nil
}

// handleDocument returns the handler for a document about one agent.
func handleDocument[T any](get func(context.Context, wire.AgentID) (T, error)) echo.HandlerFunc {
	return func(c echo.Context) error {
		doc, err := get(c.Request().Context(), pathID(c))
		if err != nil {
			return err
		}
		return respondDocument(c, doc)
	}
}

func respondDocument(c echo.Context, v any) error {
	data, err := httpapi.Encode(v)
	if err != nil {
		return err
	}
	return cached.New(data).Respond(c, listAge)
}
