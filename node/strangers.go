package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/store"
)

const rejectBatch = 20 // questions decided at once

// rejectStrangers rejects every waiting sender who is unknown to the owner, and remembers each rejection (AM-35).
// It decides several questions at once, so that they share disk writes. If a question cannot be decided, it stays
// as it was, and the next ones are still tried; if the questions cannot be listed, the loop ends. rejectStrangers
// returns the number of rejections. The argument by is the command or page that the owner used.
func rejectStrangers(ctx context.Context, queue *acl.Asks, rules *acl.Rules, by string) (rejected int, err error) {
	began := time.Now()
	var rejections atomic.Int64
	for after := ""; ; {
		asks, next, listErr := queue.List(ctx, acl.AskFilter{State: acl.AskPending}, after, rejectBatch, began)
		if listErr != nil {
			return int(rejections.Load()), errors.Join(err, listErr)
		}
		var group errgroup.Group
		for _, ask := range asks {
			if ask.Created.After(began) { // the loop might never end if it took new questions
				next = ""
				break
			}
			group.Go(func() error { return rejectStranger(ctx, queue, rules, ask, by, &rejections) })
		}
		err = errors.Join(err, group.Wait())
		if after = next; after == "" {
			return int(rejections.Load()), err
		}
	}
}

// rejectStranger rejects the sender of a question if the owner does not know the sender, and counts the rejection.
func rejectStranger(ctx context.Context, queue *acl.Asks, rules *acl.Rules, ask acl.Ask, by string, rejections *atomic.Int64) error {
	if !isAboutSender(ask) {
		return nil
	}
	standing, err := rules.Standing(ctx, ask.Subject, time.Now())
	if err != nil || standing != acl.Unknown {
		return err
	}
	_, err = queue.Decide(ctx, ask.ID, ask.Hash, acl.Reject, by, time.Now())
	switch {
	case errors.Is(err, acl.ErrAskGone), errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("reject %s: %w", ask.ID, err)
	}
	rejections.Add(1)
	return nil
}

// isAboutSender reports whether the question asks if a sender may write at all.
func isAboutSender(ask acl.Ask) bool {
	var held owner.HeldBody
	return ask.Kind == owner.AskMessage && json.Unmarshal(ask.Body, &held) == nil && held.Hold == "sender"
}
