package node

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/wire"
)

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
