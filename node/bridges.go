package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// bridges is what is attached to a node. The zero value is ready to use, and safe for concurrent use.
type bridges struct {
	modes sync.Map // "kind:link" to acl.Mode

	mu       sync.RWMutex
	attached []attached // in order; replaced, never changed
}

// attached is a kind and what serves it.
type attached struct {
	bridge.Kind
	service bridge.Transport
}

// links returns the links of a service, and false if it is a transport without links.
func (a attached) links() ([]bridge.LinkStatus, bool) {
	linked, ok := a.service.(interface{ Links() []bridge.LinkStatus })
	if !ok {
		return nil, false
	}
	return linked.Links(), true
}

// handles reports whether the bridge handles messages of an intent.
func (a attached) handles(intent wire.Intent) bool {
	links, _ := a.links()
	return acl.Match(a.Intents, string(intent)) && (a.Native || len(links) > 0)
}

// Attach takes the links of a kind under the node's access rules: policy.access of a link decides about everybody behind
// it, whatever the bridge calls them. The error names each key of a policy that the kind does not honor. It returns the
// node as the bridge sees it.
func (n *Node) Attach(kind bridge.Kind, links []bridge.Link) (bridge.Mesh, error) {
	for _, l := range links {
		var wrong []error
		for _, e := range kind.CheckPolicy(l) {
			wrong = append(wrong, e)
		}
		if len(wrong) > 0 {
			return nil, errors.Join(wrong...)
		}
		n.bridges.modes.Store(kind.Name+":"+l.Name, n.linkMode(acl.Mode(l.Policy.Access)))
	}
	return mesh{n, kind.Name}, nil
}

// Connect has service carry the messages of the node to addresses of the kind. As far as it implements them, it is also
// the kind's [bridge.Handler], [bridge.Observer], [bridge.FailureObserver], [bridge.Answerer] and [bridge.Carrier].
func (n *Node) Connect(kind bridge.Kind, service bridge.Transport) {
	n.bridges.mu.Lock()
	defer n.bridges.mu.Unlock()
	n.bridges.attached = append(slices.Clip(n.bridges.attached), attached{kind, service})
}

func (b *bridges) all() []attached {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.attached
}

// of returns what serves a kind.
func (b *bridges) of(kind string) (attached, bool) {
	for _, a := range b.all() {
		if a.Name == kind {
			return a, true
		}
	}
	return attached{}, false
}

func (b *bridges) serves(kind string) bool {
	_, ok := b.of(kind)
	return ok
}

// route returns the route to the bridge that handles an intent.
func (b *bridges) route(intent wire.Intent) (Route, bool) {
	for _, a := range b.all() {
		h, ok := a.service.(bridge.Handler)
		if ok && a.handles(intent) {
			return Route{Pattern: a.Intents, Name: a.Name, Handler: bridgeHandler{h}, Repeatable: a.Repeatable, Foreign: true, Receipts: a.Receipts}, true
		}
	}
	return Route{}, false
}

// bridgeHandler hands messages to a bridge.
type bridgeHandler struct{ bridge.Handler }

// Handle implements [hook.Handler].
func (h bridgeHandler) Handle(ctx context.Context, c hook.Call) (hook.Answer, error) {
	payload, err := wire.Parse(c.Payload)
	if err != nil {
		return hook.Answer{}, err
	}
	r, err := h.Handler.Handle(ctx, bridge.Call{
		From: c.Message.From, Address: c.Conversation.Address, Conv: c.Message.Conversation, ID: c.Message.ID, Intent: c.Message.Intent,
		Payload: payload, Approved: c.Approved,
	})
	return hook.Answer{Payload: r.Payload, Hold: r.Hold, Err: r.Refusal}, err
}

// silence returns how long conversations of an intent may be silent, 0 for as long as others.
func (b *bridges) silence(intent wire.Intent) time.Duration {
	for _, a := range b.all() {
		if d := a.Silence[intent]; d > 0 {
			return d
		}
	}
	return 0
}

// checkAddress returns why an attempt to deliver to an address is not worth making, in words for the owner.
func (b *bridges) checkAddress(to bridge.Address) error {
	a, _ := b.of(to.Kind)
	links, ok := a.links()
	if !ok || to.Link == a.Inbound {
		return nil
	}
	var names []string
	for _, l := range links {
		if l.Name == to.Link {
			return nil
		}
		names = append(names, l.Name)
	}
	return fmt.Errorf("there is no %s link %s; configured: %s", to.Kind, to.Link, cmp.Or(strings.Join(names, ", "), "none"))
}

// observe returns what bridges change in the step that takes in.
func (b *bridges) observe(in bridge.Inbound) []store.Change {
	var changes []store.Change
	for _, a := range b.all() {
		if o, ok := a.service.(bridge.Observer); ok {
			changes = append(changes, o.Observe(in)...)
		}
	}
	return changes
}

// committed tells bridges what was committed.
func (b *bridges) committed(changes []store.Change) {
	for _, a := range b.all() {
		if o, ok := a.service.(bridge.Observer); ok {
			o.OnCommit(changes)
		}
	}
}

