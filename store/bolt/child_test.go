package bolt

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/storetest"
)

// childEnv holds the path of the database that a child process writes to until it is killed.
const childEnv = "BOLT_TEST_CHILD"

// childMain is the main function of a child process. It reports whether this process is a child.
func childMain() bool {
	path := os.Getenv(childEnv)
	if path == "" {
		return false
	}
	s, err := Open(context.Background(), path, Config{})
	if err != nil {
		fmt.Println("open", err)
		os.Exit(1)
	}
	out := &lines{w: bufio.NewWriter(os.Stdout)}
	out.say("ready")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for {
				loadOnce(s, out)
			}
		})
	}
	all.Wait()
	return true
}

type lines struct {
	mu sync.Mutex
	w  *bufio.Writer
}

func (l *lines) say(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.w, format+"\n", args...)
	l.w.Flush()
}

var childNow = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// loadOnce applies one unit of each kind, and prints a line for each unit that was acknowledged.
func loadOnce(s *Store, out *lines) {
	ctx := context.Background()
	id := fmt.Sprintf("%016x", rand.Uint64())
	_, err := s.Cards().Put(ctx, store.PutCard{
		Card: store.Card{ID: id, Terms: []string{"cap:load", "id:" + id}, Body: storetest.Text(rand.Int(), 500), Expires: childNow.Add(time.Hour)},
		Now:  childNow,
	})
	if err == nil {
		out.say("card %s", id)
	}
	conv := store.Conversation{Key: store.ConvKey{Peer: "p", ID: id[:2]}, Rev: store.Any, Open: true}
	step := store.Step{
		Conv: &conv, Append: []store.Entry{{MessageID: id, Raw: storetest.Text(rand.Int(), 300)}}, Now: childNow,
		Replay: &store.Replay{Sender: "p", MessageID: id, Conv: conv.Key, Expires: childNow.Add(time.Hour)},
		Records: []store.Change{
			{Record: store.Record{NS: "inbox", Key: id, Terms: []string{"new"}}},
			{Record: store.Record{NS: "work", Key: id + "1", Due: store.DueNow, Lane: id}},
			{Record: store.Record{NS: "work", Key: id + "2", Due: store.DueNow, Lane: id}},
		},
	}
	if _, err := s.Steps().Apply(ctx, step); err == nil {
		out.say("step %s", id)
	}
	if again, err := s.Steps().Apply(ctx, step); err == nil && !again.Dup {
		out.say("twice %s", id)
	}
	if rand.IntN(2) == 0 {
		end := store.Change{Record: store.Record{NS: "work", Key: id + "1", Lane: id}, IfRev: store.Any, Delete: true}
		if err := s.Records().Apply(ctx, []store.Change{end}, childNow); err == nil {
			out.say("done %s", id)
		}
	}
	if rand.IntN(4) == 0 {
		if err := s.Cards().Withdraw(ctx, id, store.Any, childNow.Add(time.Hour), nil, childNow); err == nil {
			out.say("gone %s", id)
		}
	}
}
