package node

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/acl/rate"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
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
