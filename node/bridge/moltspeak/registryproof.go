package moltspeak

import (
	"context"
	"errors"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

const (
	proveAgain = 7 * 24 * time.Hour // how long an answer of an endpoint counts
	proveEvery = time.Hour          // at most, for one agent
	proveTime  = 15 * time.Second
)

// proofs are the agents of the registry whose endpoint is to be asked. A full queue drops: a heartbeat asks again.
type proofs chan string

func (p proofs) ask(id string) {
	select {
	case p <- id:
	default:
	}
}

// proveEndpoints asks endpoints of the registry for their keys, one after the other, until ctx ends.
func (b *Bridge) proveEndpoints(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-b.proofs:
			if err := b.proveEndpoint(ctx, id, time.Now()); err != nil && ctx.Err() == nil {
				b.cfg.Logger.InfoContext(ctx, "moltspeak: an endpoint of the registry is not proven", "agent", id, "err", err)
			}
		}
	}
}

// proveKey notes that an agent of the registry signed a message with the key that it registered (MS-55).
func (b *Bridge) proveKey(c *exchange) {
	if !b.cfg.Registry || !b.shelf.claims(c.m.From.Name(), c.peer.Key) {
		return
	}
	if err := b.changeEntry(c.ctx, c.m.From.Name(), c.now, func(k *kept) { k.Key = c.now.UTC() }); err != nil {
		b.cfg.Logger.WarnContext(c.ctx, "moltspeak: keep the proof of a key", "agent", c.m.From.Name(), "err", err)
	}
}

// changeEntry changes a live entry of the registry.
func (b *Bridge) changeEntry(ctx context.Context, id string, now time.Time, change func(*kept)) error {
	var k kept
	rev, ok, err := b.read(ctx, nsRegistry, id, &k, now)
	if err != nil || !ok || k.Gone {
		return err
	}
	k.rev = rev
	change(&k)
	if err := b.keep(ctx, k, now); err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	return nil
}

// proveEndpoint has the endpoint of an entry sign a challenge with the key of the entry. An answer that was good once
// and is not any more takes the proof back.
func (b *Bridge) proveEndpoint(ctx context.Context, id string, now time.Time) error {
	var k kept
	_, ok, err := b.read(ctx, nsRegistry, id, &k, now)
	if err != nil || !ok || k.Gone || k.Endpoint == "" || now.Sub(k.Answered) < proveAgain || now.Sub(k.Tried) < proveEvery {
		return err
	}
	callErr := b.challenge(ctx, k.Entry, now)
	return errors.Join(callErr, b.changeEntry(ctx, id, now, func(it *kept) {
		if it.Endpoint != k.Endpoint {
			return // it is another one by now
		}
		it.Tried, it.Answered = now.UTC(), time.Time{}
		if callErr == nil {
			it.Key, it.Answered = it.Tried, it.Tried
		}
	}))
}

// challenge sends a verify and judges the answer by the key of the entry alone: nothing is pinned.
func (b *Bridge) challenge(ctx context.Context, e Entry, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, proveTime)
	defer cancel()
	key, ok := parseKey(e.PublicKey)
	if !ok {
		return errors.New("its key is none")
	}
	where, err := Endpoint(e.Endpoint)
	if err != nil {
		return err
	}
	text := random32()
	d := Draft{
		ID: uuid(random32()), Op: OpVerify, Time: now, From: b.self, To: Agent{Agent: e.AgentName, Org: e.Org}, Class: Public,
		P: wire.Obj(wire.TextField("challenge", text), wire.Field("timestamp", wire.Int(now.UnixMilli()))),
	}
	tree, err := sign(d.Tree(), b.cfg.Key)
	if err != nil {
		return err
	}
	reply, err := b.transmit(ctx, where, b.reach(), "", wrap(tree, true))
	if err != nil {
		return err
	}
	if reply == nil {
		return errors.New("it answered nothing")
	}
	m, bad := ParseMessage(reply.Tree)
	if bad == nil {
		bad = m.verify(key)
	}
	switch {
	case bad != nil:
		return bad
	case m.From.Name() != e.ID || m.To.Name() != b.self.Name() || m.Re != d.ID || m.P.GetStr("challenge") != text:
		return errors.New("the answer is to something else, or of somebody else")
	case now.Sub(m.Time).Abs() > window:
		return errors.New("the answer is not of now")
	}
	return nil
}

// reach is how far calls to endpoints that peers name may go.
func (b *Bridge) reach() client.Reach {
	if b.cfg.Local {
		return client.Loopback
	}
	return client.Public
}
