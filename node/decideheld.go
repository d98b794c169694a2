package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

// decideHeld carries out the owner's choice about the message that waits in a conversation because of what it asks, so
// that a bridge whose own commands decide about such a message makes the same decision (THREATS 39). It refuses if no
// message waits there, and if the question is whether its sender may write at all: that one is about more than this message.
func (n *Node) decideHeld(ctx context.Context, conv store.ConvKey, choice acl.Choice, by string) error {
	held, err := n.itemsOf(ctx, conv, ItemHeld)
	if err != nil {
		return err
	}
	if len(held) == 0 {
		return owner.Fault(http.StatusConflict, "nothing waits here any more: it was decided, taken back, or expired", "see agentmesh inbox for what became of it")
	}
	ask, err := n.asks.Get(ctx, held[0].Ask, time.Now())
	if err != nil {
		return owner.Explain(err)
	}
	var body owner.HeldBody
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode question: %w", err)
	}
	if body.Hold == "sender" {
		return owner.Fault(http.StatusConflict, "its sender has not been let in yet; decide about that first", "agentmesh approvals show "+ask.ID)
	}
	ended, err := n.asks.Decide(ctx, ask.ID, ask.Hash, choice, by, time.Now())
	if errors.Is(err, acl.ErrAskGone) {
		return owner.Fault(http.StatusConflict, owner.DescribeEnd(ended), "")
	}
	return owner.Explain(err)
}
