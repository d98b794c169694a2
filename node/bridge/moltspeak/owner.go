package moltspeak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// PeerView is what the owner is shown of a peer.
type PeerView struct {
	Name     string        `json:"name"`
	Address  string        `json:"address"`
	Key      string        `json:"key"`
	EncKey   string        `json:"enc_key,omitempty"`
	First    time.Time     `json:"first_seen"`
	Endpoint string        `json:"endpoint,omitempty"`
	Vouched  string        `json:"vouched_by,omitempty"` // a registry, or "card": they list the same key
	Granted  []string      `json:"granted,omitempty"`
	Attested []Attestation `json:"attested,omitempty"` // claimed, by nobody checked
	Refused  string        `json:"refused_key,omitempty"`
}

// Status is what the owner is shown of the bridge.
type Status struct {
	Agent    string `json:"agent"`
	Key      string `json:"key"`
	EncKey   string `json:"enc_key"`
	URL      string `json:"url,omitempty"`
	Serving  bool   `json:"serving"`
	Sessions int    `json:"sessions"`

	Registries []RegistryState `json:"registries,omitempty"` // that links name
}

// Operations returns what the owner may ask and change.
func (b *Bridge) Operations() []owner.Operation {
	return []owner.Operation{
		owner.Raw(http.MethodGet, "/moltspeak", owner.Read, func(c echo.Context) error {
			return httpapi.JSON(c, http.StatusOK, Status{
				Agent: b.self.Name(), Key: b.self.Key, EncKey: b.self.EncKey, URL: b.cfg.URL, Serving: b.cfg.Serve, Sessions: b.handshake.count(time.Now()), Registries: b.listings(),
			})
		}),
		owner.Raw(http.MethodGet, "/moltspeak/search", owner.Read, b.ownerSearch),
		owner.Raw(http.MethodGet, "/moltspeak/consents", owner.Read, func(c echo.Context) error {
			list, err := b.grants(c.Request().Context(), "", time.Now())
			if err != nil {
				return err
			}
			return httpapi.JSON(c, http.StatusOK, owner.List[Grant]{Items: list})
		}),
		owner.Raw(http.MethodDelete, "/moltspeak/consents/:id", owner.Decide, func(c echo.Context) error {
			return done(c, b.Revoke(c.Request().Context(), c.Param("id"), time.Now()))
		}),
		owner.Raw(http.MethodGet, "/moltspeak/peers", owner.Read, func(c echo.Context) error {
			list, err := b.peers(c.Request().Context())
			if err != nil {
				return err
			}
			return httpapi.JSON(c, http.StatusOK, owner.List[PeerView]{Items: list})
		}),
		owner.Raw(http.MethodDelete, "/moltspeak/peers/:name", owner.Decide, func(c echo.Context) error { return done(c, b.Unpin(c.Request().Context(), c.Param("name"))) }),
		owner.Raw(http.MethodPut, "/moltspeak/peers/:name/granted/:capability", owner.Decide, func(c echo.Context) error {
			return done(c, b.Prove(c.Request().Context(), c.Param("name"), c.Param("capability"), true))
		}),
		owner.Raw(http.MethodDelete, "/moltspeak/peers/:name/granted/:capability", owner.Decide, func(c echo.Context) error {
			return done(c, b.Prove(c.Request().Context(), c.Param("name"), c.Param("capability"), false))
		}),
	}
}

// listings says how we stand in the registries that links name.
func (b *Bridge) listings() []RegistryState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Values(b.registries), func(x, y RegistryState) int { return strings.Compare(x.URL, y.URL) })
}

// ownerSearch asks the registry of a link.
func (b *Bridge) ownerSearch(c echo.Context) error {
	r, ok := b.remote(c.QueryParam("link"))
	if !ok {
		return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such link with a registry_url"}
	}
	query := url.Values{"limit": {"50"}}
	for _, key := range []string{"capability", "org", "q"} {
		if s := c.QueryParam(key); s != "" {
			query.Set(key, s)
		}
	}
	found, err := r.search(c.Request().Context(), query)
	if err != nil {
		return &wire.Error{Code: wire.AgentUnavailable, Status: http.StatusBadGateway, Message: "the registry cannot be searched now"}
	}
	return httpapi.JSON(c, http.StatusOK, owner.List[Entry]{Items: found})
}

func done(c echo.Context, err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return &wire.Error{Code: wire.InvalidMessage, Status: http.StatusNotFound, Message: "there is no such entry"}
	}
	if err != nil {
		return err
	}
	return httpapi.JSON(c, http.StatusOK, struct {
		OK bool `json:"ok"`
	}{true})
}

