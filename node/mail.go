package node

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/mailreader"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

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
	id, _ := m.n.outbox.NewID(now, 0) // 0: it need not follow other entries of the conversation
	entry := OutboxEntry{Raw: raw, Signer: m.n.fingerprint(), OutboxEntry: owner.OutboxEntry{
		ID: id, State: SendQueued, To: answer.To, Conversation: answer.Conversation, MessageID: answer.ID, First: answer.ID,
		Intent: answer.Intent, Action: answer.Action(), Created: now, Signed: answer.Time, InFlight: m.n.outbox.IsDeliverer(), Fetchable: true,
	}}
	change := entry.change()
	change.Max = maxQueued
	return m.n.store.Records().Apply(ctx, []store.Change{change}, now)
}
