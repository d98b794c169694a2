package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/mailreader"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store"
)

// Receive calls [Node.ReceiveFrom] for a body of unknown origin.
func (n *Node) Receive(ctx context.Context, body []byte) (bridge.Outcome, error) {
	return n.ReceiveFrom(ctx, body, nil)
}

// ReceiveFrom takes the body of a POST to the endpoint through lines 3 to 16 of the receive table in docs/protocol.md.
// The caller has checked the size of the body and charged the sender's address (lines 1 and 2). sources are the address
// and the networks of the request, for the rate limits. Every error is a *[wire.Error].
func (n *Node) ReceiveFrom(ctx context.Context, body []byte, sources []rate.Source) (bridge.Outcome, error) {
	in, err := n.readMessage(ctx, body, client.Origin{Sources: sources}) // lines 3 to 8
	if err != nil {
		n.logMessage(ctx, in, bridge.Outcome{}, err)
		n.countUnproven(in, err)
		return bridge.Outcome{}, err
	}
	return n.Accept(ctx, in) // lines 9 to 16
}

// readMessage implements lines 3 to 8: it parses the message and authenticates the sender. With an error, it returns
// what the message claims about its sender, which is not proven.
func (n *Node) readMessage(ctx context.Context, body []byte, origin client.Origin) (in bridge.Inbound, err error) {
	m, err := n.verifier.Read(body) // lines 3, 4
	if err != nil {
		return in, err
	}
	in = bridge.Inbound{
		Principal: string(m.From), Peer: m.From, MessageID: m.ID, ConvID: m.Conversation, Intent: m.Intent, Payload: m.Payload,
		Time: m.Time, Raw: body, Native: &m,
	}
	standing, err := n.checkRecipient(ctx, m) // lines 5, 6
	if err != nil {
		return in, err
	}
	origin.Known = standing.Known()
	checked, err := n.verifier.Authenticate(ctx, m, origin, time.Now()) // lines 7, 8
	if err != nil {
		return in, err
	}
	if in.Sources, in.EndpointProven, err = n.sourcesOf(ctx, checked.Peer, origin.Sources); err != nil {
		return in, err
	}
	in.Name, in.Verified, in.Digest, in.Received = checked.Card.Name, bridge.VerifiedSignature, checked.Digest, time.Now()
	in.Unproven = unprovenKeyOf(checked.Peer)
	return in, nil
}

// checkRecipient implements lines 5 and 6: the message is for this agent, the node is not paused, and the sender is not
// blocked. The block list comes before the signature, because reading the list is cheaper than verifying a signature
// (AM-25). standing is the standing of the agent that the message names as its sender.
func (n *Node) checkRecipient(ctx context.Context, m wire.Message) (standing acl.Standing, err error) {
	if m.To != n.ID() {
		return "", wire.ErrRecipient
	}
	if n.paused.Load() {
		return "", wire.ErrPaused
	}
	standing, err = n.rules.Standing(ctx, string(m.From), time.Now())
	if err != nil {
		return "", toWireError(err)
	}
	if standing == acl.Blocked {
		return "", wire.ErrNotAllowed
	}
	return standing, nil
}

// sourcesOf returns what the rate limits charge for a message: the sources of its request, the credential that
// registered the peer's card, and the peer's host. The host counts only if the peer's endpoint is proven and is not a
// mailbox, because many agents share the host of a mailbox (AM-42). proven reports whether the host counts.
func (n *Node) sourcesOf(ctx context.Context, peer client.Peer, request []rate.Source) (sources []rate.Source, proven bool, err error) {
	sources = slices.Clone(request)
	isInside := slices.ContainsFunc(n.cfg.Directories, func(d *client.Directory) bool { return d.IsInside() && d.Base == peer.Directory })
	if isInside && n.cfg.CredentialOf != nil {
		credential, err := n.cfg.CredentialOf(ctx, peer.Card.ID)
		if err != nil {
			return nil, false, toWireError(err)
		}
		if credential != "" {
			sources = append(sources, rate.Source{Key: "credential:" + credential, Width: 1})
		}
	}
	u, err := url.Parse(peer.Card.Endpoint)
	if err != nil || !peer.EndpointProven || strings.HasSuffix(u.Path, "/mailbox/"+string(peer.Card.ID)) {
		return sources, false, nil
	}
	return append(sources, rate.Source{Key: "host:" + strings.ToLower(u.Hostname()), Width: 1}), true, nil
}

