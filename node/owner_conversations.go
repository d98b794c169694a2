package node

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
)

func (o OwnerAPI) viewConversation(ctx context.Context, conv conversations.Conversation, now time.Time) (v owner.Conversation, err error) {
	v = owner.Conversation{
		ID: conv.Key.ID, Peer: conv.Key.Peer, State: conv.StateAt(now, o.n.book.IdleFor()), Rejected: conv.Rejected, Mine: conv.Mine, Sealed: conv.Sealed,
		Intent: conv.Intent, Opened: conv.Opened, Last: conv.Last, Holds: conv.Holds(now), Unreleased: len(conv.Unreleased) + len(conv.Unjudged), Entries: conv.Entries,
		Bytes: conv.Bytes, Address: conv.Address,
	}
	if conv.Principal != conv.Key.Peer {
		v.Principal = conv.Principal
	}
	if conv.Turns > 0 {
		_, left := o.n.turns.bounds.Left(conv, false, now)
		v.Turns = newTurns(conv.Turns, left)
	}
	v.Proposals = owner.NewProposals(conv)
	v.Agreements, err = viewAgreements(ctx, o.n.store.Records(), conv, now)
	return v, err
}

// viewEntry returns a transcript entry as the owner sees it, with the opened payload of a sealed message.
func viewEntry(conv conversations.Conversation, e store.Entry) owner.Entry {
	v := owner.Entry{
		N: e.N, Direction: "in", At: e.At, MessageID: e.MessageID, Message: json.RawMessage(e.Raw), Chain: hexOf(e.Chain),
	}
	if e.Out {
		v.Direction, v.Author = "out", e.Author
	} else {
		v.Unreleased = !conv.IsReleased(wire.MessageID(e.MessageID))
	}
	if !json.Valid(e.Raw) { // a foreign message need not be JSON
		v.Message = wire.Text(string(e.Raw)).JSON()
	}
	content, ok := conversations.ReadContent(e)
	v.Sealed = ok && content.Sealed
	if v.Sealed && !conversations.IsSealed(content.Payload) {
		v.Opened = &content.Payload
	}
	return v
}

// ListConversations implements [owner.Conversations].
func (o OwnerAPI) ListConversations(ctx context.Context, q owner.Query) (owner.ConversationList, error) {
	list, now := owner.ConversationList{Items: []owner.Conversation{}, Next: q.Before}, time.Now()
	for len(list.Items) < q.Limit {
		page, err := o.n.book.List(ctx, conversations.Filter{Peer: q.Peer, State: conversations.State(q.State)}, list.Next, q.Limit-len(list.Items), now)
		if err != nil {
			return list, err
		}
		for _, conv := range page.Conversations {
			v, err := o.viewConversation(ctx, conv, now)
			if err != nil {
				return list, err
			}
			list.Items = append(list.Items, v)
		}
		if list.Next = page.Next; list.Next == 0 {
			break
		}
	}
	return list, nil
}

// resolveConversation returns the key of the conversation that the owner named by its id or by a unique prefix of it.
// An exact id wins over a prefix. peer may be empty, unless two peers use the same id.
func (o OwnerAPI) resolveConversation(ctx context.Context, id, peer string) (store.ConvKey, error) {
	if id == "" {
		return store.ConvKey{}, owner.Fault(http.StatusBadRequest, "name a conversation", "list them with: agentmesh conversations list")
	}
	if peer != "" {
		resolved, err := o.resolvePeer(ctx, peer)
		if err != nil {
			return store.ConvKey{}, err
		}
		peer = string(resolved)
	}
	if exact := (store.ConvKey{Peer: peer, ID: id}); peer != "" && wire.ConversationID(id).Valid() {
		_, err := o.n.store.Steps().Conversation(ctx, exact, time.Now())
		if !errors.Is(err, store.ErrNotFound) {
			return exact, err
		}
	}
	var found []store.ConvKey // exact matches come first
	for conv, err := range o.n.book.All(ctx, conversations.Filter{Peer: peer}, time.Now()) {
		if err != nil {
			return store.ConvKey{}, err
		}
		if conv.Key.ID == id {
			found = append([]store.ConvKey{conv.Key}, found...)
		} else if strings.HasPrefix(conv.Key.ID, id) || strings.HasPrefix(conv.Key.ID, "conv_"+id) {
			found = append(found, conv.Key)
		}
	}
	switch {
	case len(found) == 0:
		return store.ConvKey{}, owner.Fault(http.StatusNotFound, "there is no such conversation", "list them with: agentmesh conversations list")
	case len(found) > 1 && (found[0].ID != id || found[1].ID == id): // no exact match, or two
		return store.ConvKey{}, owner.Fault(http.StatusConflict, "more than one conversation matches", "give more of the id, or name the peer too")
	}
	return found[0], nil
}

// ReadTranscript implements [owner.Conversations].
func (o OwnerAPI) ReadTranscript(ctx context.Context, id, peer string, after uint64) (t owner.Transcript, err error) {
	key, err := o.resolveConversation(ctx, id, peer)
	if err != nil {
		return t, err
	}
	now := time.Now()
	conv, err := o.loadConversation(ctx, key, now)
	if err != nil {
		return t, err
	}
	if t.Transcript, t.Next, err = o.readTranscript(ctx, conv, after); err != nil {
		return t, err
	}
	t.Conversation, err = o.viewConversation(ctx, conv, now)
	return t, err
}

