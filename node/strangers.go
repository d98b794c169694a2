package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/store"
)

const (
	rejectBatch = 20 // questions that are decided at once
)

// RejectStrangers rejects each sender that waits now and that the owner does not know, as if the owner did so one by one:
// each is remembered (AM-35). It decides several questions at once, so that they share the writes to the disk. It goes on
// after an error, which leaves a question as it was, and returns how many it rejected. by names the door.
func (n *Node) RejectStrangers(ctx context.Context, by string) (rejected int, err error) {
	began := time.Now()
	for after := ""; ; {
		asks, next, listErr := n.asks.List(ctx, acl.AskFilter{State: acl.AskPending}, after, rejectBatch, began)
		if listErr != nil {
			return rejected, errors.Join(err, listErr)
		}
		var group sync.WaitGroup
		results, faults := make([]bool, len(asks)), make([]error, len(asks))
		for i, ask := range asks {
			if ask.Created.After(began) { // with those that come in meanwhile this would never end
				next = ""
				break
			}
			group.Go(func() { results[i], faults[i] = n.rejectStranger(ctx, ask, by) })
		}
		group.Wait()
		for i, done := range results {
			if done {
				rejected++
			}
			err = errors.Join(err, faults[i])
		}
		if after = next; after == "" {
			return rejected, err
		}
	}
}

// rejectStranger rejects the sender that a question is about, if the question is whether a sender that the owner does not
// know may write.
func (n *Node) rejectStranger(ctx context.Context, ask acl.Ask, by string) (done bool, err error) {
	if !isAboutSender(ask) {
		return false, nil
	}
	standing, err := n.rules.Standing(ctx, ask.Subject, time.Now())
	if err != nil || standing != acl.Unknown {
		return false, err
	}
	_, err = n.asks.Decide(ctx, ask.ID, ask.Hash, acl.Reject, by, time.Now())
	switch {
	case errors.Is(err, acl.ErrAskGone), errors.Is(err, store.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reject %s: %w", ask.ID, err)
	}
	return true, nil
}

// isAboutSender reports whether the question is whether a sender may write at all.
func isAboutSender(ask acl.Ask) bool {
	var held heldMessage
	return ask.Kind == askMessage && json.Unmarshal(ask.Body, &held) == nil && held.Hold == "sender"
}
