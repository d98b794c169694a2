package owner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/agentmesh/agentmesh/node/httpapi"
	"github.com/agentmesh/agentmesh/store"
)

// MountAgent adds operations to the routes for the owner's agent, which has fewer rights than the owner. An operation
// that is for the owner alone refuses the agent with [httpapi.ErrOwnerDecides].
func MountAgent(g *echo.Group, operations ...Operation) {
	refuse := func(echo.Context) error { return httpapi.ErrOwnerDecides }
	for _, op := range operations {
		switch {
		case op.Right != Read && op.Right != Send:
			op.Handle = refuse
		case op.handleAgent != nil:
			op.Handle = op.handleAgent
		}
		Mount(g, op)
	}
}

// agentNode is a node as the owner's agent sees it. It shows no message that still waits for the owner, or that the
// owner never released, because such a message could contain instructions to the agent.
type agentNode struct{ Node }

// ListPeers implements [Peers]. It leaves out what peers call themselves, because a name, too, can contain
// instructions.
func (n agentNode) ListPeers(ctx context.Context, onlyID string) ([]Peer, error) {
	peers, err := n.Node.ListPeers(ctx, onlyID)
	for i := range peers {
		peers[i].Name = ""
	}
	return peers, err
}

var withheld = json.RawMessage(`{"withheld":"the owner has not released this message"}`)

// isHidden reports whether the guard has not let the message of an item through, whether the owner has not released it, or
// whether that is unknown because the question to the owner (item.Ask) is no longer stored.
func (n agentNode) isHidden(ctx context.Context, item Item) (bool, error) {
	if item.Unjudged {
		return true, nil
	}
	if item.Ask == "" || !slices.Contains([]ItemState{ItemHeld, ItemRejected, ItemWithdrawn, ItemExpired}, item.State) {
		return false, nil
	}
	ask, err := n.FindApproval(ctx, item.Ask)
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return ask.Kind == AskMessage, err
}

// hide removes from an item what the sender wrote, if the owner has not released the item's message. err is the error of
// the call that returned the item; if it is not nil, hide only returns it.
func (n agentNode) hide(ctx context.Context, item Item, err error) (Item, error) {
	if err != nil {
		return Item{}, err
	}
	hidden, err := n.isHidden(ctx, item)
	if hidden {
		item.PeerName, item.Payload, item.About = "", withheld, ""
	}
	if item.Unjudged {
		item.Note, item.Failure = "", nil // may have words of the guard about the message
	}
	item.Verdict = nil
	return item, err
}

func (n agentNode) ListItems(ctx context.Context, q Query) (List[Item], error) {
	list, err := n.Node.ListItems(ctx, q)
	if err != nil {
		return list, err
	}
	for i, item := range list.Items {
		if list.Items[i], err = n.hide(ctx, item, nil); err != nil {
			return List[Item]{}, err
		}
	}
	return list, nil
}

func (n agentNode) FindItem(ctx context.Context, id string) (Item, error) {
	item, err := n.Node.FindItem(ctx, id)
	return n.hide(ctx, item, err)
}

func (n agentNode) Acknowledge(ctx context.Context, id string) (Item, error) {
	item, err := n.Node.Acknowledge(ctx, id)
	return n.hide(ctx, item, err)
}

// hideProposals removes the proposals of a conversation if one may come from a message that the owner has not released.
func hideProposals(c Conversation) Conversation {
	if c.Unreleased > 0 {
		c.Proposals = nil
	}
	return c
}

func (n agentNode) ListConversations(ctx context.Context, q Query) (ConversationList, error) {
	list, err := n.Node.ListConversations(ctx, q)
	for i, c := range list.Items {
		list.Items[i] = hideProposals(c)
	}
	return list, err
}

func (n agentNode) ReadTranscript(ctx context.Context, id, peer string, after uint64) (Transcript, error) {
	t, err := n.Node.ReadTranscript(ctx, id, peer, after)
	if err != nil {
		return t, err
	}
	t.Conversation = hideProposals(t.Conversation)
	for i, e := range t.Transcript {
		if e.Unreleased {
			t.Transcript[i].Message, t.Transcript[i].Opened = withheld, nil
		}
	}
	return t, nil
}