// originalMessage returns the message of an item as received, or the zero Message for a foreign item.
func (n *Node) originalMessage(ctx context.Context, item Item) (wire.Message, error) {
	if item.Address != "" {
		return wire.Message{}, nil
	}
	const page = 100
	for after := uint64(0); ; {
		entries, err := n.book.Transcript(ctx, item.key(), after, page)
		if err != nil {
			return wire.Message{}, fmt.Errorf("read transcript: %w", err)
		}
		for _, e := range entries {
			if e.MessageID == string(item.MessageID) && !e.Out {
				return parseStored(e.Raw)
			}
			after = e.N
		}
		if len(entries) < page {
			return wire.Message{}, fmt.Errorf("message %s: %w", item.MessageID, store.ErrNotFound)
		}
	}
}

// isBadSignature reports whether err refuses a bad signature, which counts as a fault of the sending address (AM-43).
func isBadSignature(err error) bool { return errors.Is(err, wire.ErrSignature) }

// Path is the HTTP path of a node's endpoint.
const Path = "/agentmesh"

// Mount adds the endpoint to e. addresses is the guard of the public listener, which implements line 2 of the receive
// table in docs/protocol.md; nil means no guard.
func (n *Node) Mount(e *echo.Echo, addresses *httpapi.Addresses) {
	e.Match([]string{http.MethodGet, http.MethodHead}, Path, n.getCard)
	e.POST(Path, func(c echo.Context) error { return n.postMessage(c, addresses) })
}

// getCard serves the node's card, so that a directory can compare it with its own copy (AM-63).
func (n *Node) getCard(c echo.Context) error {
	c.Response().Header().Set("Cache-Control", "public, max-age=300")
	return httpapi.Raw(c, http.StatusOK, n.Card().WithoutPrivateLists().JSON()) // AM-6
}

func (n *Node) postMessage(c echo.Context, addresses *httpapi.Addresses) error {
	body, err := httpapi.Body(c, wire.MaxMessage) // line 1
	if err != nil {
		return err
	}
	if err := addresses.Check(c); err != nil { // line 2
		return err
	}
	// The sender may wait for a hook; its client gives up after 30 s (AM-32).
	if err := httpapi.KeepOpen(c, n.cfg.SyncDeadline+10*time.Second); err != nil {
		return err
	}
	out, err := n.ReceiveFrom(c.Request().Context(), body, addresses.Sources(c))
	if err != nil {
		if isBadSignature(err) {
			addresses.Fault(c.Request().Context(), httpapi.ClientAddr(c))
		}
		return err
	}
	httpapi.Private(c)
	if out.Status == http.StatusServiceUnavailable { // no answer is stored, or it could not be read (AM-28)
		c.Response().Header().Set("Retry-After", "10")
	}
	return httpapi.Raw(c, out.Status, out.Raw)
}

// WellKnown returns the document in which the node publishes its limits (AM-81).
func (n *Node) WellKnown() wire.WellKnown {
	doc := wire.WellKnown{
		AgentMesh: wire.Version, AgentID: n.ID(), Endpoint: n.Card().Endpoint,
		MaxMessage: wire.MaxMessage, MaxCard: wire.MaxCard,
		WindowPast: int(n.cfg.Window.Past.Seconds()), WindowFuture: int(n.cfg.Window.Future.Seconds()),
	}
	for _, f := range signing.Forms() {
		doc.CanonicalForms = append(doc.CanonicalForms, f.String())
	}
	for _, k := range []signing.Kind{signing.KindEd25519, signing.KindAge, signing.KindOpenPGP} {
		doc.KeyKinds = append(doc.KeyKinds, string(k))
	}
	return doc
}

const maxMailAge = 7 * 24 * time.Hour // the maximum age of mail (AM-20, AM-68)

// CheckMail makes the node look into its mailboxes now. The directory in the same process calls it.
func (n *Node) CheckMail() { n.mailArrived.Broadcast() }

// read reads the mailbox at dir until ctx ends.
func (m mailbox) read(ctx context.Context, dir *client.Directory) {
	n := m.n
	mailreader.New(mailreader.Config{
		Node: m, Dir: dir, Endpoint: n.cfg.Relay != nil && n.cfg.Relay.Base == dir.Base, News: n.mailArrived.Wait, Logger: n.log,
	}).Run(ctx)
}

