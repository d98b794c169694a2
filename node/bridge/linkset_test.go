package bridge_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/node/bridge"
)

// setLink is a link that counts its runs.
type setLink struct {
	name          string
	runs, stopped int
	fail          error
}

func (l *setLink) Status() bridge.LinkStatus { return bridge.LinkStatus{Name: l.name} }

func (l *setLink) Test(context.Context) error { return l.fail }

func (l *setLink) Run(ctx context.Context) error {
	l.runs++
	if l.fail != nil {
		return l.fail
	}
	<-ctx.Done()
	l.stopped++
	return nil
}

// TestLinkSet: a set starts and stops one link at a time, before and while it runs, and stops all at its end.
func TestLinkSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set bridge.LinkSet[*setLink]
		check := func(l *setLink, runs, stopped int) {
			t.Helper()
			synctest.Wait()
			if l.runs != runs || l.stopped != stopped {
				t.Errorf("%s: %d runs, %d stopped; want %d, %d", l.name, l.runs, l.stopped, runs, stopped)
			}
		}
		first, second, again, late := &setLink{name: "first"}, &setLink{name: "second"}, &setLink{name: "second"}, &setLink{name: "late"}
		set.Put(first)
		set.Put(second)
		check(first, 0, 0)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- set.Run(ctx) }()
		check(first, 1, 0)
		changed := set.NextChange()
		set.Put(again)
		<-changed
		check(second, 1, 1)
		check(again, 1, 0)
		set.Put(late)
		set.Remove("nobody")
		set.Remove("late")
		check(late, 1, 1)
		check(first, 1, 0)
		if found, ok := set.Find("second"); !ok || found != again || len(set.States()) != 2 {
			t.Errorf("the set has %v", set.States())
		}
		if err := set.Test(t.Context(), "second"); err != nil {
			t.Error(err)
		}
		if err := set.Test(t.Context(), "late"); err == nil || err.Error() != "there is no link late" {
			t.Errorf("the test of a removed link: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		check(first, 1, 1)
		check(again, 1, 1)

		broken := &setLink{name: "broken", fail: errors.New("no store")}
		set.Put(broken)
		if err := set.Run(t.Context()); err != broken.fail {
			t.Errorf("Run = %v, want the error of the link", err)
		}
		check(first, 2, 2)
	})
}

// TestLinkStaysDown: a link that goes down while it is tested stays down, although the test then ends well. A later test
// takes it up again.
func TestLinkStaysDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bridge.NewCalledLink(bridge.Link{Name: "far"}, "token", func(_ context.Context, l *bridge.CalledLink) error {
			began := time.Now()
			time.Sleep(time.Second)
			l.Record(began, bridge.LinkUp, "")
			return nil
		})
		go func() {
			time.Sleep(time.Second / 2)
			l.Record(time.Now(), bridge.LinkDown, "the token is refused")
		}()
		for _, want := range []bridge.LinkState{bridge.LinkDown, bridge.LinkUp} {
			if err := l.Test(t.Context()); err != nil || l.Status().State != want {
				t.Errorf("after a test the link is %+v, %v, want %s", l.Status(), err, want)
			}
		}
	})
}
