//go:build clockstep

package main

import (
	"context"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// envTestClock makes the clock of a process wrong by a duration.
const envTestClock = "TEST_CLOCK"

func init() {
	if by, err := time.ParseDuration(os.Getenv(envTestClock)); err == nil {
		storetest.SetClock(by)
	}
}

// TestClockStepOfInstances: three instances whose clocks differ by a minute lose, repeat and disorder nothing. The
// lease follows the clock of the database. When its holder is killed, another instance takes over.
func TestClockStepOfInstances(t *testing.T) {
	if testing.Short() {
		t.Skip("-short")
	}
	c := newCluster(t, 3, pgtest.New(t).URL("postgres"))
	for i, by := range []time.Duration{30 * time.Second, 0, -30 * time.Second} {
		c.instances[i].env = []string{envTestClock + "=" + by.String()}
	}
	c.startAll()
	var dates []time.Time
	for _, i := range c.instances {
		resp, err := http.Get("http://" + i.server.info.Address + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		date, err := http.ParseTime(resp.Header.Get("Date"))
		if err != nil {
			t.Fatal(err)
		}
		dates = append(dates, date)
	}
	if differ := dates[0].Sub(dates[2]); differ < 55*time.Second {
		t.Fatalf("the clocks differ by %v only", differ)
	}
	l := newClusterLoad(t, c)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work sync.WaitGroup
	l.run(ctx, &work)
	for range 3 { // so that most likely a fast clock and a slow one have had the lease
		<-time.After(2 * time.Second)
		holder := c.awaitHolder("node", nil)
		holder.kill()
		c.awaitHolder("node", holder)
		if err := c.start(holder); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(2 * time.Second)
	stop()
	work.Wait()
	l.audit()
	t.Logf("%d acknowledged; longest gaps: %v", l.acknowledged(), l.gaps())
	if l.acknowledged() < 500 {
		t.Errorf("only %d writes were acknowledged", l.acknowledged())
	}
}
