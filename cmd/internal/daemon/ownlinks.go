package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay"
	"github.com/agentmesh/agentmesh/node/bridge/agentrelay/frame"
	"github.com/agentmesh/agentmesh/node/bridge/mew/link"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/websocket"
)

// ownRelayLink is the name of the link to the relay of this process.
const ownRelayLink = "own"

// ownLinks returns the links of one kind to what this process hosts: its relay, and its spaces. They make the node an
// agent of the relay and a participant of each space, so that others can write to it there. A configured link with the
// same name replaces such a link.
func ownLinks(p *Process, kind string) []bridge.Link {
	if p.node == nil {
		return nil
	}
	var all []bridge.Link
	add := func(l bridge.Link) {
		if !slices.ContainsFunc(slices.Concat(all, p.cfg.Links), func(other bridge.Link) bool { return other.Name == l.Name }) {
			all = append(all, l)
		}
	}
	own := bridge.Link{Kind: kind, URL: socketURL(p.base)}
	switch {
	case kind == agentrelay.Kind && servesAgentRelay(p):
		own.Name, own.AgentID = ownRelayLink, linkHandle(p.node.Card().Name)
		own.URL += "/arc"
		add(own)
	case kind == link.Kind:
		for _, space := range p.cfg.MEW.Spaces {
			own.Name, own.Space, own.Participant = nameOwnLink(space.ID, all), space.ID, linkHandle(p.node.Card().Name)
			add(own)
		}
	}
	return all
}

// nameOwnLink returns the name of the link to a space of this process. If one of links already has that name, because
// linkHandle makes the same handle from two ids, nameOwnLink adds a hash of the id.
func nameOwnLink(space string, links []bridge.Link) string {
	name := "own-" + linkHandle(space)
	if slices.ContainsFunc(links, func(other bridge.Link) bool { return other.Name == name }) {
		sum := sha256.Sum256([]byte(space))
		name += fmt.Sprintf("-%x", sum[:4])
	}
	return name
}

// linkHandle makes an id of 3 to 32 lower-case letters, digits and hyphens from a text. It returns "node" if that id
// would be shorter, or is the id under which a relay itself writes.
func linkHandle(text string) string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') })
	id := strings.Join(words, "-")
	id = strings.TrimRight(id[:min(len(id), 32)], "-")
	if len(id) < 3 || id == frame.RelayID {
		return "node"
	}
	return id
}

// dialer returns a function that opens connections for links. A connection to this process itself stays inside the
// process, so it works without a certificate, and without the reverse proxy.
func dialer(p *Process) websocket.Dialer {
	return func(ctx context.Context, u *url.URL) (net.Conn, error) {
		if base, err := url.Parse(p.base); err != nil || u.Host != base.Host {
			return p.http.Connect(ctx, client.Owner, u)
		}
		clientEnd, serverEnd := net.Pipe()
		once := make(oneConn, 1)
		once <- serverEnd
		server := http.Server{Handler: p.server.Internal()}
		go func() { _ = server.Serve(once) }() // returns after the connection was accepted
		return clientEnd, nil
	}
}

// oneConn is a listener with one connection.
type oneConn chan net.Conn

// Accept returns the connection, and then io.EOF.
func (l oneConn) Accept() (net.Conn, error) {
	select {
	case conn := <-l:
		return conn, nil
	default:
		return nil, io.EOF
	}
}

// Close does nothing: the connection does not belong to the listener.
func (l oneConn) Close() error { return nil }

// Addr returns a name for errors.
func (l oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "in this process"} }
