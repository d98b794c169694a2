package mess

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// A link is the client side of a foreign exchange: requests of ours go there, and what is said there comes in. Whoever
// speaks there is a peer "mess:<link>/<id>"; the exchange itself vouches for it, nobody else.

// remote is a foreign exchange as a link reaches it: over REST, or as a directory of thread files.
type remote interface {
	// self is the name under which we speak there.
	self(ctx context.Context) string
	// create makes a thread. once names it, and what is said: it is the same where it is sent again.
	create(ctx context.Context, once string, body wire.Value) (ref string, err error)
	// say adds a block to a thread.
	say(ctx context.Context, once, ref string, b Block) error
	// changed lists threads with what changed last, newest first.
	changed(ctx context.Context) ([]remoteThread, error)
	// view returns a thread with its messages, in order.
	view(ctx context.Context, ref string) (remoteView, error)
	// attachment returns a file that lies with a thread, of at most maxUpload bytes.
	attachment(ctx context.Context, ref, file string) ([]byte, error)
	probe(ctx context.Context) error
}

// remoteThread is one in a list.
type remoteThread struct {
	ref, requester, updated string
}

type link struct {
	b      *Bridge
	cfg    bridge.Link
	remote remote
	wake   chan struct{}

	// Of the goroutine that polls.
	known  map[string]string    // thread → what it looked like when all of it was taken in
	later  map[string]postponed // threads of which something could not be taken in, or read
	hidden map[string]postponed // by conversation: threads that are open here, and that the list does not show
	asked  map[string]bool      // conversations about whose thread the owner is asked whether it may come in; nil: not known yet

	making sync.Mutex // held until a thread that we made there is known as ours, and while one is looked at

	mu     sync.Mutex
	status bridge.LinkStatus
	peers  map[string]bool
	me     string             // who we are there, as a thread of ours showed it
	ahead  map[string]ownFile // files that the message names which is handed in, by their addresses
}

// maxPeers bounds the peers of a link that are counted.
const maxPeers = 10_000

func (b *Bridge) newLink(cfg bridge.Link) (*link, error) {
	l := &link{
		b: b, cfg: cfg, wake: make(chan struct{}, 1), peers: map[string]bool{},
		known: map[string]string{}, later: map[string]postponed{}, hidden: map[string]postponed{},
		status: bridge.LinkStatus{Name: cfg.Name, Kind: Kind, To: cfg.URL + cfg.Dir, State: bridge.LinkConnecting, Since: time.Now()},
	}
	if cfg.Dir != "" {
		l.remote = &dirRemote{dir: cfg.Dir, name: cfg.Options["as"], git: cfg.Options["git"] == "true", enclosed: b.enclosed}
		return l, nil
	}
	if b.cfg.HTTP == nil {
		return nil, errors.New("mess: a link needs a client")
	}
	l.remote = &restRemote{me: cfg.Options["as"], base: cfg.URL, exchange: cfg.Exchange, token: b.cfg.Tokens[cfg.Name], http: b.cfg.HTTP}
	return l, nil
}

// run polls until ctx ends.
func (l *link) run(ctx context.Context) error {
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		if err := l.sendWaiting(ctx); err != nil && ctx.Err() == nil {
			l.b.log.Warn("what is for a link could not be sent", "link", l.cfg.Name, "error", err)
		}
		err := l.poll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		l.stand(err)
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-poll.C:
		}
	}
}

// stand remembers how the link stands.
func (l *link) stand(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	state, text := bridge.LinkUp, ""
	if err != nil {
		state, text = bridge.LinkConnecting, err.Error()
		if e, ok := errors.AsType[*client.SendError](err); ok && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden) {
			state = bridge.LinkDown
		}
	}
	if l.status.State != state {
		l.status.State, l.status.Since = state, time.Now()
	}
	l.status.Error, l.status.Retry = text, time.Time{}
	if err != nil {
		l.status.Retry = time.Now().Add(pollEvery)
	}
}

