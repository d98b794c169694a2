package moltspeak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/message"
	"github.com/agentmesh/agentmesh/node/bridge/moltspeak/registry"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// PeerView is a peer as the owner API shows it.
type PeerView struct {
	Name       string    `json:"name"`
	Address    string    `json:"address"`
	Key        string    `json:"key"`
	EncKey     string    `json:"enc_key,omitempty"`
	First      time.Time `json:"first_seen"`
	Endpoint   string    `json:"endpoint,omitempty"`
	Vouched    string    `json:"vouched_by,omitempty"`  // a registry or "card" that lists the same key
	GrantedPII bool      `json:"granted_pii,omitempty"` // the owner accepts personal data from it
	Refused    string    `json:"refused_key,omitempty"`
}

// Status is the status of the bridge as the owner API shows it.
type Status struct {
	Agent   string `json:"agent"`
	Key     string `json:"key"`
	EncKey  string `json:"enc_key"`
	URL     string `json:"url,omitempty"`
	Serving bool   `json:"serving"`

	Registries []registry.State `json:"registries,omitempty"` // the registries of the links
}

// Done is the result of an operation without other results.
type Done struct {
	OK bool `json:"ok"`
}

// The owner's operations of the bridge.
var (
	ShowStatus    = owner.Endpoint[owner.None, Status]{Method: http.MethodGet, Path: "/moltspeak", Right: owner.Read}
	SearchAgents  = owner.Endpoint[owner.None, owner.List[registry.Entry]]{Method: http.MethodGet, Path: "/moltspeak/search", Right: owner.Read}
	ListConsents  = owner.Endpoint[owner.None, owner.List[Grant]]{Method: http.MethodGet, Path: "/moltspeak/consents", Right: owner.Read}
	RevokeConsent = owner.Endpoint[owner.None, Done]{Method: http.MethodDelete, Path: "/moltspeak/consents/:id", Right: owner.Decide}
	ListPeers     = owner.Endpoint[owner.None, owner.List[PeerView]]{Method: http.MethodGet, Path: "/moltspeak/peers", Right: owner.Read}
	UnpinPeer     = owner.Endpoint[owner.None, Done]{Method: http.MethodDelete, Path: "/moltspeak/peers/:name", Right: owner.Decide}
	GrantPII      = owner.Endpoint[owner.None, Done]{Method: http.MethodPut, Path: "/moltspeak/peers/:name/pii", Right: owner.Decide}
	RevokePII     = owner.Endpoint[owner.None, Done]{Method: http.MethodDelete, Path: "/moltspeak/peers/:name/pii", Right: owner.Decide}
)

// Operations returns the bridge's operations of the owner API.
func (b *Bridge) Operations() []owner.Operation {
	return []owner.Operation{
		ShowStatus.Serve(func(echo.Context, owner.None) (Status, error) {
			return Status{
				Agent: b.self.Name(), Key: b.self.Key, EncKey: b.self.EncKey, URL: string(urlOf(b)), Serving: b.Serving(), Registries: b.registrar.States(),
			}, nil
		}),
		SearchAgents.Serve(b.registrar.Search),
		ListConsents.Serve(func(c echo.Context, _ owner.None) (owner.List[Grant], error) {
			list, err := b.grants.list(c.Request().Context(), "", time.Now())
			return owner.List[Grant]{Items: list}, err
		}),
		RevokeConsent.Serve(func(c echo.Context, _ owner.None) (Done, error) {
			return Done{true}, b.grants.revoke(c.Request().Context(), c.Param("id"), time.Now())
		}),
		ListPeers.Serve(func(c echo.Context, _ owner.None) (owner.List[PeerView], error) {
			list, err := b.pins.list(c.Request().Context())
			return owner.List[PeerView]{Items: list}, err
		}),
		UnpinPeer.Serve(func(c echo.Context, _ owner.None) (Done, error) {
			return Done{true}, b.unpin(c.Request().Context(), c.Param("name"))
		}),
		GrantPII.Serve(func(c echo.Context, _ owner.None) (Done, error) {
			return Done{true}, b.pins.setGranted(c.Request().Context(), c.Param("name"), true)
		}),
		RevokePII.Serve(func(c echo.Context, _ owner.None) (Done, error) {
			return Done{true}, b.pins.setGranted(c.Request().Context(), c.Param("name"), false)
		}),
	}
}

