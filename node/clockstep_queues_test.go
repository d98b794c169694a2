//go:build clockstep

package node_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/calendar"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// outside is what the queues of a node call. Until it is up, each call fails.
type outside struct {
	mu   sync.Mutex
	up   bool
	done map[string][]time.Time // calls that did not fail, by queue
}

func (o *outside) call(queue string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.up {
		return errors.New("down")
	}
	o.done[queue] = append(o.done[queue], time.Now())
	return nil
}

func (*outside) Name() string { return "outside" }

func (o *outside) Send(context.Context, notify.Batch) error { return o.call(notify.Namespace) }

func (o *outside) Put(context.Context, calendar.Event) error { return o.call(calendar.Namespace) }

func (*outside) Remove(context.Context, string) error { return nil }

// TestClockStepOfQueues: with work of every queue of a node waiting, a clock that is set an hour makes none of it early,
// none later than a minute after its time, and none of it is done twice. A question ends only when the clock is believed.
func TestClockStepOfQueues(t *testing.T) {
	storetest.ClockSteps(t, func(t *testing.T, by time.Duration) {
		out := &outside{done: make(map[string][]time.Time)}
		w := &wireTransport{deliver: func(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			if d.Message.Action() != "propose" && out.call("outbox") != nil {
				return bridge.Delivered{}, &client.SendError{Status: http.StatusServiceUnavailable, Retry: true, After: 20 * time.Minute}
			}
			return bridge.Delivered{}, nil
		}}
		hooked := configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			if c.Conversation.Key.ID == "conv_held" {
				return hook.Answer{Hold: "the owner decides this"}, nil
			}
			if out.call("inbox") != nil {
				return hook.Answer{}, &hook.Error{Fault: hook.Unreachable, Route: "test"}
			}
			return hook.Answer{Async: true}, nil
		}, unlimited)
		l := runLoneNode(t, t.TempDir(), w, func(n *node.Node, ctx context.Context) { _ = n.Run(ctx) }, hooked, func(c *node.Config) {
			c.HoldFor, c.RemindAfter, c.Routes[0].Pattern = 40*time.Minute, -1, "mesh.message"
			c.Notices = notify.New(notify.Config{Records: c.Store.Records(), Target: out})
			c.Agreed = calendar.NewBook(calendar.BookConfig{Records: c.Store.Records(), Writer: out})
		})
		mesh, err := l.Attach(bridge.Kind{Name: "wire"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ann := bridge.Address{Kind: "wire", Link: "net", Peer: "ann"}
		receive := func(conv wire.ConversationID, intent wire.Intent, payload wire.Value) {
			t.Helper()
			if _, err := mesh.Accept(t.Context(), bridge.Inbound{
				Principal: ann.String(), Peer: ann.Pseudonym(), Address: ann.String(), Verified: bridge.VerifiedNone, MessageID: wire.NewMessageID(), ConvID: conv,
				Intent: intent, Payload: payload, Raw: payload.JSON(), Digest: signing.Digest(payload), Time: time.Now(), Received: time.Now(), Unattended: true,
			}); err != nil {
				t.Fatal(err)
			}
		}
		send := func(conv wire.ConversationID, intent wire.Intent, payload string) owner.Sent {
			t.Helper()
			return mustSend(t, l.Node, node.Outgoing{To: ann.Pseudonym(), Address: ann.String(), Conv: conv, Intent: intent, Payload: *says(t, payload).Payload, Via: "owner"}, 0)
		}
		send("conv_out", wire.Deliver, hello)
		receive("conv_held", wire.Deliver, *says(t, hello).Payload)
		receive("conv_hook", wire.Deliver, *says(t, hello).Payload)
		proposal := send("conv_met", wire.Schedule, proposeCoffee)
		synctest.Wait()
		receive("conv_met", wire.Schedule, inReplyTo(*says(t, `{"action":"accept","selected_time":"2036-02-21T10:00:00-08:00"}`).Payload, proposal.MessageID))
		time.Sleep(6 * time.Minute)
		synctest.Wait()

		queues := []string{"outbox", "inbox", acl.AskNamespace, calendar.Namespace, notify.Namespace}
		due := make(map[string]time.Time)
		for _, ns := range queues {
			rows, _, err := l.store.Records().Due(t.Context(), ns, time.Now().Add(24*time.Hour), nil, 1)
			if err != nil || len(rows) == 0 {
				t.Fatalf("%s: nothing waits: %v", ns, err)
			}
			due[ns] = rows[0].Due
		}
		status, err := l.OwnerAPI().Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		due[notify.Namespace] = status.Notify.Next // all notices wait for the target
		for ns, at := range due {
			if !at.After(time.Now().Add(time.Second)) {
				t.Fatalf("%s: due at %v, before the step", ns, at)
			}
		}
		out.mu.Lock()
		out.up = true
		out.mu.Unlock()
		stepped := time.Now()
		storetest.StepClock(t, by)
		for range 8 * 60 * 6 {
			time.Sleep(10 * time.Second)
			synctest.Wait()
			items, _, err := l.Inbox(t.Context(), owner.ItemExpired, "", 10)
			if err != nil {
				t.Fatal(err)
			}
			if len(items) > 0 && len(out.done[acl.AskNamespace]) == 0 {
				_ = out.call(acl.AskNamespace)
			}
		}
		for _, ns := range queues {
			if len(out.done[ns]) == 0 || len(out.done[ns]) > 1 && !slices.Contains([]string{notify.Namespace, "outbox"}, ns) {
				t.Errorf("%s: done at %v, want once", ns, out.done[ns])
				continue
			}
			done, pause := out.done[ns][0], due[ns].Sub(stepped.Round(0)) // by the clock before the step
			elapsed, wall := done.Sub(stepped), done.Round(0)
			latest := due[ns]
			if first := stepped.Round(0).Add(by); latest.Before(first) {
				latest = first
			}
			if elapsed < pause && wall.Before(due[ns]) {
				t.Errorf("%s: done %v after the step, before its time in %v", ns, elapsed, pause)
			}
			if ns == acl.AskNamespace {
				if elapsed < pause {
					t.Errorf("the question ended %v after the step", elapsed)
				}
			} else if elapsed > pause+time.Minute && wall.After(latest.Add(time.Minute)) {
				t.Errorf("%s: done %v after the step, and was due in %v", ns, elapsed, pause)
			}
		}
	})
}
