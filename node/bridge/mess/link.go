package mess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A link is the client side of a foreign exchange: requests of ours go there, and what is said there comes in. Whoever
// speaks there is a peer "mess:<link>/<id>"; the exchange itself vouches for it, nobody else.

// remote is a foreign exchange as a link reaches it: over REST, or as a directory of thread files.
type remote interface {
	// self is the name under which we speak there.
	self(ctx context.Context) string
	// learn keeps that name.
	learn(ctx context.Context, self string) error
	// create makes a thread. once names it, and what is said: it is the same where it is sent again.
	create(ctx context.Context, once string, body wire.Value) (ref string, err error)
	// say adds a block to a thread.
	say(ctx context.Context, once, ref string, b thread.Block) error
	// changed lists threads with what changed last, newest first.
	changed(ctx context.Context) ([]remoteThread, error)
	// view returns a thread with its messages, in order.
	view(ctx context.Context, ref string) (remoteView, error)
	// attachment returns a file that lies with a thread, of at most thread.MaxUpload bytes.
	attachment(ctx context.Context, ref, file string) ([]byte, error)
	probe(ctx context.Context) error
}

// remoteThread is one in a list.
type remoteThread struct {
	ref, requester, updated string
}

// LinkConfig is what a link is made of.
type LinkConfig struct {
	bridge.Link
	Token   client.Credential  // "": the link registers
	Home    *exchange.Exchange // ours
	Records store.Records

	Mesh    bridge.Mesh
	Notices *notify.Box // nil: the owner is told nothing
	HTTP    *client.HTTP
	Logger  *slog.Logger
	// Offer offers a thread of ours to a peer of the link.
	Offer func(ctx context.Context, ref, to, address string, changes []store.Change) error
}

// note tells the owner something about the link, in one unit with changes.
func (c *LinkConfig) note(ctx context.Context, title, text string, changes []store.Change) error {
	if c.Notices != nil {
		changes = append(slices.Clone(changes), c.Notices.Change(notify.Notice{Kind: Kind, Title: title, Text: text, At: time.Now()}))
	}
	return c.Records.Apply(ctx, changes, time.Now())
}

// link is our node as a participant of somebody else's exchange.
type link struct {
	cfg     LinkConfig
	x       *exchange.Exchange
	records store.Records
	log     *slog.Logger
	remote  remote
	wake    chan struct{}
	retry   chan struct{} // the owner tried the link, and it works

	// Of the goroutine that polls.
	known  map[string]string    // thread → what it looked like when all of it was taken in
	later  map[string]postponed // threads of which something could not be taken in, or read
	young  map[string]postponed // threads that were looked at, and whose date says too little
	hidden map[string]postponed // by conversation: threads that are open here, and that the list does not show
	asked  map[string]bool      // conversations about whose thread the owner is asked whether it may come in; nil: not known yet

	making sync.Mutex // held until a thread that we made there is known as ours, and while one is looked at

	mu     sync.Mutex
	status bridge.LinkStatus
	peers  map[string]bool
	ahead  map[string]exchange.File // files that the message names which is handed in, by their addresses
}

// maxPeers bounds the peers of a link that are counted.
const maxPeers = 10_000

// newLink returns the link that cfg describes. It starts nothing.
func newLink(cfg LinkConfig) (*link, error) {
	l := &link{
		cfg: cfg, x: cfg.Home, records: cfg.Records, log: cfg.Logger, wake: make(chan struct{}, 1), retry: make(chan struct{}, 1), peers: map[string]bool{},
		known: map[string]string{}, later: map[string]postponed{}, hidden: map[string]postponed{}, young: map[string]postponed{},
		status: bridge.LinkStatus{Name: cfg.Name, Kind: Kind, To: cfg.URL + cfg.Dir, State: bridge.LinkConnecting, Since: time.Now()},
	}
	if cfg.Dir != "" {
		l.remote = &dirRemote{dir: cfg.Dir, name: cfg.Options["as"], git: cfg.Options["git"] == "true", enclosed: l.enclosed}
		return l, nil
	}
	if cfg.HTTP == nil {
		return nil, errors.New("mess: a link needs a client")
	}
	l.remote = &restRemote{
		base: cfg.URL, exchange: cfg.Exchange, as: cfg.Options["as"], token: cfg.Token, http: cfg.HTTP,
		memory: linkMemory{&l.cfg},
	}
	return l, nil
}

// run polls until ctx ends. A link that is down stays so until the owner acts: [bridge.LinkDown].
func (l *link) run(ctx context.Context) error {
	poll := time.NewTicker(folder.PollEvery)
	defer poll.Stop()
	for {
		if err := l.sendWaiting(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("what is for a link could not be sent", "link", l.cfg.Name, "error", err)
		}
		err := l.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.stand(err)
		wake, next := l.wake, poll.C
		if l.isDown() {
			l.log.Error("a link is down until it is tried again: agentmesh links test "+l.cfg.Name, "link", l.cfg.Name, "error", err)
			wake, next = nil, nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-next:
		case <-l.retry:
		}
	}
}