// unpin deletes what we know about a peer, including its key and what the owner granted, so that the
// next key that the peer shows is pinned. Only the owner changes a pin (MS-23). It revokes the owner's consents for
// the peer and withdraws its questions for consent, because otherwise the agent with the next key would get personal
// data.
func (b *Bridge) unpin(ctx context.Context, name string) error {
	now := time.Now()
	p, known, err := b.pins.get(ctx, name, now)
	if err != nil || !known {
		return cmp.Or(err, store.ErrNotFound)
	}
	revocations, err := b.grants.revocations(ctx, name, now)
	if err != nil {
		return err
	}
	withdrawals, err := b.cfg.Mesh.Asks().WithdrawAbout(ctx, aboutConsent(name), func(acl.Ask) bool { return true }, now)
	if err != nil {
		return err
	}
	deletion := store.Change{IfRev: p.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: name}}
	return b.records.Apply(ctx, slices.Concat(revocations, withdrawals, []store.Change{deletion}), now)
}

// Test sends a hello to the peer behind a link and verifies the answer.
func (b *Bridge) Test(ctx context.Context, name string) error { return b.links.Test(ctx, name) }

func (b *Bridge) testLink(ctx context.Context, l *bridge.CalledLink) error {
	began := time.Now()
	peer, named := message.ParseName(l.Options["peer"])
	if !named {
		err := &bridge.LinkFault{Why: errors.New("the link names no peer"), Fix: "add it with --option peer=agent@org, or set options.peer in the configuration"}
		b.links.record(l.Name, began, err)
		return err
	}
	to, err := targetBehind(l, peer)
	if err != nil {
		return err
	}
	err = b.greet(ctx, to)
	if b.links.record(l.Name, began, err); err == nil {
		b.cfg.Mesh.Reachable(linkAddress(l.Name))
	}
	return err
}

// greet sends a hello to a peer, and answers the challenge of the peer.
func (b *Bridge) greet(ctx context.Context, to target) error {
	d := message.Draft{ID: newID(), Op: message.OpHello, Time: time.Now(), P: helloPayload(b.capabilities), Class: message.Internal}
	d.Ext = urlOf(b).ext(to.endpoint)
	ack, err := b.handshakeCall(ctx, to, d)
	if err != nil {
		return err
	}
	if f, failed := ack.body.(message.Fault); failed {
		return f
	}
	text := challengeIn(ack.m, ack.body)
	if text == "" {
		return nil // the peer opens no session
	}
	proof := message.Draft{ID: newID(), Re: ack.m.ID, Op: message.OpVerifyResponse, Time: time.Now(), P: wire.Obj(wire.TextField("challenge", text)), Class: message.Internal}
	result, err := b.handshakeCall(ctx, to, proof)
	if err != nil {
		return err
	}
	// The fault is not wrapped: otherwise links.record could mark a link that works as down.
	if f, failed := result.body.(message.Fault); failed {
		return fmt.Errorf("the peer opens no session: %s", f.Code)
	}
	return nil
}

// challengeIn returns the challenge in a message, or "". A peer that knows only the core operations puts the challenge
// into the data of a respond (MS-25).
func challengeIn(m message.Message, body message.Payload) string {
	if r, core := body.(message.Respond); core {
		return r.Data.GetStr("challenge")
	}
	return m.P.GetStr("challenge")
}

// handshakeCall sends a message of the handshake and returns the verified answer. It pins the keys in the answer if the
// answer is from the peer of the link.
func (b *Bridge) handshakeCall(ctx context.Context, to target, d message.Draft) (*request, error) {
	d.To = to.agent
	const boxed = false // it answers no encrypted request
	reply, err := b.post(ctx, to, b.signTree(d).JSON(), boxed)
	if err != nil {
		return nil, err
	}
	if reply == nil {
		return nil, errors.New("the peer sent an empty answer")
	}
	if m, e := message.Parse(reply.Tree); e == nil && (m.From.Name() != to.agent.Name() || m.Re != d.ID) {
		return nil, errors.New("the answer is from another peer or to another message")
	}
	c := &request{ctx: ctx, now: time.Now(), packet: *reply, answersCall: true}
	if e := b.authenticate(c); e != nil {
		return nil, fmt.Errorf("the answer of the peer: %w", e)
	}
	return c, nil
}
