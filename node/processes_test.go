package node_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
	"github.com/agentmesh/agentmesh/store/storetest"
)

const (
	processTTL = 1500 * time.Millisecond // of the leases in these tests
	takeover   = 5 * time.Second         // in which another process must take over
)

// processes are the processes of one node over one store.
type processes struct {
	t         *testing.T
	mesh      *meshtest.Mesh
	db        *bolt.Store
	delay     time.Duration // of each call of the store
	wires     *wireTransport
	configure func(*node.Config)
	all       []*process
}

// process is one of them.
type process struct {
	*meshtest.Member
	shaky *storetest.Shaky
	stop  context.CancelFunc
	done  chan struct{}
}

// startProcesses starts n processes of sarah. Each call of their store takes up to delay.
func startProcesses(t *testing.T, n int, delay time.Duration, configure func(*node.Config)) *processes {
	t.Helper()
	db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{LeaseTTL: processTTL})
	if err != nil {
		t.Fatal(err)
	}
	ps := &processes{t: t, mesh: meshtest.New(t), db: db, delay: delay, wires: &wireTransport{deliver: takes}, configure: configure}
	t.Cleanup(func() {
		for _, p := range ps.all {
			p.stop()
			<-p.done
		}
		if err := db.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})
	for range n {
		ps.start()
	}
	return ps
}

// start starts another process.
func (ps *processes) start() *process {
	ps.t.Helper()
	p := &process{shaky: storetest.NewShaky(ps.db.Handle(fmt.Sprint("process ", len(ps.all))), ps.delay), done: make(chan struct{})}
	var first *meshtest.Member
	if len(ps.all) > 0 {
		first = ps.all[0].Member
	}
	p.Member = ps.mesh.Process("sarah", p.shaky, first, ps.configure)
	p.Connect(bridge.Kind{Name: "wire"}, ps.wires)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer close(p.done)
		_ = p.Run(ctx) // a process that was killed cannot store its limits
	}()
	ps.all = append(ps.all, p)
	if len(ps.all) == 1 {
		waitFor(ps.t, "nobody has the duties", func() bool { return ps.holder() == p })
	}
	return p
}

// holder returns the process with the duties, or nil.
func (ps *processes) holder() *process {
	list, err := ps.db.Leases().List(context.Background())
	if err != nil {
		ps.t.Fatal(err)
	}
	for _, lease := range list {
		for i, p := range ps.all {
			if lease.Name == node.Lease && lease.Holder == fmt.Sprint("process ", i) {
				return p
			}
		}
	}
	return nil
}

// kill ends a process as kill -9 does: nothing that it does from now on reaches the store.
func (p *process) kill() {
	p.shaky.Kill()
	p.stop()
}

// others returns the processes except one.
func (ps *processes) others(one *process) []*process {
	return slices.DeleteFunc(slices.Clone(ps.all), func(p *process) bool { return p == one })
}

// within fails the test unless done becomes true in time.
func within(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	began := time.Now()
	waitFor(t, what, done)
	if took := time.Since(began); took > limit {
		t.Errorf("%s: it took %v, want at most %v", what, took, limit)
	}
}

func (p *process) delivered() int {
	entries, _, err := p.Outbox(context.Background(), owner.SendDelivered, "", 1000)
	if err != nil {
		return -1
	}
	return len(entries)
}

// wantOrder checks that the messages of each conversation arrived in their order, each once if once is set.
func wantOrder(t *testing.T, got []string, sent map[string][]string, once bool) {
	t.Helper()
	for conv, want := range sent {
		var seen []string
		for _, text := range got {
			if !slices.Contains(want, text) || !once && slices.Contains(seen, text) {
				continue
			}
			seen = append(seen, text)
		}
		if !slices.Equal(seen, want) {
			t.Errorf("conversation %s arrived as %q, want %q", conv, seen, want)
		}
	}
}