func (b *Bridge) peers(ctx context.Context) ([]PeerView, error) {
	out := []PeerView{}
	for after := ""; ; {
		list, err := b.records.List(ctx, nsPeers, "", after, 200, time.Now())
		if err != nil {
			return nil, err
		}
		for _, rec := range list.Records {
			var p peer
			if err := json.Unmarshal(rec.Body, &p); err != nil {
				return nil, err
			}
			a, _ := ParseName(p.Name)
			out = append(out, PeerView{
				Name: p.Name, Address: b.address(a).String(), Key: p.Key, EncKey: p.EncKey, First: p.First, Endpoint: p.Endpoint,
				Vouched: p.Vouched, Granted: p.Granted, Attested: p.Attested, Refused: p.Refused,
			})
		}
		if after = list.Next; after == "" {
			return out, nil
		}
	}
}

// Unpin forgets the key of a peer, so that the next one that it shows is pinned: only the owner changes a pin (MS-23).
func (b *Bridge) Unpin(ctx context.Context, name string) error {
	now := time.Now()
	p, known, err := b.peer(ctx, name, now)
	if err != nil {
		return err
	}
	if !known {
		return store.ErrNotFound
	}
	return b.records.Apply(ctx, []store.Change{{IfRev: p.rev, Delete: true, Record: store.Record{NS: nsPeers, Key: name}}}, now)
}

// Prove grants a peer a capability for good, which is trust level 4 for it, or takes it back (MS-28).
func (b *Bridge) Prove(ctx context.Context, name, capability string, granted bool) error {
	now := time.Now()
	p, known, err := b.peer(ctx, name, now)
	if err != nil {
		return err
	}
	if !known {
		return store.ErrNotFound
	}
	p.Granted = slices.DeleteFunc(p.Granted, func(s string) bool { return s == capability })
	if granted {
		p.Granted = append(p.Granted, capability)
	}
	p.Chosen = true
	return b.savePeer(ctx, p, now)
}

// Test says hello to the peer behind a link and verifies what comes back.
func (b *Bridge) Test(ctx context.Context, name string) error {
	l, ok := b.link(name)
	if !ok {
		return fmt.Errorf("there is no link %s", name)
	}
	where, err := Endpoint(l.URL)
	if err != nil {
		return err
	}
	to, named := ParseName(l.Options["peer"])
	if !named {
		return errors.New("the link names no peer: set options.peer to agent@org")
	}
	err = b.greet(ctx, l, where, to)
	b.stands(name, err)
	return err
}

func (b *Bridge) greet(ctx context.Context, l bridge.Link, where string, to Agent) error {
	now := time.Now()
	p := wire.Obj(wire.Field("protocol_versions", wire.Texts([]string{Version})), wire.Field("capabilities", wire.Texts(b.capabilities())),
		wire.Field("extensions", wire.Arr()), wire.Field("max_message_size", wire.Int(MaxMessage)), wire.Field("supported_cls", wire.Texts(Classes())))
	d := Draft{ID: uuid(random32()), Op: OpHello, Time: now, From: b.self, To: to, P: p, Class: Internal}
	d.Ext = b.endpointFor(where)
	ack, err := b.exchange(ctx, l, where, d, to)
	if err != nil {
		return err
	}
	if f, failed := ack.body.(Fault); failed {
		return f
	}
	text := ack.m.P.GetStr("challenge")
	if r, core := ack.body.(Respond); core { // the form of those who know the core operations alone (MS-25)
		text = r.Data.GetStr("challenge")
	}
	if text == "" {
		return nil // it opens no session
	}
	proof := Draft{ID: uuid(random32()), Re: ack.m.ID, Op: OpVerifyResponse, Time: time.Now(), From: b.self, To: to, P: wire.Obj(wire.TextField("challenge", text)), Class: Internal}
	_, err = b.exchange(ctx, l, where, proof, to)
	return err
}

// exchange sends a message of the handshake and reads the verified answer, whose keys are pinned.
func (b *Bridge) exchange(ctx context.Context, l bridge.Link, where string, d Draft, to Agent) (*exchange, error) {
	tree, err := sign(d.Tree(), b.cfg.Key)
	if err != nil {
		return nil, err
	}
	reply, err := b.post(ctx, bridge.Address{Kind: Kind, Link: l.Name, Peer: to.Name()}, where, client.Owner, tree.JSON(), to, false)
	if err != nil {
		return nil, err
	}
	if reply == nil {
		return nil, errors.New("the peer answered nothing")
	}
	c := &exchange{ctx: ctx, now: time.Now(), packet: *reply, called: true}
	if e := b.authentic(c); e != nil {
		return nil, fmt.Errorf("the answer of the peer: %w", e)
	}
	if c.m.From.Name() != to.Name() || c.m.Re != d.ID {
		return nil, errors.New("the answer is another peer's, or to another message")
	}
	return c, nil
}
