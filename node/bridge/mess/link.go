package mess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mess/exchange"
	"github.com/agentmesh/agentmesh/node/bridge/mess/folder"
	"github.com/agentmesh/agentmesh/node/bridge/mess/thread"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/waiting"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A link is the client of a foreign exchange: it sends our requests there, and receives messages from there. Each
// participant of the exchange is a peer "mess:<link>/<id>", and only the exchange vouches for the identity of that
// peer.

// remote is a foreign exchange: a server with a REST API, or a directory of thread files.
type remote interface {
	// self returns our name at the exchange, or "" if it is not known yet.
	self(ctx context.Context) string
	// setSelf stores our name at the exchange.
	setSelf(ctx context.Context, self string) error
	// create opens a thread. If it is called again with the same key, and the exchange recognizes repetitions, it opens
	// no second thread.
	create(ctx context.Context, key string, body wire.Value) (ref string, err error)
	// resume makes sure that everybody sees what an earlier call of create or post has written to a thread.
	resume(ctx context.Context, ref string) error
	// post adds a block to a thread; key makes repetitions recognizable.
	post(ctx context.Context, key, ref string, b thread.Block) error
	// list returns the threads. A server lists the newest change first, a directory has no such order.
	list(ctx context.Context) ([]remoteThread, error)
	// view returns a thread with its messages in order.
	view(ctx context.Context, ref string) (remoteView, error)
	// attachment returns a file of a thread, of at most thread.MaxUpload bytes.
	attachment(ctx context.Context, ref, file string) ([]byte, error)
	// pause returns the time until the next poll.
	pause() time.Duration
	// probe fails if the exchange does not answer or does not accept us.
	probe(ctx context.Context) error
}

// remoteThread is a thread in the list of a remote. updated changes when the thread changes, but some servers change it
// at most once a second.
type remoteThread struct {
	ref, requester, updated string
}

// LinkConfig is the configuration of a link.
type LinkConfig struct {
	bridge.Link
	Token   client.Credential  // "" if the link gets a key by registration
	Home    *exchange.Exchange // our own exchange
	Records store.Records

	Mesh    bridge.Mesh
	Notices *notify.Box // nil if the owner gets no notices
	HTTP    *client.HTTP
	Logger  *slog.Logger
	// Offer offers one of our threads to a peer of the link.
	Offer func(ctx context.Context, ref, to, address string, changes []store.Change) error
}

// notifyOwner stores a notice to the owner about the link, in one transaction with changes.
func (c *LinkConfig) notifyOwner(ctx context.Context, title, text string, changes []store.Change) error {
	return c.Records.Apply(ctx, append(ownerNotice(c.Notices, title, text), changes...), time.Now())
}

// ownerNotice returns the change that stores a notice to the owner, or none if the owner gets no notices.
func ownerNotice(box *notify.Box, title, text string) []store.Change {
	if box == nil {
		return nil
	}
	return []store.Change{box.Change(notify.Notice{Kind: Kind, Title: title, Text: text, At: time.Now()})}
}

// link makes our node a participant of a foreign exchange.
type link struct {
	cfg     LinkConfig
	x       *exchange.Exchange
	records store.Records
	log     *slog.Logger
	remote  remote
	wake    chan struct{} // has a value if the next poll should begin now
	keeper  *bridge.Keeper

	looks map[string]look // by thread; used only by the goroutine that polls

	createMu   sync.Mutex // held while one of our threads is created at the exchange and recorded, and while a thread is checked
	lostCreate time.Time  // when a creation last failed that the exchange may have carried out; under createMu

	mu         sync.Mutex
	peers      map[string]bool          // the peers from which messages came
	opened     []string                 // threads that were recorded as ours, perhaps after a look passed over them
	prefetched map[string]exchange.File // prefetched files of the message that is being received, by address
}

// maxPeers bounds the peers of a link that are counted.
const maxPeers = 10_000

// newLink returns a link. It starts nothing.
func newLink(cfg LinkConfig) *link {
	l := &link{
		cfg: cfg, x: cfg.Home, records: cfg.Records, log: cfg.Logger, wake: make(chan struct{}, 1), peers: map[string]bool{},
		looks:  map[string]look{},
		keeper: bridge.NewKeeper(bridge.LinkStatus{Name: cfg.Name, Kind: Kind, To: cfg.URL + cfg.Dir}, cfg.Logger.With("link", cfg.Name)),
	}
	l.keeper.First = folder.PollEvery
	if cfg.Dir != "" {
		l.remote = &dirRemote{dir: cfg.Dir, name: cfg.Options["as"], git: cfg.Options["git"] == "true", findEnclosure: l.findEnclosure}
		return l
	}
	l.remote = &restRemote{
		base: cfg.URL, exchange: cfg.Exchange, as: cfg.Options["as"], token: cfg.Token, http: cfg.HTTP,
		cfg: &l.cfg,
	}
	return l
}

// Run polls until ctx ends. A link that is down waits until the owner tests it (see [bridge.LinkDown]).
func (l *link) Run(ctx context.Context) error {
	l.keeper.Run(ctx, l.pollUntilFailure)
	return nil
}