// TestProcessesDeliver: two and three processes on one store deliver each message once and in the order of its
// conversation, whichever process took it.
func TestProcessesDeliver(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			ps := startProcesses(t, n, 2*time.Millisecond, open)
			sent, mu, senders := map[string][]string{}, sync.Mutex{}, sync.WaitGroup{}
			const each = 15
			for c := range 4 {
				conv := fmt.Sprint("conv_", c)
				senders.Go(func() {
					for i := range each {
						text := fmt.Sprint(conv, " message ", i)
						if _, err := ps.all[rand.N(n)].Send(t.Context(), to(conv, wire.ConversationID(conv), text), 0); err != nil {
							t.Error(err)
						}
						mu.Lock()
						sent[conv] = append(sent[conv], text)
						mu.Unlock()
					}
				})
			}
			senders.Wait()
			waitFor(t, "not everything is delivered", func() bool { return ps.all[0].delivered() == 4*each })
			if got := ps.wires.deliveries(); len(got) != 4*each {
				t.Errorf("%d deliveries of %d messages", len(got), 4*each)
			}
			wantOrder(t, ps.wires.deliveries(), sent, true)
		})
	}
}

// TestWaitingSender: a sender at a process without the duties learns the outcome of the first attempt.
func TestWaitingSender(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 2, time.Millisecond, open)
	other := ps.others(ps.holder())[0]
	waitFor(t, "the other process has not found the holder", func() bool { return other.delivered() == 0 })
	began := time.Now()
	sent := mustSend(t, other.Node, to("ann", "conv_one", "hello"), 10*time.Second)
	if sent.State != owner.SendDelivered || time.Since(began) > time.Second {
		t.Errorf("after %v it is %s, want delivered within a second", time.Since(began), sent.State)
	}
}

// TestWaitingSenderGetsReply: a sender at a process without the duties gets the reply, also a sealed one.
func TestWaitingSenderGetsReply(t *testing.T) {
	t.Parallel()
	for _, seal := range []node.Sealing{node.SealOff, node.SealRequire} {
		ps := startProcesses(t, 2, time.Millisecond, func(cfg *node.Config) {
			cfg.Policy.Mode, cfg.Outbound.Seal = acl.Open, seal
		})
		calls := make(chan hook.Call, 1)
		ann := ps.mesh.Node("ann", answers(secretReply, calls))
		other := ps.others(ps.holder())[0]
		if _, err := ps.holder().Registrar().Register(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "the other process has not found the holder", func() bool { return other.delivered() == 0 })
		out := to("", "conv_one", "hello")
		out.To, out.Address = ann.ID(), ""
		sent := mustSend(t, other.Node, out, 20*time.Second)
		if sent.State != owner.SendDelivered || sent.Reply == nil || sent.ReplySealed != (seal == node.SealRequire) {
			t.Fatalf("seal %s: %+v, want the reply", seal, sent)
		}
		shown, _ := sent.ReplyTree.Get("payload")
		for _, payload := range []wire.Value{sent.Reply.Payload, shown} {
			if message, _ := payload.Get("message"); message.GetStr("body") != "the answer to the secret" {
				t.Errorf("seal %s: reply %s", seal, payload.JSON())
			}
		}
	}
}

// counted counts the runs of a hook for each message.
type counted struct {
	mu   sync.Mutex
	runs map[wire.MessageID]int
}

func (c *counted) Handle(_ context.Context, call hook.Call) (hook.Answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = make(map[wire.MessageID]int)
	}
	c.runs[call.Message.ID]++
	time.Sleep(time.Millisecond)
	return hook.Answer{}, nil
}

// TestProcessesRunHooks: a hook runs once for each message, whichever process received it. Every sender gets an answer,
// and messages that the owner releases at another process reach the hook too.
func TestProcessesRunHooks(t *testing.T) {
	t.Parallel()
	runs := &counted{}
	ps := startProcesses(t, 3, time.Millisecond, func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		cfg.Policy.Hold = []acl.HoldRule{{Intent: "mesh.schedule"}}
		cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "counted", Handler: runs, Repeatable: true}}
	})
	chris := ps.mesh.Stranger("chris")
	const messages = 30
	for i := range messages {
		at := ps.all[i%3]
		a := at.Post(chris.Sign(chris.Draft(at.ID(), wire.Deliver, hello)))
		if a.Status != http.StatusOK && a.Status != http.StatusAccepted {
			t.Fatalf("answer = %d %s", a.Status, a.Body)
		}
	}
	answered := func() int {
		items, _, err := ps.all[0].Inbox(t.Context(), owner.ItemAnswered, "", 1000)
		if err != nil {
			t.Fatal(err)
		}
		return len(items)
	}
	waitFor(t, "not every hook has answered", func() bool { return answered() == messages })
	for id, n := range runs.runs {
		if n != 1 {
			t.Errorf("the hook ran %d times for %s", n, id)
		}
	}
	if len(runs.runs) != messages {
		t.Errorf("the hook ran for %d messages, want %d", len(runs.runs), messages)
	}
}