// mailbox is the node as [mailreader.Reader] sees it.
type mailbox struct{ n *Node }

// ID implements [mailreader.Node].
func (m mailbox) ID() wire.AgentID { return m.n.ID() }

// AwaitListing implements [mailreader.Node].
func (m mailbox) AwaitListing(ctx context.Context, dir *client.Directory) bool {
	return m.n.registrar.AwaitListing(ctx, dir)
}

// Credential implements [mailreader.Node].
func (m mailbox) Credential(dir *client.Directory) client.Credential {
	return m.n.registrar.Credential(dir)
}

// Calls implements [mailreader.Node].
func (m mailbox) Calls() mailreader.Calls {
	for calls := range servicesOf[mailreader.Calls](&m.n.bridges) {
		return calls
	}
	return nil
}

// AnswerNow implements [mailreader.Node].
func (m mailbox) AnswerNow(ctx context.Context, item client.RelayItem) []byte {
	out, err := m.n.Receive(ctx, item.Message)
	if refusal, ok := errors.AsType[*wire.Error](err); ok {
		return refusal.AppendJSON(nil)
	} else if err != nil {
		return nil
	}
	return out.Raw
}

// AcceptMail implements [mailreader.Node]. The message is judged at the time when the mailbox received it (AM-20). Its
// answer leaves through the outbox, because nobody waits for it.
func (m mailbox) AcceptMail(ctx context.Context, item client.RelayItem) error {
	n := m.n
	now := time.Now()
	if item.Created.Before(now.Add(-maxMailAge)) {
		n.log.Info("mail is too old", "relay_id", item.ID, "created", item.Created)
		return nil
	}
	in, err := n.readMessage(ctx, item.Message, client.Origin{Mailed: item.Created}) // the network address of the sender is unknown
	if err == nil {
		in.Received, in.Unattended = item.Created, true
		if in.Received.After(now) {
			in.Received = now // the directory's clock is ahead
		}
		var out bridge.Outcome
		if out, err = n.Accept(ctx, in); err == nil && out.Duplicate && out.Status == http.StatusOK {
			err = m.enqueueAnswer(ctx, out.Raw, now) // the answer of AnswerNow came too late for the sender
		}
	}
	refusal, ok := errors.AsType[*wire.Error](err)
	switch {
	case err == nil:
		return nil
	case ok && !refusal.Retry:
		n.log.Info("mail refused", "relay_id", item.ID, "code", refusal.Code, "reason", refusal.Message)
		return nil
	case !ok && errors.Is(err, store.ErrQuota), errors.Is(err, waiting.ErrNoPlace): // other mail need not wait until the outbox or the hook has room
		return wire.ErrRateLimited.Because(err)
	}
	return err
}

// enqueueAnswer puts an answer of ours that is already signed and stored into the outbox. It does nothing if the outbox
// has or had the answer: no limit counts repeats, so a sender could fill the outbox with them. A receiver recognizes a
// second copy by the message id (AM-21).
func (m mailbox) enqueueAnswer(ctx context.Context, raw []byte, now time.Time) error {
	answer, err := parseStored(raw)
	if err != nil {
		return err
	}
	for e, err := range m.n.allEntries(ctx, convTerm(store.ConvKey{Peer: string(answer.To), ID: string(answer.Conversation)})) {
		if err != nil || e.First == answer.ID {
			return err
		}
	}
	thread, err := m.n.book.Load(ctx, store.ConvKey{Peer: string(answer.To), ID: string(answer.Conversation)}, now)
	if err != nil {
		return err
	}
	id, _ := m.n.outbox.newID(now, thread.Conversation().LastSent)
	entry := OutboxEntry{Raw: raw, Signer: m.n.fingerprint(), OutboxEntry: owner.OutboxEntry{
		ID: id, State: owner.SendQueued, To: answer.To, Conversation: answer.Conversation, MessageID: answer.ID, First: answer.ID,
		Intent: answer.Intent, Action: answer.Action(), Created: now, Signed: answer.Time, InFlight: m.n.work.IsRunning(nsOutbox), Fetchable: true,
	}}
	change := entry.change()
	change.Max = maxQueued
	return m.n.store.Records().Apply(ctx, []store.Change{change}, now)
}
