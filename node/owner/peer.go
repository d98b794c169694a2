package owner

import (
	"context"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Peer is what the node remembers about a peer.
type Peer struct {
	ID          string       `json:"id"`
	Aliases     []string     `json:"aliases,omitempty"`
	Name        string       `json:"peer_name,omitempty"` // what the peer calls itself: untrusted
	Standing    acl.Standing `json:"standing,omitempty"`
	Since       time.Time    `json:"since,omitzero"`
	Fingerprint string       `json:"fingerprint,omitempty"` // of the pinned key
	FromOwner   bool         `json:"given,omitempty"`       // the owner added its card, wrote to it or accepted its key
	Write       bool         `json:"write,omitempty"`       // the owner approved it as a recipient; see outgoing.mode
	Unproven    bool         `json:"unproven,omitempty"`    // the derived id does not match the pinned key
	// Alone says what the owner's agent may agree to with the peer without the owner, in words.
	Alone string `json:"alone,omitempty"`
	// Configured reports that the configuration names the peer. Its rule can be changed only there.
	Configured bool `json:"-"`
}

// NewPeer is a card that the owner adds: the document, or the URL that has it.
type NewPeer struct {
	Card  wire.Value `json:"card,omitzero"`
	URL   string     `json:"url,omitempty"`
	Alias string     `json:"alias,omitempty"`
}

// AddedPeer is the agent on a card that the owner added.
type AddedPeer struct {
	ID          wire.AgentID `json:"id"`
	Name        string       `json:"name"`
	Endpoint    string       `json:"endpoint"`
	Fingerprint string       `json:"fingerprint"`
	Unproven    bool         `json:"unproven,omitempty"`
}

// PeerChange is one change by the owner to a peer.
type PeerChange struct {
	Action      string `json:"action"` // allow, approve, block, unblock, forget, alias, repin, write, no-write
	Alias       string `json:"alias,omitempty"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// Peers are the peers that a node remembers.
type Peers interface {
	Names
	// ListPeers returns the peers in the order of their ids. If onlyID is not "", it returns only the peer with that id.
	ListPeers(ctx context.Context, onlyID string) ([]Peer, error)
	// AddPeer adds a card on the owner's authority. The parameter by is the interface through which the request came,
	// see [Door].
	AddPeer(ctx context.Context, in NewPeer, by string) (AddedPeer, error)
	// ChangePeer changes the peer with an id or alias. For a rule about a foreign peer, name is its address.
	ChangePeer(ctx context.Context, name string, change PeerChange, by string) (Peer, error)
}

// The operations of peers.
var (
	ListPeers  = Endpoint[None, List[Peer]]{http.MethodGet, "/peers", Read}
	AddPeer    = Endpoint[NewPeer, AddedPeer]{http.MethodPost, "/peers", Decide}
	ChangePeer = Endpoint[PeerChange, Peer]{http.MethodPost, "/peers/:id", Decide}
)

func peerOperations(n Peers) []Operation {
	return []Operation{
		ListPeers.Serve(func(c echo.Context, _ None) (List[Peer], error) {
			peers, err := n.ListPeers(c.Request().Context(), c.QueryParam("id"))
			return Page(peers, ""), err
		}),
		AddPeer.Serve(func(c echo.Context, in NewPeer) (AddedPeer, error) {
			return n.AddPeer(c.Request().Context(), in, Door(c))
		}),
		ChangePeer.Serve(func(c echo.Context, in PeerChange) (Peer, error) {
			return n.ChangePeer(c.Request().Context(), c.Param("id"), in, Door(c))
		}),
	}
}
