package node_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
)

// TestFollowFromNow: the first event tells a bridge to read everything, because it follows only what happens later. A bridge
// that reads before it follows would miss what happens in between.
func TestFollowFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, mode(acl.Open))
		defer sarah.stop()
		mesh, err := sarah.Attach(bridge.Kind{Name: "test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var seen []bridge.Event
		go mesh.Follow(ctx, func(e bridge.Event) { seen = append(seen, e) })
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(seen) != 1 || !seen[0].Missing {
			t.Errorf("the events are %+v", seen)
		}
	})
}

// TestProgress: a bridge learns what a hook reports about a message of its peer before the hook answers. A hook that
// reports more than a follower reads is not delayed.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const reports = 1000
		hooked := configureHook(func(_ context.Context, c hook.Call) (hook.Answer, error) {
			for range reports {
				c.Progress(hook.Result{Task: &hook.Task{State: hook.TaskWorking, Text: "reading"}})
			}
			return says(t, `{"action":"confirmed"}`), nil
		}, mode(acl.Open))
		sarah := loneNode(t, t.TempDir(), &wireTransport{deliver: takes}, hooked)
		defer sarah.stop()
		mesh, err := sarah.Attach(bridge.Kind{Name: "test"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var seen []bridge.Progress
		slow := make(chan struct{})
		go mesh.Follow(ctx, func(e bridge.Event) {
			if e.Progress != nil {
				seen = append(seen, *e.Progress)
				<-slow
			}
		})
		synctest.Wait()
		out := to("ann", "conv_1", "hello")
		in := inbound(out, "wire:test", out.Address)
		began := time.Now()
		if got, err := sarah.Accept(t.Context(), in); err != nil || got.Status != 200 || time.Since(began) > 0 {
			t.Errorf("Accept = %+v, %v after %v", got, err, time.Since(began))
		}
		close(slow)
		synctest.Wait()
		cancel()
		synctest.Wait()
		if len(seen) == 0 || len(seen) > reports/2 {
			t.Fatalf("%d reports arrived, want some of %d", len(seen), reports)
		}
		if p := seen[0]; p.Address != out.Address || p.MessageID != in.MessageID || p.Conversation != in.ConvID || p.Result.Task.Text != "reading" {
			t.Errorf("report = %+v", p)
		}
	})
}
