package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// bridges holds the bridges connected to a node. The zero value is ready to use and safe for concurrent use.
type bridges struct {
	modes    sync.Map // "kind:link" to acl.Mode
	progress waiting.Feeds[bridge.Progress]

	mu       sync.RWMutex
	attached []connectedBridge // in order of connection; replaced, never changed
}

// connectedBridge is a kind of bridge with its service.
type connectedBridge struct {
	bridge.Kind
	service bridge.Transport
}

// links returns the links of the service, and true if the service can have links.
func (a connectedBridge) links() ([]bridge.LinkStatus, bool) {
	linked, ok := a.service.(interface{ Links() []bridge.LinkStatus })
	if !ok {
		return nil, false
	}
	return linked.Links(), true
}

// canHandle reports whether the bridge handles messages of an intent. A foreign kind needs a link for that.
func (a connectedBridge) canHandle(intent wire.Intent) bool {
	links, _ := a.links()
	return acl.Match(a.Intents, string(intent)) && (a.Native || len(links) > 0)
}

// Attach puts the links of a kind under the node's access rules: policy.access of a link applies to every peer behind
// that link. Attach returns the node as the bridge sees it. If a link has policy keys that the kind does not support,
// the error names these keys of the first such link.
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

// Detach forgets the access rules of a link that was removed.
func (n *Node) Detach(kind, link string) { n.bridges.modes.Delete(kind + ":" + link) }

// Connect makes service deliver the node's messages to addresses of the kind. If service also implements
// [bridge.Handler], [bridge.Observer], [bridge.FailureObserver], [bridge.Answerer] or [bridge.Carrier], it has that
// role too.
func (n *Node) Connect(kind bridge.Kind, service bridge.Transport) {
	n.bridges.mu.Lock()
	defer n.bridges.mu.Unlock()
	n.bridges.attached = append(slices.Clip(n.bridges.attached), connectedBridge{kind, service})
}

func (b *bridges) all() []connectedBridge {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.attached
}

// servicesOf returns the connected services that implement T.
func servicesOf[T any](b *bridges) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, a := range b.all() {
			if s, ok := a.service.(T); ok && !yield(s) {
				return
			}
		}
	}
}

func (b *bridges) find(kind string) (connectedBridge, bool) {
	for _, a := range b.all() {
		if a.Name == kind {
			return a, true
		}
	}
	return connectedBridge{}, false
}

// route returns the route to the bridge that handles an intent.
func (b *bridges) route(intent wire.Intent) (Route, bool) {
	for _, a := range b.all() {
		h, ok := a.service.(bridge.Handler)
		if ok && a.canHandle(intent) {
			return Route{Pattern: a.Intents, Name: a.Name, Handler: bridgeHandler{h}, Repeatable: a.Repeatable, Foreign: true, Receipts: a.Receipts, Duty: a.Name}, true
		}
	}
	return Route{}, false
}

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

// silence returns how long conversations of an intent may be silent, or 0 for the default.
func (b *bridges) silence(intent wire.Intent) time.Duration {
	for _, a := range b.all() {
		if d := a.Silence[intent]; d > 0 {
			return d
		}
	}
	return 0
}

// screen returns an error for the owner if the bridge refuses a message with this payload.
func (b *bridges) screen(ctx context.Context, to bridge.Address, payload wire.Value) error {
	a, _ := b.find(to.Kind)
	if s, ok := a.service.(bridge.Screener); ok {
		if err := s.Screen(ctx, to, payload); err != nil {
			return owner.Fault(http.StatusForbidden, err.Error(), "")
		}
	}
	return nil
}