// TestPauseOfAllProcesses: a pause, an event and a decision at one process reach the others within a second.
func TestPauseOfAllProcesses(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 3, time.Millisecond, open)
	chris := ps.mesh.Stranger("chris")
	must(t, ps.all[2].Post(chris.Sign(chris.Draft(ps.all[0].ID(), wire.Deliver, hello))), http.StatusOK) // everybody follows by now
	time.Sleep(100 * time.Millisecond)
	for _, paused := range []bool{true, false} {
		events, stop := ps.all[2].Watch()
		if err := ps.all[1].SetPause(t.Context(), paused, "test"); err != nil {
			t.Fatal(err)
		}
		for _, p := range ps.all {
			within(t, time.Second, "a process has not seen the pause", func() bool { return p.IsPaused() == paused })
		}
		select {
		case ev := <-events:
			if ev.Topic != owner.TopicStatus {
				t.Errorf("event = %+v, want the status", ev)
			}
		case <-time.After(time.Second):
			t.Error("no event within a second")
		}
		stop()
	}
	items, _, err := ps.all[0].Inbox(t.Context(), owner.ItemNew, "", 10)
	if err != nil || len(items) != 1 {
		t.Fatalf("inbox = %v, %v, want one item", items, err)
	}
	arrived := make(chan time.Time, 1)
	go func() { // the owner's long poll
		if items, _, err := ps.all[0].WaitInbox(t.Context(), owner.Query{State: string(owner.ItemNew), After: items[0].ID, Limit: 10, Wait: 10 * time.Second}); err != nil || len(items) != 1 {
			t.Errorf("inbox = %v, %v, want one item", items, err)
		}
		arrived <- time.Now()
	}()
	time.Sleep(50 * time.Millisecond)
	posted := time.Now()
	must(t, ps.all[1].Post(chris.Sign(chris.Draft(ps.all[0].ID(), wire.Deliver, hello))), http.StatusOK)
	if took := (<-arrived).Sub(posted); took > time.Second {
		t.Errorf("the long poll at another process returned after %v", took)
	}
}

// TestChangeDuringStart: a process learns of a change that another one makes after the process has read the state, and
// before it follows changes.
func TestChangeDuringStart(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 1, 0, open)
	late := ps.mesh.Process("sarah", ps.db.Handle("late"), ps.all[0].Member, open)
	if err := ps.all[0].SetPause(t.Context(), true, "test"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = late.Run(ctx) })
	within(t, time.Second, "the process has not seen the pause", late.IsPaused)
}

// countingTarget counts how often each notice is sent.
type countingTarget struct {
	mu   sync.Mutex
	sent map[string]int
}

func (*countingTarget) Name() string { return "counting" }

func (c *countingTarget) Send(_ context.Context, b notify.Batch) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range b.Notices {
		c.sent[n.ID]++
	}
	return nil
}

func (c *countingTarget) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sent)
}

// TestProcessesNotify: each notice is sent once, whichever process stored it.
func TestProcessesNotify(t *testing.T) {
	t.Parallel()
	target := &countingTarget{sent: make(map[string]int)}
	var boxes []*notify.Box
	ps := startProcesses(t, 3, time.Millisecond, func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		cfg.Notices = notify.New(notify.Config{Records: store.Observe(cfg.Store).Records(), Target: target, Batch: time.Millisecond})
		boxes = append(boxes, cfg.Notices)
	})
	const notices = 15
	for i := range notices {
		change := boxes[i%3].Change(notify.Notice{Kind: fmt.Sprint("test", i%5), Title: "test", At: time.Now()})
		if err := ps.all[i%3].Store.Records().Apply(t.Context(), []store.Change{change}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "not every notice was sent", func() bool { return target.count() >= notices })
	time.Sleep(100 * time.Millisecond)
	for id, n := range target.sent {
		if n != 1 {
			t.Errorf("notice %s was sent %d times", id, n)
		}
	}
}

