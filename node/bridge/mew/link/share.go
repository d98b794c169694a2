package link

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/bridge/mew/envelope"
	"github.com/agentmesh/agentmesh/node/bridge/mew/view"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

// Conversation is a conversation of the mesh that a space sees, by the owner's rule (MEW-L6).
type Conversation struct {
	Conv    wire.ConversationID `json:"conversation_id"`
	Peer    wire.AgentID        `json:"peer"`
	Address string              `json:"address,omitempty"` // of a foreign peer
	To      string              `json:"to,omitempty"`      // the participant who sees it; empty: everybody
	After   uint64              `json:"after,omitempty"`   // entries that the space has
	Silent  bool                `json:"silent,omitempty"`  // nothing of it is said unasked
}

// network is where the conversation is held: the mesh, or a link.
func (b Conversation) network() string {
	if a, err := bridge.ParseAddress(b.Address); err == nil {
		return a.Link
	}
	return mesh
}

// markTransit is a member of the payload of what was passed on: no node passes it on again (MEW-L6).
const markTransit = "agentmesh"

const (
	maxBrought = 200
	maxTold    = 50 // entries of a conversation that a space is told when it is brought
)

func (l *Link) Conversations(ctx context.Context) ([]Conversation, error) {
	page, err := l.records.store.List(ctx, nsLinks, l.cfg.Name+"/brought", "", maxBrought, time.Now())
	if err != nil {
		return nil, err
	}
	var out []Conversation
	for _, rec := range page.Records {
		var b Conversation
		if json.Unmarshal(rec.Body, &b) == nil {
			out = append(out, b)
		}
	}
	return out, nil
}

// SetShared opens a conversation into the space, or shuts it again.
func (l *Link) SetShared(ctx context.Context, key store.ConvKey, open bool) error {
	rest := openKey(wire.AgentID(key.Peer), wire.ConversationID(key.ID))
	if !open {
		l.records.apply(ctx, l.records.drop("brought", rest))
		return nil
	}
	if l.b.cfg.Steps == nil {
		return view.NewFault(http.StatusServiceUnavailable, "there are no conversations here")
	}
	conv, err := l.b.cfg.Steps.Conversation(ctx, key, time.Now())
	if errors.Is(err, store.ErrNotFound) {
		return view.NewFault(http.StatusNotFound, "there is no such conversation")
	} else if err != nil {
		return err
	}
	about, err := conversations.Decode(conv)
	if err != nil {
		return err
	}
	b := Conversation{Conv: wire.ConversationID(key.ID), Peer: wire.AgentID(key.Peer), Address: about.Address}
	if from := b.network(); !l.transit(from, l.cfg.Name) {
		return view.NewFault(http.StatusForbidden, "no rule lets messages pass into this space: policy.transit needs {from: "+from+", to: "+l.cfg.Name+"}")
	}
	if conv.Entries > maxTold {
		b.After = conv.Entries - maxTold
	}
	change := l.records.remember("brought", rest, b, keepBring, false)
	change.Max = maxBrought
	if err := l.records.store.Apply(ctx, []store.Change{change}, time.Now()); errors.Is(err, store.ErrQuota) {
		return view.NewFault(http.StatusTooManyRequests, "this space sees as many conversations as it may")
	} else if err != nil {
		return err
	}
	l.shareSoon()
	return nil
}

func (l *Link) shareSoon() {
	select {
	case l.shares <- struct{}{}:
	default:
	}
}

// sharing tells the space what is new in the conversations that it sees, until ctx ends.
func (l *Link) sharing(ctx context.Context) {
	again := time.NewTicker(waitShare)
	defer again.Stop()
	for {
		select {
		case <-l.shares:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		if !l.space.free() {
			continue
		}
		all, err := l.Conversations(ctx)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("read what the space sees", "err", err)
		}
		for _, b := range all {
			if err := l.share(ctx, b); err != nil && ctx.Err() == nil {
				l.log.Info("a conversation did not reach the space", "conversation", b.Conv, "err", err)
			}
		}
	}
}

// share tells the space what it has not seen of a conversation. Nothing is marked as told before the space took it, and
// nothing is told once the owner has shut the conversation again.
func (l *Link) share(ctx context.Context, b Conversation) error {
	if b.Silent || b.To != "" && l.space.ready(b.To) != nil {
		return nil
	}
	entries, err := l.b.cfg.Steps.Transcript(ctx, store.ConvKey{Peer: string(b.Peer), ID: string(b.Conv)}, b.After, maxTold)
	if err != nil {
		return err
	}
	for _, e := range entries {
		rec, err := l.records.store.Get(ctx, nsLinks, l.records.key("brought", openKey(b.Peer, b.Conv)), time.Now())
		if errors.Is(err, store.ErrNotFound) {
			return nil
		} else if err != nil {
			return err
		}
		if text := b.text(e); text != "" && !l.fromHere(e) {
			if err := l.space.say(ctx, l.excerpt(b, e, text)); err != nil {
				return err
			}
		}
		b.After = e.N
		change := l.records.remember("brought", openKey(b.Peer, b.Conv), b, keepBring, false)
		change.IfRev = rec.Rev
		if err := l.records.store.Apply(ctx, []store.Change{change}, time.Now()); errors.Is(err, store.ErrConflict) {
			return nil // shut, or opened anew
		} else if err != nil {
			return err
		}
	}
	if len(entries) == maxTold {
		l.shareSoon()
	}
	return nil
}