// loadConversation returns a stored conversation, or store.ErrNotFound.
func (o OwnerAPI) loadConversation(ctx context.Context, key store.ConvKey, now time.Time) (conversations.Conversation, error) {
	row, err := o.n.store.Steps().Conversation(ctx, key, now)
	if err != nil {
		return conversations.Conversation{}, err
	}
	return conversations.Decode(row)
}

// readTranscript returns a page of a transcript: the entries whose numbers are greater than after. next is the value of
// after for the next page, or 0 on the last page.
func (o OwnerAPI) readTranscript(ctx context.Context, conv conversations.Conversation, after uint64) (views []owner.Entry, next uint64, err error) {
	const maxEntries, maxBytes, batch = 500, 4 << 20, 16
	views = []owner.Entry{}
	for bytes := 0; after < conv.Entries && len(views) < maxEntries && bytes < maxBytes; {
		entries, err := o.n.book.Transcript(ctx, conv.Key, after, min(batch, maxEntries-len(views)))
		if err != nil || len(entries) == 0 { // no entries: the conversation was deleted meanwhile
			return views, 0, err
		}
		for _, e := range entries {
			if bytes >= maxBytes || e.N > conv.Entries { // conv does not show whether a later message is released
				break
			}
			views = append(views, viewEntry(conv, e))
			after = e.N
			bytes += len(e.Raw)
		}
	}
	if after < conv.Entries {
		next = after
	}
	return views, next, nil
}

// CloseConversation implements [owner.Conversations].
func (o OwnerAPI) CloseConversation(ctx context.Context, id string, in owner.Close, wait time.Duration) (owner.Sent, error) {
	key, err := o.resolveConversation(ctx, id, in.Peer)
	if err != nil {
		return owner.Sent{}, err
	}
	conv, err := o.loadConversation(ctx, key, time.Now())
	if err != nil {
		return owner.Sent{}, err
	}
	out := newFollowUp(conv)
	out.InReplyTo = conv.Heard
	out.Via, out.Payload = owner.Author(in.By), closePayload(in.Status)
	return o.send(ctx, out, wait)
}

// DeleteConversation implements [owner.Conversations].
func (o OwnerAPI) DeleteConversation(ctx context.Context, id, peer string) error {
	key, err := o.resolveConversation(ctx, id, peer)
	if err != nil {
		return err
	}
	return o.n.deleteConversation(ctx, key)
}

// OpenExport implements [owner.Conversations]. [conversations.VerifyExport] describes the file.
func (o OwnerAPI) OpenExport(ctx context.Context, id, peer string, openSealed bool) (func(http.ResponseWriter) error, error) {
	now := time.Now()
	key, err := o.resolveConversation(ctx, id, peer)
	if err != nil {
		return nil, err
	}
	row, err := o.n.store.Steps().Conversation(ctx, key, now)
	if err != nil {
		return nil, err
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		return nil, err
	}
	self := o.n.registrar.Identity()
	head := conversations.ExportHead{
		Self: self.Card.ID, Peer: key.Peer, Conversation: wire.ConversationID(key.ID), State: conv.StateAt(now, o.n.book.IdleFor()),
		Opened: conv.Opened.UTC(), Exported: now.UTC(), Entries: row.Entries, Chain: hexOf(row.Chain),
		Keys: o.exportKeys(ctx, self, wire.AgentID(key.Peer), now),
	}
	return func(w http.ResponseWriter) error {
		x := conversations.NewExporter(w, openSealed)
		if err := x.Head(head); err != nil {
			return err
		}
		const atOnce = 16
		for after := uint64(0); after < row.Entries; {
			entries, err := o.n.book.Transcript(ctx, key, after, int(min(atOnce, row.Entries-after)))
			if err != nil {
				return err
			}
			if len(entries) == 0 { // deleted meanwhile: without its seal, the file is not a valid export
				return nil
			}
			for _, e := range entries {
				if err := x.Entry(e); err != nil {
					return err
				}
				after = e.N
			}
		}
		return x.Seal(self.Card.ID, self.Key)
	}, nil
}

// exportKeys collects the keys that the two sides may have signed with: our key, the pinned key of the peer, and the
// earlier keys that the directories remember. It skips a directory that does not answer.
func (o OwnerAPI) exportKeys(ctx context.Context, id *Identity, peer wire.AgentID, now time.Time) []conversations.ExportKey {
	keys := []conversations.ExportKey{{Agent: id.Card.ID, PublicKey: id.Key.PublicText()}}
	add := func(agent wire.AgentID, text string) {
		k := conversations.ExportKey{Agent: agent, PublicKey: text}
		if text != "" && len(keys) < 2*maxExportKeys && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if pin, err := o.n.cards.PinOf(ctx, peer, now); err == nil {
		add(peer, pin.PublicKey)
	}
	for _, d := range o.n.cfg.Directories {
		for _, agent := range []wire.AgentID{id.Card.ID, peer} {
			history, err := d.Keys(ctx, agent)
			if err != nil {
				continue // no directory lists a foreign pseudonym, and a peer may be listed elsewhere
			}
			for _, k := range slices.Backward(history.Keys[max(0, len(history.Keys)-maxExportKeys):]) {
				add(agent, k.PublicKey)
			}
		}
	}
	return keys
}

// maxExportKeys bounds the keys of one side that exportKeys takes from one directory, which are the newest. An export
// has at most twice as many keys in all.
const maxExportKeys = 16