// pollUntilFailure polls until a poll fails.
func (l *link) pollUntilFailure(ctx context.Context) bridge.End {
	for isUp := false; ; isUp = true {
		if err := l.poll(ctx); err != nil {
			return bridge.End{Fault: explainLinkError(err).Error(), Down: mustOwnerAct(err)}
		}
		l.keeper.Set(bridge.LinkUp, "")
		if !isUp {
			l.cfg.Mesh.Reachable(addressAt(l.cfg.Name, "")) // all peers of the link
		}
		select {
		case <-ctx.Done():
			return bridge.End{}
		case <-l.wake:
		case <-time.After(l.remote.pause()):
		}
	}
}

// mustOwnerAct reports whether polls fail until the owner acts.
func mustOwnerAct(err error) bool {
	_, isFault := errors.AsType[*bridge.LinkFault](err)
	_, isNotYet := errors.AsType[notYet](err)
	e, isSendErr := errors.AsType[*client.SendError](err)
	return isFault || isSendErr && !isNotYet && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden)
}

func (l *link) isDown() bool { return l.keeper.Status().State == bridge.LinkDown }

// explainLinkError returns the failure of a call to the exchange in words for the owner.
func explainLinkError(err error) error {
	if fault, ok := errors.AsType[*bridge.LinkFault](err); ok {
		return fault
	}
	if why, ok := errors.AsType[notYet](err); ok {
		return why
	}
	e, ok := errors.AsType[*client.SendError](err)
	switch {
	case !ok:
		return err
	case e.Refusal != nil && e.Status == http.StatusUnauthorized:
		return fmt.Errorf("the exchange does not know the key (HTTP 401: %s): put the right key into token_file, or remove it so that the link registers by itself", e.Refusal.Message)
	case e.Refusal != nil:
		return fmt.Errorf("the exchange answers HTTP %d: %s", e.Status, e.Refusal.Message)
	case e.Status != 0:
		return fmt.Errorf("the exchange answers HTTP %d without a readable error", e.Status)
	}
	return errors.New("the exchange cannot be reached")
}

// accept passes a foreign message to the node, which checks it like any other message (MESS section 12). localID
// identifies the message within the thread ref.
func (l *link) accept(ctx context.Context, from, ref, localID string, b thread.Block, k shared) error {
	if k.Intent != "" { // a conversation in plain text
		return l.acceptText(ctx, from, ref, localID, b, k)
	}
	peer := cmp.Or(k.Peer, from)
	if k.Mine { // the peer of the whole conversation is the exchange to which we sent the thread
		peer = thread.ExchangeID
	}
	in, err := l.newBlockInbound(peer, ref+"/"+localID, b)
	if err != nil {
		return err
	}
	in.ConvID = wire.ConversationID(k.Conv)
	in.Records = []store.Change{l.change(k)}
	in.Name = from
	_, err = l.cfg.Mesh.Accept(ctx, in)
	return err
}

// newBlockInbound returns the message of the mesh that carries a block.
func (l *link) newBlockInbound(peer, id string, b thread.Block) (bridge.Inbound, error) {
	for i, e := range b { // public clients send bare codes (MESS-20)
		if err := e.Check(thread.EntryPath(i, e), time.Now(), thread.Lax); err != nil {
			return bridge.Inbound{}, err
		}
	}
	b = slices.DeleteFunc(slices.Clone(b), func(e thread.Entry) bool { return e.Type == "v" })
	if len(b) == 0 {
		return bridge.Inbound{}, thread.Bad("MESS", "the block has no entry")
	}
	return l.newInbound(peer, id, Intent, wire.Obj(wire.TextField("action", b.Action()), wire.Field("mess", b.Tree())), b.Tree().JSON())
}

// newInbound returns the message of the mesh for something that a peer said. raw is stored as the original message.
func (l *link) newInbound(peer, id string, intent wire.Intent, payload wire.Value, raw []byte) (bridge.Inbound, error) {
	address := addressAt(l.cfg.Name, peer)
	if err := address.Validate(); err != nil {
		return bridge.Inbound{}, thread.Bad("from", "is not a valid name of a peer")
	}
	if len(raw) > wire.MaxMessage-8<<10 { // leave room for what the node adds to the block
		return bridge.Inbound{}, thread.TooLarge("the message is too large")
	}
	l.mu.Lock()
	if len(l.peers) < maxPeers {
		l.peers[peer] = true
	}
	l.mu.Unlock()
	const verified = false // the exchange vouches for the peer, but the peer proves nothing
	now := time.Now()
	principal := address.String()
	if l.cfg.Policy.Access != "" { // the owner decided about all peers of the link together
		principal = Kind + ":" + l.cfg.Name
	}
	return bridge.Inbound{
		Principal: principal, Peer: address.Pseudonym(), Address: address.String(), Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + wire.HashOf(l.cfg.Name, peer, id)), ConvID: wire.ConversationID("conv_" + wire.HashOf(l.cfg.Name, peer, id)),
		Intent: intent, Payload: address.Mark(payload, verified), Time: now, Received: now, Raw: raw, Digest: sha256.Sum256(raw),
	}, nil
}

func (l *link) wakePoll() {
	waiting.Wake(l.wake)
}