// excerpt is an entry of a conversation as the space sees it.
func (l *Link) excerpt(b Conversation, e store.Entry, text string) envelope.Draft {
	who, way := string(b.Peer), "in"
	if e.Out {
		who, way = string(l.b.cfg.Mesh.ID()), "out"
	}
	s := envelope.Draft{
		ID: "am-b-" + envelope.Digest(string(b.Peer), string(b.Conv), strconv.FormatUint(e.N, 10)), Kind: envelope.KindChat, Context: string(b.Conv),
		Payload: wire.Obj(wire.TextField("text", who+": "+text), wire.TextField("format", "plain"),
			wire.Field(markTransit, wire.Obj(wire.TextField("conversation_id", string(b.Conv)), wire.TextField("agent_id", string(b.Peer)), wire.TextField("direction", way)))),
	}
	if b.To != "" {
		s.To = []string{b.To}
	}
	return s
}

// fromHere says whether an entry came from this very space: it is not told twice (MEW-L6).
func (l *Link) fromHere(e store.Entry) bool {
	v, err := wire.ParseObject(e.Raw)
	if err != nil {
		return false
	}
	payload, _ := v.Get("payload")
	meta, _ := payload.Get("metadata")
	from, _ := meta.Get("bridge")
	return e.Out && from.GetStr("kind") == Kind && from.GetStr("link") == l.cfg.Name
}

// forward takes a chat in a conversation that the sender sees, on its way to the agent in it. done says that it was
// one. It passes the node's checks before anything leaves (MEW-L2), and leaves under the owner's rules for what leaves.
func (l *Link) forward(ctx context.Context, j job, text string) (done bool, err error) {
	if j.e.Context == "" {
		return false, nil
	}
	all, err := l.Conversations(ctx)
	if err != nil {
		return true, err
	}
	at := slices.IndexFunc(all, func(b Conversation) bool { return string(b.Conv) == j.e.Context && (b.To == "" || b.To == j.e.From) })
	if at < 0 || !l.transit(l.cfg.Name, all[at].network()) {
		return false, nil
	}
	b := all[at]
	conv := wire.ConversationID("conv_" + envelope.Digest(l.cfg.Name, j.e.From, "forward", string(b.Peer), string(b.Conv)))
	payload := wire.Obj(wire.TextField("action", "forward"), wire.TextField("agent_id", string(b.Peer)), wire.TextField("conversation_id", string(b.Conv)),
		wire.Field("message", wire.Obj(wire.TextField("body", text))))
	in, err := l.inbound(&j, conv, IntentForward, payload)
	if err != nil {
		return true, err
	}
	out, err := l.b.cfg.Mesh.Accept(ctx, in)
	l.refused(ctx, &j.e, err)
	if err == nil && out.Held {
		l.waits(ctx, &j.e, out)
	}
	return true, err
}

// passOn sends what a participant said to the agent of a conversation that it sees.
func (l *Link) passOn(ctx context.Context, from string, payload wire.Value) error {
	letter := bridge.Outgoing{To: wire.AgentID(payload.GetStr("agent_id")), Conv: wire.ConversationID(payload.GetStr("conversation_id"))}
	b, ok := recall[Conversation](ctx, l.records, "brought", openKey(letter.To, letter.Conv))
	if !ok || b.To != "" && b.To != from || !l.transit(l.cfg.Name, b.network()) {
		return errors.New("the space does not see this conversation any more")
	}
	letter.Address = b.Address
	message, _ := payload.Get("message")
	text := message.GetStr("body")
	if b.To == "" { // several speak there
		text = envelope.ToPrintable(from, envelope.MaxName) + ": " + text
	}
	_, err := l.post(ctx, from, letter, text)
	return err
}

// follow acts on what happens in the node, until ctx ends.
func (b *Bridge) follow(ctx context.Context) {
	b.cfg.Mesh.Follow(ctx, func(c bridge.Event) {
		if c.Item != nil {
			b.followItem(ctx, *c.Item)
		}
		if c.Missing || c.Conv != (store.ConvKey{}) {
			for _, l := range b.links {
				l.shareSoon()
			}
		}
	})
}

// followItem tells a participant where its message stands now.
func (b *Bridge) followItem(ctx context.Context, item bridge.ItemState) {
	l, _, err := b.linkOf(item.Address)
	if err != nil {
		return
	}
	if item.Intent == IntentProposal && item.State != "running" { // before and after the decision
		l.space.follow(item.Conversation, item.State == "held")
	}
	switch {
	case item.Intent == IntentProposal && item.State == "expired":
		if err := l.reject(ctx, item.Conversation, "timeout"); err != nil {
			l.log.Info("the end of a proposal did not reach the space", "err", err)
		}
	case item.Intent == wire.Deliver:
		if key, ok := recall[string](ctx, l.records, "msg", string(item.MessageID)); ok {
			switch item.State {
			case "new", "running", "failed", "interrupted":
				l.acknowledge(ctx, key, "received")
			case "read", "answered":
				l.acknowledge(ctx, key, "read")
			}
		}
	}
}