// undelivered tells bridges of an outbox entry that is given up, see [bridge.FailureObserver].
func (b *bridges) undelivered(ctx context.Context, l Letter) (about string, quiet bool, changes []store.Change) {
	u := bridge.Undelivered{To: l.To, Address: l.Address, ConvID: l.Conversation, MessageID: l.MessageID, Intent: l.Intent, Status: l.Status}
	if l.Err != nil {
		u.Code, u.Reason = l.Err.Code, l.Err.Message
	}
	for _, a := range b.all() {
		if o, ok := a.service.(bridge.FailureObserver); ok {
			what, silent, more := o.Undelivered(ctx, u)
			about, quiet, changes = cmp.Or(about, what), quiet || silent, append(changes, more...)
		}
	}
	return about, quiet, changes
}

// policy returns the access policy with the hold rules of bridges behind those of the owner.
func (n *Node) policy() acl.Policy {
	p := n.cfg.Policy
	for _, a := range n.bridges.all() {
		p.Hold = append(slices.Clip(p.Hold), a.Holds...)
	}
	return p
}

// linkMode returns the access mode of a link with the given policy.access. The default is approval, except that a link
// lets nobody ask if the node itself takes messages from listed peers only.
func (n *Node) linkMode(access acl.Mode) acl.Mode {
	switch {
	case access != "":
		return access
	case n.mode() == acl.Allowlist:
		return acl.Allowlist
	}
	return acl.Approval
}

// modeFor returns the access mode for the peer with a foreign address: that of its link. For a native peer, whose address
// is empty, and for a foreign one that came to a service of this process and not over a link, it is the node's own.
func (n *Node) modeFor(address string) acl.Mode {
	if m, ok := n.bridges.modes.Load(linkOf(address)); ok {
		return m.(acl.Mode)
	}
	return n.mode()
}

// policyFor returns the access policy for the peer with a foreign address, see [Node.modeFor].
func (n *Node) policyFor(address string) acl.Policy {
	p := n.policy()
	p.Mode = n.modeFor(address)
	return p
}

// bridgeAsked tells the owner that a bridge asks something: its question comes without a notice of its own.
func (n *Node) bridgeAsked(ask acl.Ask) []store.Change {
	if isOwnKind(ask.Kind) {
		return nil
	}
	return []store.Change{n.notices.Change(notify.Notice{
		Kind: "approval", Title: "something waits for your decision", Text: ask.Title, At: ask.Created,
	})}
}

// isOwnKind reports whether a question is one of the node's, and not a bridge's.
func isOwnKind(kind string) bool {
	return slices.Contains([]string{askMessage, askOutgoing, askTask, askInterrupted, askKeyChange}, kind)
}

// screened is the transport of a bridge that does not look for personal data itself: it tells the owner when such data
// leaves, and lets it leave (MS-40).
type screened struct {
	bridge.Transport
	n *Node
}

// Deliver implements [bridge.Transport].
func (s screened) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	if d.Attempt > 1 { // once for a message
		return s.Transport.Deliver(ctx, d)
	}
	if types := s.n.cfg.PersonalData(d.Message.Payload.Without("metadata")); len(types) > 0 {
		s.n.log.WarnContext(ctx, "personal data leaves over a bridge", "to", d.Address, "message_id", d.Message.ID, "types", types)
		notice := notify.Notice{
			Kind: "personal", Title: "a message with personal data left over a bridge", At: time.Now(),
			Text: strings.Join(types, ", ") + " to " + d.Address, Peer: d.To, Conv: store.ConvKey{Peer: string(d.To), ID: string(d.Message.Conversation)},
		}
		if err := s.n.store.Records().Apply(ctx, []store.Change{s.n.notices.Change(notice)}, notice.At); err != nil {
			s.n.log.ErrorContext(ctx, "store notice", "err", err)
		}
	}
	return s.Transport.Deliver(ctx, d)
}

// carry has the carriers try a delivery; carried is false if none knows a way.
func (n *Node) carry(ctx context.Context, d bridge.Delivery, peer client.Peer) (out bridge.Delivered, carried bool, err error) {
	for _, a := range n.bridges.all() {
		c, ok := a.service.(bridge.Carrier)
		if !ok {
			continue
		}
		answer, ok, err := c.Carry(ctx, d.To, d.Raw)
		if !ok && err == nil {
			continue
		}
		if err == nil {
			out, err = n.readCarried(ctx, d, peer, answer)
		}
		return out, true, err
	}
	return out, false, nil
}

// readCarried reads what a carrier brought back: the signed reply, or why the other side refused.
func (n *Node) readCarried(ctx context.Context, d bridge.Delivery, peer client.Peer, answer []byte) (bridge.Delivered, error) {
	v, err := wire.ParseObject(answer)
	if err != nil {
		return bridge.Delivered{}, err
	}
	if refused, ok := wire.ParseError(0, v); ok {
		refused.Message = wire.OneLine(refused.Message, 200)
		return bridge.Delivered{}, &client.SendError{Retry: refused.Retry, Refusal: refused}
	}
	reply, err := wire.ParseMessage(v)
	if err != nil {
		return bridge.Delivered{}, errors.Join(client.ErrReplyUnverified, err)
	}
	checked, err := n.verifier.Reply(ctx, d.Message, reply, peer, time.Now())
	if err != nil {
		return bridge.Delivered{}, err
	}
	return bridge.Delivered{Reply: &reply, Raw: answer, Digest: checked.Digest}, nil
}
