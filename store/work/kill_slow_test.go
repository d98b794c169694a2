//go:build slow

package work_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/work"
)

const killFile = "AGENTMESH_TEST_KILL"

// killNamespaces are the queues of the test: one with lanes, one with parties, one whose calls wait before they settle.
var killNamespaces = []string{"lanes", "parties", "waits"}

// openKilled opens the database of the test with a worker that moves every record to the namespace done, whose body counts
// how often it was settled. A call notes in begun, before it settles, that it began.
func openKilled(ctx context.Context, file string) (store.Store, *work.Worker) {
	db, err := bolt.Open(ctx, file, bolt.Config{})
	if err != nil {
		panic(err)
	}
	s := store.Observe(db)
	w := work.New(s, nil, slog.New(slog.DiscardHandler))
	for _, ns := range killNamespaces {
		w.Add(work.Queue{NS: ns, Max: 8, PerParty: 2, Do: func(ctx context.Context, rec store.Record, _ bool) (work.Later, error) {
			if ns == "waits" && rand.IntN(2) == 0 {
				return work.Later{Pause: time.Millisecond}, nil
			}
			now := time.Now()
			order := store.Record{NS: "order", Key: "lane" + rec.Lane}
			last, err := s.Records().Get(ctx, order.NS, order.Key, now)
			if rec.Lane != "" && err == nil && string(last.Body) >= rec.Key {
				return work.Later{}, s.Records().Apply(ctx, []store.Change{{Record: store.Record{NS: "disorder", Key: rec.Key}, IfRev: store.Any}}, now)
			}
			order.Body = []byte(rec.Key)
			changes := []store.Change{
				{Record: rec, IfRev: rec.Rev, Delete: true},
				{Record: store.Record{NS: "done", Key: ns + "/" + rec.Key}}, // fails if it was settled before
			}
			if rec.Lane != "" {
				changes = append(changes, store.Change{Record: order, IfRev: store.Any})
			}
			return work.Later{}, s.Records().Apply(ctx, changes, now)
		}})
	}
	return s, w
}

func TestMain(m *testing.M) {
	if file := os.Getenv(killFile); file != "" {
		addForever(context.Background(), file)
	}
	os.Exit(m.Run())
}

// addForever is the process that [TestKill] kills.
func addForever(ctx context.Context, file string) {
	s, w := openKilled(ctx, file)
	go w.Run(ctx)
	fmt.Println("ready")
	for n := time.Now().UnixNano(); ; n++ {
		key := fmt.Sprintf("%020d", n)
		var changes []store.Change
		for i, ns := range killNamespaces {
			rec := store.Record{NS: ns, Key: key, Due: store.DueNow, Party: fmt.Sprint(n % 3)}
			if i == 0 {
				rec.Lane = fmt.Sprint(n % 2)
			}
			changes = append(changes, store.Change{Record: rec}, store.Change{Record: store.Record{NS: "made", Key: ns + "/" + key}})
		}
		if err := s.Records().Apply(ctx, changes, time.Now()); err != nil {
			panic(err)
		}
	}
}

// TestKill: whenever the process is killed, every record is settled once, and each lane in its order.
func TestKill(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kill.db")
	for range 500 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killFile+"="+file)
		out, err := child.StdoutPipe()
		if err == nil {
			err = child.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(20 * time.Millisecond))
		_ = child.Process.Kill()
		_ = child.Wait()
	}
	s, w := openKilled(t.Context(), file)
	defer s.Close()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	count := func(ns string) int {
		n, err := s.Records().Count(t.Context(), ns, "", 10_000_000, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for deadline := time.Now().Add(time.Minute); count("lanes")+count("parties")+count("waits") > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("records are left")
		}
	}
	stop()
	<-done
	if made, settled, wrong := count("made"), count("done"), count("disorder"); made == 0 || settled != made || wrong != 0 {
		t.Errorf("%d records were made and %d settled; %d out of order", made, settled, wrong)
	} else {
		t.Logf("%d records", made)
	}
}