// TestKilledProcesses: processes are killed at random points. Another one takes over in time, nothing that was
// acknowledged is lost, and the order within a conversation holds.
func TestKilledProcesses(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			killProcesses(t, startProcesses(t, n, time.Millisecond, open))
		})
	}
}

// killProcesses kills processes while all of them send.
func killProcesses(t *testing.T, ps *processes) {
	var mu sync.Mutex
	alive := slices.Clone(ps.all)
	sent := map[string][]string{}
	ctx, stop := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	for c := range 3 {
		conv := fmt.Sprint("conv_", c)
		senders.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				text := fmt.Sprint(conv, " message ", i)
				mu.Lock()
				p := alive[rand.N(len(alive))]
				mu.Unlock()
				switch _, err := p.Send(ctx, to(conv, wire.ConversationID(conv), text), 0); {
				case err == nil:
					mu.Lock()
					sent[conv] = append(sent[conv], text)
					mu.Unlock()
				case !errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil:
					t.Errorf("Send: %v", err)
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	for range 3 {
		time.Sleep(rand.N(400 * time.Millisecond))
		old := ps.holder()
		if old == nil {
			continue
		}
		mu.Lock()
		alive = slices.DeleteFunc(alive, func(p *process) bool { return p == old })
		mu.Unlock()
		old.kill()
		within(t, takeover, "nobody took over", func() bool { h := ps.holder(); return h != nil && h != old })
		p := ps.start()
		mu.Lock()
		alive = append(alive, p)
		mu.Unlock()
	}
	stop()
	senders.Wait()
	total := 0
	for _, texts := range sent {
		total += len(texts)
	}
	waitFor(t, "acknowledged messages were not delivered", func() bool { return ps.all[len(ps.all)-1].delivered() >= total })
	wantOrder(t, ps.wires.deliveries(), sent, false)
}

// TestCommandsTakeNoLease: a command that opens the node for a moment delivers if nobody has the duties, and takes no
// lease. If a process has the duties, the command leaves its message to that process.
func TestCommandsTakeNoLease(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 1, 0, open)
	command := func() *meshtest.Member {
		m := ps.mesh.Process("sarah", ps.db.Handle("command"), ps.all[0].Member, open)
		m.Connect(bridge.Kind{Name: "wire"}, ps.wires)
		return m
	}
	deliver := func(m *meshtest.Member, text string) {
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { m.Deliver(ctx) })
		mustSend(t, m.Node, to("ann", "conv_one", text), 0)
		m.AwaitAttempts(ctx)
		if list, err := ps.db.Leases().List(ctx); err != nil || slices.ContainsFunc(list, func(s store.LeaseState) bool { return s.Holder == "command" }) {
			t.Errorf("leases = %v, %v: the command has one", list, err)
		}
		stop()
		running.Wait()
	}
	deliver(command(), "beside a process")
	waitFor(t, "the process has not delivered the message of the command", func() bool { return ps.all[0].delivered() == 1 })
	ps.all[0].stop()
	<-ps.all[0].done
	deliver(command(), "alone")
	if got := ps.wires.deliveries(); !slices.Equal(got, []string{"beside a process", "alone"}) {
		t.Errorf("deliveries = %q", got)
	}
}

// TestAmbiguousAcceptAtAnotherProcess (AM-88): an ambiguous accept that a process without the duties receives is
// answered with a counter-proposal by the process that has them.
func TestAmbiguousAcceptAtAnotherProcess(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 2, time.Millisecond, withBook)
	ann := newPeer(t, ps.mesh, "ann")
	ann.answers(ann.says(`{"action":"received"}`))
	out := outgoing(t, ann.ID, wire.Schedule, proposeSeveral)
	out.Conv = "conv_one"
	mustSend(t, ps.all[0].Node, out, 10*time.Second)
	other := ps.all[1]
	a := other.Post(ann.Sign(in("conv_one", ann.Draft(other.ID(), wire.Schedule, `{"action":"accept"}`))))
	if a.Status != http.StatusAccepted {
		t.Fatalf("answer = %d %s", a.Status, a.Body)
	}
	waitFor(t, "no counter-proposal", func() bool {
		return slices.ContainsFunc(ann.got(), func(m wire.Message) bool { return m.Action() == "counter" })
	})
}
