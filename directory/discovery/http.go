package discovery

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

type result struct {
	Entry
	Score  int    `json:"score"`
	Source string `json:"source"`
}

type searchAnswer struct {
	Results   []result `json:"results"`
	Referrals []Entry  `json:"referrals,omitempty"`
	PageToken string   `json:"pageToken,omitempty"`
}

type listAnswer struct {
	Items     []Entry `json:"items"`
	PageToken string  `json:"pageToken,omitempty"`
}

func (s *Service) postSearch(c echo.Context) error {
	body, err := httpapi.Body(c, maxBody)
	if err != nil {
		return err
	}
	r, err := parseSearch(body)
	if err != nil {
		return err
	}
	found, err := s.find(c, r)
	if err != nil {
		return err
	}
	answer := searchAnswer{Results: make([]result, 0, len(found.Agents)), PageToken: found.Cursor}
	for _, a := range found.Agents {
		answer.Results = append(answer.Results, result{s.agentEntry(a.Card, a.Verification), a.Score, s.origin + Base})
	}
	if r.federation == "referrals" {
		answer.Referrals = s.referrals()
	}
	c.Response().Header().Set("Cache-Control", "no-store")
	return httpapi.JSON(c, http.StatusOK, answer)
}

func (s *Service) find(c echo.Context, r request) (Found, error) {
	q, possible := s.newSearch(r)
	if !possible {
		return Found{}, nil
	}
	return s.cfg.Find(c.Request().Context(), q)
}

// referrals returns the entries of the registries that a client may ask as well.
func (s *Service) referrals() []Entry {
	var list []Entry
	for _, base := range s.cfg.Referrals {
		u, err := url.Parse(base)
		if err != nil || u.Hostname() == "" {
			continue
		}
		list = append(list, Entry{
			Identifier: urnPrefix + strings.ToLower(u.Hostname()) + ":registry:agents", DisplayName: u.Hostname(), Type: TypeRegistry,
			URL: strings.TrimRight(base, "/"),
		})
	}
	return list
}

const listAge = "public, max-age=60"

// listAgents answers with a page of the agents, in the order of their registration. If the filter has several values
// for a key, the agents come in the byte order of these values.
func (s *Service) listAgents(c echo.Context) error {
	params := c.QueryParams()
	r := request{size: listPage, token: params.Get("pageToken")}
	var err error
	if params.Has("pageSize") {
		if r.size, err = parseSize(params.Get("pageSize")); err != nil {
			return err
		}
	}
	if params.Get("orderBy") != "" {
		return wire.ErrQuery.At("orderBy is not supported; agents come in the order of registration, separately for each value of the filter")
	}
	if r.filter, err = parseListFilter(params.Get("filter")); err != nil {
		return err
	}
	found, err := s.find(c, r)
	if err != nil {
		return err
	}
	answer := listAnswer{Items: make([]Entry, 0, len(found.Agents)), PageToken: found.Cursor}
	for _, a := range found.Agents {
		answer.Items = append(answer.Items, s.agentEntry(a.Card, a.Verification).withQueries())
	}
	return serveJSON(c, answer)
}

func (s *Service) getAgent(c echo.Context) error {
	text, err := url.PathUnescape(strings.TrimPrefix(c.Request().URL.EscapedPath(), Base+"/agents/"))
	parts := urn.FindStringSubmatch(text)
	if err != nil || parts == nil {
		return wire.ErrQuery.At("an identifier must be urn:air:HOST:KIND:NAME, percent-encoded once")
	}
	if text == s.identifier("registry", "agents") {
		return serveJSON(c, s.registryEntry())
	}
	id, ok := strings.CutPrefix(parts[2], ":"+agentKind+":")
	if !ok || parts[1] != s.host || strings.Contains(id, ":") {
		return wire.ErrNoAgent
	}
	record, err := s.cfg.Record(c.Request().Context(), wire.AgentID(id))
	if err != nil {
		return err
	}
	return serveJSON(c, s.agentEntry(record.Card, record.Verification).withQueries())
}

func serveJSON(c echo.Context, v any) error {
	data, err := httpapi.Encode(v)
	if err == nil {
		httpapi.ServeDocument(c, echo.MIMEApplicationJSON, listAge, data)
	}
	return err
}

// postExplore refuses: in ARD, exploring is optional. It counts agents, which /v1/capabilities and /v1/intents also do.
func (s *Service) postExplore(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "no-store")
	return httpapi.JSON(c, http.StatusNotImplemented, failure{"INVALID_ARGUMENT", "this registry does not explore; ask " + s.cfg.BaseURL + "/capabilities"})
}

type failure struct {
	Code    string `json:"errorCode"`
	Message string `json:"message"`
}

// codes are the error codes by status. Other client errors are INVALID_ARGUMENT, other server errors INTERNAL_ERROR.
var codes = map[int]string{
	http.StatusUnauthorized: "UNAUTHENTICATED", http.StatusNotFound: "NOT_FOUND", http.StatusTooManyRequests: "RATE_LIMIT_EXCEEDED",
}

// answerErrors writes the errors of a handler in the form of ARD. It also returns the error, for the log.
func answerErrors(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		err := next(c)
		if err == nil || c.Response().Committed {
			return err
		}
		refusal := httpapi.PublicError(err)
		f := failure{codes[refusal.Status], refusal.Message}
		switch {
		case f.Code != "":
		case refusal.Status < http.StatusInternalServerError:
			f.Code = "INVALID_ARGUMENT"
		default:
			f.Code = "INTERNAL_ERROR"
		}
		h := c.Response().Header()
		h.Set("Cache-Control", "no-store")
		if refusal.RetryAfter > 0 {
			h.Set("Retry-After", strconv.FormatInt(wire.CeilSeconds(refusal.RetryAfter), 10))
		}
		return errors.Join(err, httpapi.JSON(c, refusal.Status, f))
	}
}
