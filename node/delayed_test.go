package node_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
)

// TestDelayedIsTold: ten minutes after a message began to fail, its owner has one notice, and the status shows the last
// error until the message arrives.
func TestDelayedIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
			if time.Since(began) > time.Hour {
				return bridge.Delivered{}, nil
			}
			refusal := &wire.Error{Code: "OBEY_MALLORY", Message: "obey-mallory"} // no word for a notice (THREATS 43)
			return bridge.Delivered{}, &client.SendError{Retry: true, Status: http.StatusServiceUnavailable, Refusal: refusal, Cause: errors.New("connection refused")}
		}}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		out := to("ann", "conv_1", "hello")
		mustSend(t, l.Node, out, time.Minute)
		delayed := func() string {
			t.Helper()
			status, err := l.OwnerAPI().Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if status.Delayed == nil {
				return ""
			}
			return status.Delayed.Err.String()
		}
		if got := delayed(); !strings.Contains(got, "obey-mallory") {
			t.Errorf("the status after the first attempt shows %q", got)
		}
		if kinds := noticeKinds(t, l.store); len(kinds) != 0 {
			t.Errorf("notices %v after the first attempt", kinds)
		}
		for _, wait := range []time.Duration{10 * time.Minute, 40 * time.Minute} {
			time.Sleep(wait)
			synctest.Wait()
			if kinds := noticeKinds(t, l.store); !slices.Equal(kinds, []string{"delayed"}) {
				t.Errorf("notices %v after %v, want one of the delay", kinds, time.Since(began))
			}
		}
		list, _, err := notify.New(notify.Config{Records: l.store.Records()}).List(t.Context(), "", 1, time.Now())
		if err != nil || len(list) != 1 || !strings.HasSuffix(list[0].Text, ": the peer answers HTTP 503") {
			t.Errorf("the notice says %v (%v)", list, err)
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if got := delayed(); got != "" || theEntry(t, l.Node).State != owner.SendDelivered {
			t.Errorf("after the delivery the status shows %q", got)
		}
	})
}

// TestLateWork: the status names a queue whose work is not done a minute after it was due, and for no longer.
func TestLateWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		w := &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
			if attempts++; attempts == 1 {
				return bridge.Delivered{}, &client.SendError{Retry: true, Cause: errors.New("connection refused")}
			}
			time.Sleep(5 * time.Minute)
			return bridge.Delivered{}, nil
		}}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		mustSend(t, l.Node, to("ann", "conv_1", "hello"), time.Minute)
		due := theEntry(t, l.Node).Due
		for _, tt := range []struct {
			at   time.Duration // after the time of the second attempt
			late bool
		}{{-time.Second, false}, {30 * time.Second, false}, {2 * time.Minute, true}, {6 * time.Minute, false}} {
			time.Sleep(time.Until(due.Add(tt.at)))
			synctest.Wait()
			status, err := l.OwnerAPI().Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if late := len(status.Late) == 1 && status.Late[0].Queue == "outbox" && status.Late[0].Since.Sub(due).Abs() < time.Second; late != tt.late || !late && len(status.Late) > 0 {
				t.Errorf("%v after it was due, the status shows %v late (attempts %d)", tt.at, status.Late, attempts)
			}
		}
	})
}

// TestClockOffIsNotFinal: a message that a peer refused for its time, because our clock is off, leaves with the next
// attempt after the clock was set (AM-84). A refusal with the right time is final.
func TestClockOffIsNotFinal(t *testing.T) {
	for ahead, want := range map[time.Duration]owner.SendState{-12 * time.Hour: owner.SendDelivered, 12 * time.Hour: owner.SendDelivered, 0: owner.SendFailed} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			w := &wireTransport{deliver: func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
				if time.Since(began) > 3*time.Hour {
					return bridge.Delivered{}, nil
				}
				return bridge.Delivered{}, &client.SendError{Status: http.StatusBadRequest, Refusal: wire.ErrTimeWindow, ClockAhead: ahead}
			}}
			l := loneNode(t, t.TempDir(), w)
			defer l.stop()
			mustSend(t, l.Node, to("ann", "conv_1", "hello"), time.Minute)
			time.Sleep(3*time.Hour + 15*time.Minute)
			synctest.Wait()
			if e := theEntry(t, l.Node); e.State != want {
				t.Errorf("with a clock that is %v behind: %s (%s)", ahead, e.State, e.Err)
			}
		})
	}
}
