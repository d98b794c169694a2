package node

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/node/wire"
)

// exportTime bounds an export; a conversation holds at most some ten megabytes.
const exportTime = 5 * time.Minute

// ownerExport writes a conversation as a file that proves itself, see [conversations.VerifyExport]. With opened=true what
// was sealed can be read in it.
func (n *Node) ownerExport(c echo.Context) error {
	ctx, now := c.Request().Context(), time.Now()
	key, err := n.conversation(ctx, c.Param("id"), c.QueryParam("peer"))
	if err != nil {
		return err
	}
	row, err := n.store.Steps().Conversation(ctx, key, now)
	if err != nil {
		return ownerError(err)
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		return err
	}
	if err := httpapi.KeepOpen(c, exportTime); err != nil {
		return err
	}
	id := n.identity.Load()
	head := conversations.ExportHead{
		Self: id.Card.ID, Peer: key.Peer, Conversation: wire.ConversationID(key.ID), State: conv.At(now, n.book.IdleFor()),
		Opened: conv.Opened.UTC(), Exported: now.UTC(), Entries: row.Entries, Chain: hexOf(row.Chain),
		Keys: n.exportKeys(ctx, id, wire.AgentID(key.Peer), now),
	}
	c.Response().Header().Set("Content-Type", "application/jsonl")
	c.Response().WriteHeader(http.StatusOK)
	x := conversations.NewExporter(c.Response(), c.QueryParam("opened") == "true")
	if err := x.Head(head); err != nil {
		return err
	}
	const atOnce = 16
	for after := uint64(0); after < row.Entries; {
		entries, err := n.book.Transcript(ctx, key, after, int(min(atOnce, row.Entries-after)))
		if err != nil {
			return err
		}
		if len(entries) == 0 { // deleted meanwhile: without a seal the file is no export
			return nil
		}
		for _, e := range entries {
			if err := x.Entry(e); err != nil {
				return err
			}
			after = e.N
		}
	}
	return x.Seal(id.Card.ID, id.Key)
}

// exportKeys collects the keys that the two sides may have signed with: ours, the pinned one of the peer, and what the
// directories remember of earlier ones. A directory that does not answer leaves its part out.
func (n *Node) exportKeys(ctx context.Context, id *Identity, peer wire.AgentID, now time.Time) []conversations.ExportKey {
	keys := []conversations.ExportKey{{Agent: id.Card.ID, PublicKey: id.Key.PublicText()}}
	add := func(agent wire.AgentID, text string) {
		k := conversations.ExportKey{Agent: agent, PublicKey: text}
		if text != "" && len(keys) < 2*maxExportKeys && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if pin, err := n.cards.PinOf(ctx, peer, now); err == nil {
		add(peer, pin.PublicKey)
	}
	for _, d := range n.cfg.Directories {
		for _, agent := range []wire.AgentID{id.Card.ID, peer} {
			history, err := d.Keys(ctx, agent)
			if err != nil {
				continue // a foreign pseudonym is in no directory, and a stranger may have left it
			}
			for _, k := range history.Keys[max(0, len(history.Keys)-maxExportKeys):] {
				add(agent, k.PublicKey)
			}
		}
	}
	return keys
}

// maxExportKeys bounds the keys of one side, the newest count.
const maxExportKeys = 16
