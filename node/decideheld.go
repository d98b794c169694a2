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

// decideHeld applies the owner's choice to the message that is held in a conversation because of its intent. Bridges
// with approval commands call it, so that their commands and the owner's page decide the same question (THREATS 39). It
// refuses if no message is held there, or if our answer to the message waits instead, which the bridge has not shown to
// the owner. It also refuses if the question is whether the sender may write at all, which concerns more than this
// message.
func (n *Node) decideHeld(ctx context.Context, conv store.ConvKey, choice acl.Choice, by string) error {
	held, err := n.itemsOf(ctx, conv, ItemHeld)
	if err != nil {
		return err
	}
	if len(held) == 0 {
		return owner.Fault(http.StatusConflict, "nothing waits for a decision here: it was decided, withdrawn, or it expired", "see agentmesh inbox for what became of it")
	}
	ask, err := n.asks.Get(ctx, held[0].Ask, time.Now())
	if err != nil {
		return owner.Explain(err)
	}
	if ask.Kind != askMessage {
		return owner.Fault(http.StatusConflict, "your answer waits for a decision here, not the message; decide about the answer first", "agentmesh approvals show "+ask.ID)
	}
	var body owner.HeldBody
	if err := json.Unmarshal(ask.Body, &body); err != nil {
		return fmt.Errorf("decode question: %w", err)
	}
	if body.Hold == "sender" {
		return owner.Fault(http.StatusConflict, "the sender is not approved yet; decide about the sender first", "agentmesh approvals show "+ask.ID)
	}
	ended, err := n.asks.Decide(ctx, ask.ID, ask.Hash, choice, by, time.Now())
	if errors.Is(err, acl.ErrAskGone) {
		return owner.Fault(http.StatusConflict, owner.DescribeEnd(ended), "")
	}
	return owner.Explain(err)
}
