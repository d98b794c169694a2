//go:build slow

package main

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store/postgres/pgtest"
)

// envFaults is the variable that makes the tests of faults take their long form:
//
//	AGENTMESH_FAULTS=long go test -tags slow ./cmd/agentmesh -run 'TestFaults|TestDatabaseTrouble' -v -timeout 60m
const envFaults = "AGENTMESH_FAULTS"

// faultForm describes the faults that a test makes, and what it expects.
type faultForm struct {
	quiet        time.Duration // load before the first fault and after the last one
	kills        int           // of an instance
	every        time.Duration // between two kills
	stalls       int           // of the instance with the lease
	acknowledged int           // the minimum number of acknowledged writes
	outage       time.Duration // the longest permitted time without an acknowledgement of one kind, or without an arrival
}

func formOfFaults() faultForm {
	if os.Getenv(envFaults) == "long" {
		return faultForm{quiet: 10 * time.Second, kills: 24, every: 5 * time.Second, stalls: 8, acknowledged: 50_000, outage: outageTolerate}
	}
	return faultForm{quiet: time.Second, kills: 2, every: 3 * time.Second, stalls: 1, acknowledged: 500, outage: 4 * outageTolerate} // other tests run at the same time
}

// TestFaults makes three instances fail under load, and then their primary, which a synchronous standby replaces.
// Nothing that was acknowledged is lost, and no recipient gets a letter twice or out of order.
func TestFaults(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short")
	}
	form := formOfFaults()
	primary := pgtest.New(t)
	standby, err := primary.Standby()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)
	c := newCluster(t, 3, pgtest.URLs("postgres", primary, standby))
	c.startAll()
	l := newClusterLoad(t, c)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var work sync.WaitGroup
	l.run(ctx, &work)
	report := func(fault string) {
		gaps := l.gaps()
		t.Logf("%s: %d acknowledged; longest gaps: %v", fault, l.acknowledged(), gaps)
		for kind, gap := range gaps {
			if kind != ackApproval && gap > form.outage { // approvals depend on held messages
				t.Errorf("%s: no %s for %v", fault, kind, gap)
			}
		}
	}
	<-time.After(form.quiet)
	report("no fault")

	for range form.kills {
		<-time.After(form.every)
		victim := c.instances[rand.IntN(len(c.instances))]
		if rand.IntN(2) == 0 {
			victim = c.awaitHolder("node", nil)
		}
		victim.kill()
		if err := c.start(victim); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(form.quiet + 2*time.Second)
	report("kill an instance")

	for range form.stalls {
		stalled := c.awaitHolder("node", nil)
		server, _ := stalled.running()
		if err := server.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		c.awaitHolder("node", stalled)
		<-time.After(time.Second)
		if err := server.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
	}
	report("stop the instance with the lease")

	primary.Crash()
	<-time.After(700 * time.Millisecond) // until somebody notices
	if err := standby.Promote(); err != nil {
		t.Fatal(err)
	}
	<-time.After(form.quiet + 2*time.Second)
	report("kill the primary and promote the standby")

	for begun := time.Now(); l.acknowledged() < form.acknowledged && time.Since(begun) < 20*time.Minute; {
		<-time.After(time.Second)
	}
	stop()
	work.Wait()
	l.audit()
	if n := l.acknowledged(); n < form.acknowledged {
		t.Errorf("only %d writes were acknowledged, not %d", n, form.acknowledged)
	}
}