// take hands one foreign message to the node, with the same checks as everybody's (MESS section 12).
func (l *link) take(ctx context.Context, from, ref, number string, b Block, k knownThread) error {
	if k.Intent != "" {
		return l.takePlain(ctx, from, ref, number, b, k)
	}
	peer := cmp.Or(k.Peer, from)
	if k.Mine { // one conversation, one peer: that of the exchange to which we sent it
		peer = exchangeID
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
	out, err := l.b.cfg.Node.Accept(ctx, in)
	if out.Held && !k.Mine && l.asked != nil && len(l.asked) < maxNoted {
		l.asked[k.Conv] = true
	}
	return err
}

// inbound maps a block to a message of the mesh.
func (l *link) inbound(peer, id string, b Block) (bridge.Inbound, error) {
	address := bridge.Address{Kind: Kind, Link: l.cfg.Name, Peer: peer}
	if err := address.Validate(); err != nil {
		return bridge.Inbound{}, bad("from", "is no name of a peer")
	}
	for i, e := range b { // public clients send bare codes (MESS-20)
		if err := e.check(entryPath(i, e), time.Now(), true); err != nil {
			return bridge.Inbound{}, err
		}
	}
	b = slices.DeleteFunc(slices.Clone(b), func(e Entry) bool { return e.Type == "v" })
	if len(b) == 0 {
		return bridge.Inbound{}, bad("MESS", "the block has no entry")
	}
	payload := wire.Obj(wire.Member{Key: "action", Value: wire.Text(actionOf(b))}, wire.Member{Key: "mess", Value: b.Tree()})
	raw := b.Tree().JSON()
	if len(raw) > wire.MaxMessage-8<<10 {
		return bridge.Inbound{}, tooLarge("the block is too large for a message")
	}
	l.seen(peer)
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

func (l *link) seen(peer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.peers) < maxPeers {
		l.peers[peer] = true
	}
}

func hashOf(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Deliver implements [bridge.Transport] for all links.
func (b *Bridge) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	address, err := bridge.ParseAddress(d.Address)
	if err != nil {
		return bridge.Delivered{}, err
	}
	for _, l := range b.links {
		if l.cfg.Name == address.Link {
			return bridge.Delivered{Queued: true}, l.deliver(ctx, d)
		}
	}
	return bridge.Delivered{}, fmt.Errorf("mess: there is no link %s", address.Link)
}

func (l *link) deliver(ctx context.Context, d bridge.Delivery) error {
	block, err := outgoing(d.Message)
	if err != nil || len(block) == 0 {
		return err
	}
	conv := cmp.Or(followed(d.Message.Payload), string(d.Message.Conversation))
	rec, err := l.b.x.records.Get(ctx, nsMeta, l.convRecord(conv), time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return l.open(ctx, d.ID, knownThread{Conv: conv, Mine: true, Intent: plainIntent(d.Message)}, block)
	}
	if err != nil {
		return err
	}
	ref := string(rec.Body)
	if block, err = l.answering(ctx, ref, block); err != nil {
		return err
	}
	err = l.remote.say(ctx, onceOf(d.ID, ref), ref, block.there(ref))
	if reason, no := saysNo(err); no { // the conversation goes on: where the thread stands there is still to be heard
		held, err := l.lost(ctx, d, conv, ref, reason, block)
		if held || err != nil {
			return err
		}
		return l.refused(ctx, ref, reason)
	}
	if err == nil {
		l.poke()
	}
	return err
}

// onceOf is the Idempotency-Key of a delivery to a thread, "" for one that is made.
func onceOf(id, ref string) string { return "agentmesh-" + hashOf(id, ref) }

// open makes a thread there. After a crash the same request is sent again; an exchange that knows ids, or names of calls,
// keeps it one.
func (l *link) open(ctx context.Context, id string, k knownThread, block Block) error {
	i := slices.IndexFunc(block, func(e Entry) bool { return e.Type == "request" })
	if i < 0 {
		return errors.New("mess: nothing there is known by this conversation")
	}
	err := l.make(ctx, onceOf(id, ""), k, block[i].Body)
	if reason, no := saysNo(err); no {
		return l.declined(ctx, k.Conv, reason, err)
	}
	if err != nil {
		return err
	}
	l.poke()
	return nil
}

// make makes the thread and remembers that it is ours, before anybody looks at what is there.
func (l *link) make(ctx context.Context, once string, k knownThread, request wire.Value) error {
	l.making.Lock()
	defer l.making.Unlock()
	ref, err := l.remote.create(ctx, once, request)
	if err != nil {
		return err
	}
	changes := l.change(ref, k)
	changes[0].Max = 0 // there are as many as we ask for, whatever the other side lists
	return l.b.x.records.Apply(ctx, changes, time.Now())
}

func (l *link) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// outgoing turns a message of the mesh into a block. What is said in other intents becomes a request for text; what has
// nothing to say there is an empty block.
func outgoing(m wire.Message) (Block, error) {
	if list, ok := m.Payload.Get("mess"); ok {
		b, err := FromTree(list)
		return slices.DeleteFunc(b, func(e Entry) bool { return e.Type == "ack" || e.successor() != "" }), err
	}
	member := func(key, text string) wire.Member { return wire.Member{Key: key, Value: wire.Text(text)} }
	status := func(code Code, more ...wire.Member) (Block, error) {
		return Block{{Type: "status", Body: wire.Obj(append([]wire.Member{member("re", "last"), member("code", string(code))}, more...)...)}}, nil
	}
	text, about := "", ""
	switch m.Action() {
	case "ask":
		text, about = m.Payload.GetStr("question"), m.Payload.GetStr("context")
	case "deliver":
		message, _ := m.Payload.Get("message")
		text, about = message.GetStr("body"), message.GetStr("subject")
	case "request_human":
		text = m.Payload.GetStr("reason")
	case wire.ActionClose:
		return status(Declined, member("reason", m.Payload.GetStr("reason")))
	case wire.ActionPending, wire.ActionReceived:
		return nil, nil // to say held there is to claim, and nobody here has said yes
	}
	if text == "" {
		return nil, errors.New("mess: a message of this kind cannot be said there")
	}
	body := wire.Obj(member("intent", text), wire.Member{Key: "response_hint", Value: wire.Texts([]string{"text"})})
	if about != "" {
		body = body.With("context", wire.Texts([]string{about}))
	}
	return Block{{Type: "request", Body: body}}, nil
}
