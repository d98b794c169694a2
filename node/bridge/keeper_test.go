package bridge_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
)

// keep runs a keeper whose connections end as ends says, one after the other, and returns how long it waited before
// each of them. The last connection lasts.
func keep(t *testing.T, k *bridge.Keeper, lengths []time.Duration, ends []bridge.End) (waits []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := time.Now()
	k.Run(ctx, func(context.Context) bridge.End {
		waits = append(waits, time.Since(ended))
		n := len(waits) - 1
		if n == len(ends) {
			cancel()
			return bridge.End{}
		}
		time.Sleep(lengths[n])
		ended = time.Now()
		return ends[n]
	})
	return waits
}

// TestKeeperWaits: the waits double from the first to the last, up to a fifth shorter or longer. They begin again after
// a healthy connection. A network may ask for a longer one (AR-52, MEW-L1).
func TestKeeperWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := bridge.NewKeeper(bridge.LinkStatus{Name: "lab"}, slog.New(slog.DiscardHandler))
		lengths := make([]time.Duration, 9)
		lengths[7] = time.Minute
		ends := make([]bridge.End, 9)
		ends[8].Wait = 5 * time.Minute
		want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 1, 300}
		for i, got := range keep(t, k, lengths, ends) {
			if w := want[i] * time.Second; got < w*8/10 || got > w*12/10 {
				t.Errorf("wait %d lasts %v, want about %v", i, got, w)
			}
		}
	})
}

// TestKeeperDown: a link that is down stays so until it is woken, also if it was woken while it was up.
func TestKeeperDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := bridge.NewKeeper(bridge.LinkStatus{Name: "lab"}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		attempts := 0
		go k.Run(ctx, func(context.Context) bridge.End {
			attempts++
			k.Wake()
			k.Set(bridge.LinkUp, "")
			return bridge.End{Fault: "refused", Down: true}
		})
		time.Sleep(time.Hour)
		if s := k.Status(); attempts != 1 || s.State != bridge.LinkDown || s.Error != "refused" || !s.Retry.IsZero() {
			t.Errorf("after an hour: %d attempts, %+v", attempts, s)
		}
		k.Wake()
		synctest.Wait()
		if attempts != 2 {
			t.Errorf("after it was woken: %d attempts", attempts)
		}
		cancel()
	})
}

// TestKeeperDialsOnce: one attempt waits for the end of another, and gives up with its caller.
func TestKeeperDialsOnce(t *testing.T) {
	k := bridge.NewKeeper(bridge.LinkStatus{Name: "lab"}, slog.New(slog.DiscardHandler))
	done, err := k.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := k.Dial(gone); err == nil {
		t.Error("two attempts at once")
	}
	done()
	done()
	if _, err := k.Dial(t.Context()); err != nil {
		t.Errorf("after the first attempt: %v", err)
	}
}