// checkAddress returns an error for the owner if the address names a link that is not configured. Some bridges have no
// links, and some peers connect without a configured link.
func (b *bridges) checkAddress(to bridge.Address) error {
	a, _ := b.find(to.Kind)
	links, ok := a.links()
	if !ok || to.Link == a.Inbound || a.Web && to.Link == bridge.WebLink {
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

// observe returns the changes that the bridges add to the unit that accepts an incoming message.
func (b *bridges) observe(in bridge.Inbound) []store.Change {
	var changes []store.Change
	for o := range servicesOf[bridge.Observer](b) {
		changes = append(changes, o.Observe(in)...)
	}
	return changes
}

// reportFailure tells the bridges about an outbox entry that failed for good. about is the subject for the notice to
// the owner; quiet means that the owner gets no notice. See [bridge.FailureObserver].
func (b *bridges) reportFailure(ctx context.Context, e OutboxEntry) (about string, quiet bool, changes []store.Change) {
	u := bridge.Undelivered{To: e.To, Address: e.Address, ConvID: e.Conversation, MessageID: e.MessageID, Intent: e.Intent, Status: e.Status}
	if e.Err != nil {
		u.Code, u.Reason = e.Err.Code, e.Err.Message
	}
	for o := range servicesOf[bridge.FailureObserver](b) {
		subject, silent, more := o.Undelivered(ctx, u)
		about, quiet, changes = cmp.Or(about, subject), quiet || silent, append(changes, more...)
	}
	return about, quiet, changes
}

// policy returns the owner's access policy, followed by the hold rules of the bridges.
func (n *Node) policy() acl.Policy {
	p := n.cfg.Policy
	for _, a := range n.bridges.all() {
		p.Hold = append(slices.Clip(p.Hold), a.Holds...)
	}
	return p
}

// outgoingPolicy returns policy for the messages of an author (see [Outgoing.Via]).
func (n *Node) outgoingPolicy(via string) acl.Policy {
	p := n.policy()
	for _, a := range n.bridges.all() {
		if via == "owner" {
			p.Hold = append(slices.Clip(p.Hold), a.OwnerHolds...)
		}
	}
	return p
}

// linkMode returns the access mode of a link with the given policy.access. The default is approval, or allowlist if
// that is the node's own mode.
func (n *Node) linkMode(access acl.Mode) acl.Mode {
	switch {
	case access != "":
		return access
	case n.mode() == acl.Allowlist:
		return acl.Allowlist
	}
	return acl.Approval
}

// modeFor returns the access mode for a peer with the given foreign address: that of its link, or else the node's own.
func (n *Node) modeFor(address string) acl.Mode {
	if m, ok := n.bridges.modes.Load(linkOf(address)); ok {
		return m.(acl.Mode)
	}
	return n.mode()
}

func (n *Node) policyFor(address string) acl.Policy {
	p := n.policy()
	p.Mode = n.modeFor(address)
	return p
}

// noticeBridgeAsk returns the notice about a bridge's question. It returns nil for a question of the node itself, which
// comes with its own notice.
func (n *Node) noticeBridgeAsk(ask acl.Ask) []store.Change {
	if isOwnKind(ask.Kind) {
		return nil
	}
	return []store.Change{n.notices.Change(notify.Notice{
		Kind: "approval", Title: "something waits for your decision", Text: ask.Title, At: ask.Created, Ask: ask.ID,
	})}
}

func isOwnKind(kind string) bool {
	return slices.Contains([]string{owner.AskMessage, owner.AskOutgoing, owner.AskTask, owner.AskInterrupted, owner.AskKeyChange, owner.AskQuestion}, kind)
}

// screened wraps the transport of a bridge that does not look for personal data itself. It delivers a message with
// personal data, but notifies the owner (MS-40).
type screened struct {
	bridge.Transport
	n *Node
}

// Deliver implements [bridge.Transport].
func (s screened) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	if d.Attempt > 1 { // one notice for each message
		return s.Transport.Deliver(ctx, d)
	}
	if types := s.n.cfg.PersonalData(d.Message.Payload.Without("metadata")); len(types) > 0 {
		s.n.log.WarnContext(ctx, "personal data leaves over a bridge", "to", d.Address, "message_id", d.Message.ID, "types", types)
		notice := notify.Notice{
			Kind: "personal", Title: "a message with personal data left over a bridge", At: time.Now(),
			Text: strings.Join(types, ", ") + " to " + d.Address, Peer: d.To, Conv: store.ConvKey{Peer: string(d.To), ID: string(d.Message.Conversation)},
		}
		if err := s.n.store.Records().Apply(ctx, []store.Change{s.n.notices.Change(notice)}, notice.At); err != nil {
			s.n.log.ErrorContext(ctx, "notice not stored; the owner will not see it", "err", err)
		}
	}
	return s.Transport.Deliver(ctx, d)
}

// tryCarriers offers a delivery to the carriers in turn. handled is false if no carrier has a way to the peer.
func (e endpoint) tryCarriers(ctx context.Context, d bridge.Delivery, peer client.Peer) (out bridge.Delivered, handled bool, err error) {
	for c := range servicesOf[bridge.Carrier](&e.n.bridges) {
		answer, ok, err := c.Carry(ctx, d.To, d.Raw)
		if !ok && err == nil {
			continue
		}
		if err == nil {
			out, err = e.readCarrierAnswer(ctx, d, peer, answer)
		}
		return out, true, err
	}
	return out, false, nil
}

// readCarrierAnswer reads the signed reply or the error that a carrier returned.
func (e endpoint) readCarrierAnswer(ctx context.Context, d bridge.Delivery, peer client.Peer, answer []byte) (bridge.Delivered, error) {
	if v, err := wire.ParseObject(answer); err == nil {
		if refusal, ok := wire.ParseError(0, v); ok {
			refusal.Message = wire.OneLine(refusal.Message, 200)
			return bridge.Delivered{}, &client.SendError{Retry: refusal.Retry, Refusal: refusal}
		}
	}
	return e.readReply(ctx, d, peer, client.Answer{Body: answer})
}

// nsOpened has one record for each conversation that a peer opened over a metered link.
const nsOpened = "node/opened"

// isMetered reports whether the message came over a link with a meter, which then replaces the node's own limits.
func (a *acceptance) isMetered() bool { return a.in.Meter != nil && a.in.Native == nil }

// charge implements the part of line 12 of the receive table (docs/protocol.md) that counts messages (AM-41). Only the
// first successful call charges the message.
func (a *acceptance) charge() error {
	if a.charged {
		return nil
	}
	var wait time.Duration
	if a.isMetered() {
		wait, a.charged = a.in.Meter.Charge(a.in.Draw, a.now)
	} else {
		a.drawn = acl.Charge{Sender: a.in.Principal, Conv: a.key, New: a.unit.IsNew(), Known: !a.verdict.Stranger, Token: a.in.Verified == bridge.VerifiedBearer, Sources: a.in.Sources}
		wait, a.charged = a.n.meter.Charge(a.drawn, a.now)
	}
	if !a.charged {
		return wire.ErrRateLimited.After(wait)
	}
	return nil
}

// refundCharge undoes the charge of a message that was refused because too many messages wait for the owner (AM-41). A
// link's own meter gives nothing back.
func (a *acceptance) refundCharge() {
	if a.charged && !a.isMetered() {
		a.n.meter.Return(a.drawn, time.Now())
		a.charged = false
	}
}

// linkOf returns the link of a foreign address, for example "mew:lab".
func linkOf(address string) string {
	link, _, _ := strings.Cut(address, "/")
	return link
}

// openedRecord returns the change that stores a record of the conversation that this message opens over a metered link.
// The record may outlive the conversation; then countOpen removes it.
func (a *acceptance) openedRecord() []store.Change {
	if !a.isMetered() || !a.unit.IsNew() || a.in.Meter.MaxOpen() == 0 {
		return nil
	}
	return []store.Change{{IfRev: store.Any, Record: store.Record{
		NS: nsOpened, Key: a.key.Peer + "/" + a.key.ID, Body: wire.MustMarshal(a.key), Terms: []string{linkOf(a.in.Address)},
		Expires: a.now.Add(a.n.cfg.Retention),
	}}}
}

// countOpen returns how many open conversations count against the limit of the message's link. If the link has fewer
// records than its limit, countOpen returns their number, although some conversations may have ended. Otherwise it
// loads the conversations and removes the records of ended ones.
func (a *acceptance) countOpen(ctx context.Context) (int, error) {
	var all []store.Record
	for rec, err := range store.AllRecords(ctx, a.n.store.Records(), nsOpened, linkOf(a.in.Address), a.now) {
		if err != nil {
			return 0, err
		}
		all = append(all, rec)
	}
	if len(all) < a.in.Meter.MaxOpen() {
		return len(all), nil
	}
	var ended []store.Change
	for _, rec := range all {
		key, err := store.Decode[store.ConvKey](rec)
		if err != nil {
			return 0, err
		}
		thread, err := a.n.book.Load(ctx, key, a.now)
		if err != nil {
			return 0, err
		}
		if !thread.IsOpen() {
			ended = append(ended, store.Change{IfRev: store.Any, Delete: true, Record: store.Record{NS: nsOpened, Key: rec.Key}})
		}
	}
	if len(ended) > 0 {
		if err := a.n.store.Records().Apply(ctx, ended, a.now); err != nil {
			return 0, err
		}
	}
	return len(all) - len(ended), nil
}