// stand remembers how the link stands.
func (l *link) stand(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, text := bridge.LinkUp, ""
	if err != nil {
		state, text = bridge.LinkConnecting, linkFault(err).Error()
	}
	if joining, ok := errors.AsType[*joinError](err); ok && joining.final {
		state = bridge.LinkDown
	} else if e, sent := errors.AsType[*client.SendError](err); sent && !ok && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) {
		state = bridge.LinkDown
	}
	if l.status.State != state {
		l.status.State, l.status.Since = state, time.Now()
	}
	l.status.Error, l.status.Retry = text, time.Time{}
	if state == bridge.LinkConnecting {
		l.status.Retry = time.Now().Add(folder.PollEvery)
	}
}

func (l *link) isDown() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.status.State == bridge.LinkDown
}

// linkFault says in words for the owner why a link does not work.
func linkFault(err error) error {
	if joining, ok := errors.AsType[*joinError](err); ok {
		return joining
	}
	e, ok := errors.AsType[*client.SendError](err)
	switch {
	case !ok:
		return err
	case e.Refusal != nil && e.Status == http.StatusUnauthorized:
		return fmt.Errorf("the exchange does not know the key (HTTP 401: %s); give the link the right one in token_file, or none for it to register by itself", e.Refusal.Message)
	case e.Refusal != nil:
		return fmt.Errorf("the exchange answers HTTP %d: %s", e.Status, e.Refusal.Message)
	case e.Status != 0:
		return fmt.Errorf("the exchange answers HTTP %d, and nothing that can be read", e.Status)
	}
	return errors.New("the exchange cannot be reached")
}

// take hands one foreign message to the node, with the same checks as everybody's (MESS section 12).
func (l *link) take(ctx context.Context, from, ref, number string, b thread.Block, k knownThread) error {
	if k.Intent != "" {
		return l.takePlain(ctx, from, ref, number, b, k)
	}
	peer := cmp.Or(k.Peer, from)
	if k.Mine { // one conversation, one peer: that of the exchange to which we sent it
		peer = thread.ExchangeID
	}
	in, err := l.inbound(peer, ref+"/"+number, b)
	if err != nil {
		return err
	}
	in.ConvID = wire.ConversationID(k.Conv)
	in.Records = l.change(ref, k)
	if k.Next != "" {
		in.Records = append(in.Records, l.change(k.Next, knownThread{Conv: k.Conv, Mine: true})...)
	}
	in.Name = from
	out, err := l.cfg.Mesh.Accept(ctx, in)
	if out.Held && !k.Mine && l.asked != nil && len(l.asked) < maxNoted {
		l.asked[k.Conv] = true
	}
	return err
}

// inbound maps a block to a message of the mesh.
func (l *link) inbound(peer, id string, b thread.Block) (bridge.Inbound, error) {
	address := bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: peer}
	if err := address.Validate(); err != nil {
		return bridge.Inbound{}, thread.Bad("from", "is no name of a peer")
	}
	for i, e := range b { // public clients send bare codes (MESS-20)
		if err := e.Check(thread.EntryPath(i, e), time.Now(), true); err != nil {
			return bridge.Inbound{}, err
		}
	}
	b = slices.DeleteFunc(slices.Clone(b), func(e thread.Entry) bool { return e.Type == "v" })
	if len(b) == 0 {
		return bridge.Inbound{}, thread.Bad("MESS", "the block has no entry")
	}
	payload := wire.Obj(wire.TextField("action", b.Action()), wire.Field("mess", b.Tree()))
	raw := b.Tree().JSON()
	if len(raw) > wire.MaxMessage-8<<10 {
		return bridge.Inbound{}, thread.TooLarge("the block is too large for a message")
	}
	l.mu.Lock()
	if len(l.peers) < maxPeers {
		l.peers[peer] = true
	}
	l.mu.Unlock()
	now := time.Now()
	principal := address.String()
	if l.cfg.Policy.Access != "" { // the owner decided about the link as a whole
		principal = Kind + ":" + l.cfg.Name
	}
	return bridge.Inbound{
		Principal: principal, Peer: address.Pseudonym(), Address: address.String(), Verified: bridge.VerifiedNone,
		MessageID: wire.MessageID("msg_" + hashOf(l.cfg.Name, peer, id)), ConvID: wire.ConversationID("conv_" + hashOf(l.cfg.Name, peer, id)),
		Intent: Intent, Payload: address.Mark(payload, false), Time: now, Received: now, Raw: raw, Digest: sha256.Sum256(raw),
	}, nil
}

func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
