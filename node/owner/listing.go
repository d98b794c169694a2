package owner

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Listing is the registration of the node in one directory (AM-83).
type Listing struct {
	Directory  string       `json:"directory"`
	AgentID    wire.AgentID `json:"agent_id,omitempty"`
	State      ListingState `json:"state"`
	Registered time.Time    `json:"registered_at,omitzero"`
	Expires    time.Time    `json:"expires_at,omitzero"`
	Next       time.Time    `json:"next,omitzero"` // when the node checks it again
	Error      string       `json:"error,omitempty"`
	Hint       string       `json:"hint,omitempty"`
	Refused    bool         `json:"refused,omitempty"` // the directory refused and will refuse again
}

// Describe describes the listing on one line, without its hint. formatTime formats its expiry. The error may be text
// of the directory.
func (l Listing) Describe(formatTime func(time.Time) string) string {
	text := l.Directory + ": " + string(l.State)
	if !l.Expires.IsZero() {
		text += ", expires " + formatTime(l.Expires)
	}
	if l.Error != "" {
		text += ", last error: " + l.Error
	}
	return text
}

// ListingState is the state of the node's registration in a directory.
type ListingState string

const (
	Registered ListingState = "registered"
	Pending    ListingState = "pending"   // not yet or no longer registered; see Error
	Withdrawn  ListingState = "withdrawn" // by the owner
	Removed    ListingState = "removed"   // by the operator, for the reason in Error; the node does not register again by itself
)

// Register is the order to register or renew the card in one configured directory, or in all if Directory is empty.
type Register struct {
	Directory string `json:"directory,omitempty"`
	Adopt     bool   `json:"adopt,omitempty"` // accept the id that the directory assigns
}

// Withdraw is the order to withdraw the card from one configured directory, or from all if Directory is empty.
type Withdraw struct {
	Directory string `json:"directory,omitempty"`
}

// Found is the answer of one directory to a search.
type Found struct {
	Directory string       `json:"directory"`
	Listing   wire.Listing `json:"listing"` // a page of agents
	// Unproven are agents on that page whose derived id does not match the key on the card (AM-2).
	Unproven []wire.AgentID `json:"unproven,omitempty"`
	Error    string         `json:"error,omitempty"`
	Hint     string         `json:"hint,omitempty"`
}

// FoundARD is a page of agents that a foreign registry lists, one that speaks ARD (Agentic Resource Discovery). All
// texts come from the registry: they are untrusted.
type FoundARD struct {
	Items  []client.ARDEntry `json:"items"`
	Cursor string            `json:"cursor,omitempty"`
}

// Listings are the registrations of a node, and searches in its directories.
type Listings interface {
	// Card returns the card that the node publishes.
	Card() wire.Card
	// RegisterIn registers the node and records that in the audit log. Failures are in the returned listings. Here and
	// below, the parameter by is the interface through which the request came, see [Door].
	RegisterIn(ctx context.Context, in Register, by string) ([]Listing, error)
	WithdrawFrom(ctx context.Context, in Withdraw, by string) ([]Listing, error)
	// RotateKey replaces the signing key of the node and updates the directories.
	RotateKey(ctx context.Context, by string) ([]Listing, error)
	// Discover asks each configured directory, or the named one, for a page of agents (AM-86).
	Discover(ctx context.Context, directory string, q client.Query) ([]Found, error)
}

// The operations of listings.
var (
	ShowCard     = Endpoint[None, wire.Value]{http.MethodGet, "/card", Read}
	RegisterCard = Endpoint[Register, List[Listing]]{http.MethodPost, "/register", Decide}
	WithdrawCard = Endpoint[Withdraw, List[Listing]]{http.MethodPost, "/withdraw", Decide}
	RotateKey    = Endpoint[None, List[Listing]]{http.MethodPost, "/keys/rotate", Decide}
	Discover     = Endpoint[None, List[Found]]{http.MethodGet, "/discover", Read}
	DiscoverARD  = Endpoint[None, FoundARD]{http.MethodGet, "/discover/ard", Decide} // the caller chooses which host gets the search text
)

func listingOperations(n Listings) []Operation {
	return []Operation{
		Raw(ShowCard.Method, ShowCard.Path, ShowCard.Right, func(c echo.Context) error { // exactly the published bytes
			return httpapi.Raw(c, http.StatusOK, n.Card().Tree.JSON())
		}),
		RegisterCard.Serve(func(c echo.Context, in Register) (List[Listing], error) {
			list, err := n.RegisterIn(c.Request().Context(), in, Door(c))
			return Page(list, ""), err
		}),
		WithdrawCard.Serve(func(c echo.Context, in Withdraw) (List[Listing], error) {
			list, err := n.WithdrawFrom(c.Request().Context(), in, Door(c))
			return Page(list, ""), err
		}),
		RotateKey.Serve(func(c echo.Context, _ None) (List[Listing], error) {
			list, err := n.RotateKey(c.Request().Context(), Door(c))
			return Page(list, ""), err
		}),
		Discover.Serve(func(c echo.Context, _ None) (List[Found], error) {
			q, err := parseQuery(c)
			if err != nil {
				return List[Found]{}, err
			}
			list, err := n.Discover(c.Request().Context(), c.QueryParam("directory"), q)
			return Page(list, ""), err
		}),
	}
}

func parseQuery(c echo.Context) (client.Query, error) {
	params := c.QueryParams()
	q := client.Query{Capabilities: params["capability"], Text: params.Get("q"), Cursor: params.Get("cursor")}
	for _, i := range params["intent"] {
		q.Intents = append(q.Intents, wire.Intent(i))
	}
	if s := params.Get("limit"); s != "" {
		limit, err := strconv.Atoi(s)
		if err != nil || limit < 1 || limit > 100 {
			return client.Query{}, Fault(http.StatusBadRequest, "limit must be 1 to 100", "")
		}
		q.Limit = limit
	}
	return q, nil
}

// ARDOperation returns the operation that searches a foreign registry through h. The parameter url of the request names
// the registry.
func ARDOperation(h *client.HTTP) Operation {
	return DiscoverARD.Serve(func(c echo.Context, _ None) (FoundARD, error) {
		q, err := parseQuery(c)
		if err != nil {
			return FoundARD{}, err
		}
		list, cursor, err := client.SearchARD(c.Request().Context(), h, c.QueryParam("url"), q)
		if err != nil {
			return FoundARD{}, Fault(http.StatusBadGateway, wire.OneLine(err.Error(), 300), "")
		}
		return FoundARD{list, cursor}, nil
	})
}
