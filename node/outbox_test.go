package node_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/client"
	"github.com/agentmesh/agentmesh/node/goldentest"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/notify"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/rules"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/store"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// wireTransport is a network in memory, for tests with synthetic time.
type wireTransport struct {
	deliver func(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error)

	mu   sync.Mutex
	seen []bridge.Delivery
	at   []time.Time
}

func (t *wireTransport) Deliver(ctx context.Context, d bridge.Delivery) (bridge.Delivered, error) {
	t.mu.Lock()
	t.seen = append(t.seen, d)
	t.at = append(t.at, time.Now())
	t.mu.Unlock()
	return t.deliver(ctx, d)
}

// deliveries returns the texts of the messages that have arrived so far.
func (t *wireTransport) deliveries() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var texts []string
	for _, d := range t.seen {
		message, _ := d.Message.Payload.Get("message")
		texts = append(texts, message.GetStr("body"))
	}
	return texts
}

func takes(context.Context, bridge.Delivery) (bridge.Delivered, error) {
	return bridge.Delivered{}, nil
}

func failWith(err error) func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
	return func(context.Context, bridge.Delivery) (bridge.Delivered, error) { return bridge.Delivered{}, err }
}

// testStore opens the database of dir.
func testStore(t *testing.T, dir string) store.Store {
	t.Helper()
	s, err := bolt.Open(t.Context(), filepath.Join(dir, "node.db"), bolt.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// lone is a node without directories that sends over a wireTransport.
type lone struct {
	*node.Node
	store store.Store
	stop  func() // stops the node, then closes its store
}

// loneNode starts a node on the database in dir.
func loneNode(t *testing.T, dir string, wires bridge.Transport, configure ...func(*node.Config)) *lone {
	t.Helper()
	return runLoneNode(t, dir, wires, (*node.Node).Deliver, configure...)
}

// runLoneNode starts a node with run instead of [node.Node.Deliver].
func runLoneNode(t *testing.T, dir string, wires bridge.Transport, run func(*node.Node, context.Context), configure ...func(*node.Config)) *lone {
	t.Helper()
	s := testStore(t, dir)
	h := client.NewHTTP(client.HTTPConfig{Local: true})
	cfg := node.Config{
		Store: s, HTTP: h, Notices: notify.New(notify.Config{Records: s.Records()}), Credential: "secret",
		Identity: node.Identity{Key: meshtest.Key("lone"), Card: meshtest.Card(t, "lone", "http://127.0.0.1:9/agentmesh")},
	}
	for _, c := range configure {
		c(&cfg)
	}
	n, err := node.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.Connect(bridge.Kind{Name: "wire"}, wires)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(n, ctx)
	}()
	l := &lone{Node: n, store: s, stop: sync.OnceFunc(func() {
		cancel()
		<-done
		h.Close()
		if err := s.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
	})}
	t.Cleanup(l.stop)
	return l
}

func theEntry(t *testing.T, n *node.Node) node.OutboxEntry {
	t.Helper()
	entries, _, err := n.Outbox(t.Context(), "", "", 10)
	if err != nil || len(entries) != 1 {
		t.Fatalf("outbox = %v, %v, want one entry", entries, err)
	}
	return entries[0]
}

func noticeKinds(t *testing.T, s store.Store) []string {
	t.Helper()
	list, _, err := notify.New(notify.Config{Records: s.Records()}).List(t.Context(), "", 100, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, n := range list {
		kinds = append(kinds, n.Kind)
	}
	return kinds
}

func convState(t *testing.T, s store.Store, out node.Outgoing) conversations.State {
	t.Helper()
	row, err := s.Steps().Conversation(t.Context(), store.ConvKey{Peer: string(out.To), ID: string(out.Conv)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	conv, err := conversations.Decode(row)
	if err != nil {
		t.Fatal(err)
	}
	return conv.State
}

// TestSendSchedule checks the pauses of AM-47, with a jitter of a fifth, and the end after 72 h.
func TestSendSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wireTransport{deliver: failWith(&client.SendError{Retry: true})}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		out := to("ann", "conv_1", "hello")
		began := time.Now()
		if sent := mustSend(t, l.Node, out, time.Minute); sent.State != owner.SendQueued || sent.Err == nil {
			t.Errorf("after the first attempt: %+v, want queued with the reason", sent)
		}
		time.Sleep(80 * time.Hour)
		synctest.Wait()
		want := []time.Duration{5 * time.Second, 30 * time.Second, 2 * time.Minute, 10 * time.Minute, 30 * time.Minute, time.Hour}
		for i := 1; i < len(w.at); i++ {
			due := 3 * time.Hour
			if i <= len(want) {
				due = want[i-1]
			}
			if gap := w.at[i].Sub(w.at[i-1]); gap < due*8/10 || gap > due*12/10+time.Second {
				t.Errorf("attempt %d after %v, want %v ± 20 %%", i+1, gap, due)
			}
			if w.seen[i].Attempt != i+1 {
				t.Errorf("attempt %d is numbered %d", i+1, w.seen[i].Attempt)
			}
		}
		last := w.at[len(w.at)-1].Sub(began)
		if last > 72*time.Hour || last < 68*time.Hour {
			t.Errorf("the last attempt came after %v, want about 72 h", last)
		}
		if entry := theEntry(t, l.Node); entry.State != owner.SendFailed {
			t.Errorf("entry is %s, want failed", entry.State)
		}
		if kinds := noticeKinds(t, l.store); !slices.Equal(kinds, []string{"delayed", "undelivered"}) {
			t.Errorf("notices %v, want delayed and undelivered", kinds)
		}
	})
}

// TestUnsent: a message that a limit holds back waits as long as the limit demands, also beyond 72 h, and that counts
// as no attempt.
func TestUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		w := &wireTransport{}
		w.deliver = func(context.Context, bridge.Delivery) (bridge.Delivered, error) {
			switch now := time.Since(began); {
			case now < 20*time.Minute:
				return bridge.Delivered{}, &client.SendError{Retry: true}
			case now < 80*time.Hour:
				return bridge.Delivered{}, &client.SendError{Retry: true, Unsent: true, After: time.Hour}
			}
			return bridge.Delivered{}, nil
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		mustSend(t, l.Node, to("ann", "conv_1", "hello"), 0)
		time.Sleep(82 * time.Hour)
		synctest.Wait()
		const failures = 5 // after 0 s, 5 s, 35 s, 3 min and 13 min
		for i := failures + 1; i < len(w.at); i++ {
			if gap := w.at[i].Sub(w.at[i-1]).Round(time.Second); gap != time.Hour || w.seen[i].Attempt != failures+1 {
				t.Errorf("attempt %d after %v, want %d after %v", w.seen[i].Attempt, gap, failures+1, time.Hour)
			}
		}
		if entry := theEntry(t, l.Node); entry.State != owner.SendDelivered || entry.Attempts != failures+1 {
			t.Errorf("the entry is %s after %d attempts, want it delivered after %d", entry.State, entry.Attempts, failures+1)
		}
	})
}

func TestRetryAfterWinsIfLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wireTransport{deliver: failWith(&client.SendError{Retry: true, After: 20 * time.Minute})}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		mustSend(t, l.Node, to("ann", "conv_1", "hello"), time.Minute)
		time.Sleep(30 * time.Hour)
		synctest.Wait()
		for i := 1; i < min(len(w.at), 9); i++ {
			gap := w.at[i].Sub(w.at[i-1])
			if i <= 4 && gap.Round(time.Second) != 20*time.Minute || i > 6 && gap < 2*time.Hour {
				t.Errorf("attempt %d after %v", i+1, gap)
			}
		}
	})
}

// TestReachable: a message that awaits a link leaves as soon as the bridge reports that the link works, or after a
// restart of the process that runs the links, but not in a command without links. A message that awaits another peer
// behind the link, or only time, keeps its pause.
func TestReachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		awaits := map[string]string{"wire:test/ann": "wire:test/", "wire:test/ben": "wire:test/ben", "wire:test/cid": "wire:other/", "wire:test/dot": ""}
		w := &wireTransport{deliver: func(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			return bridge.Delivered{}, &client.SendError{Retry: true, Awaits: awaits[d.Address]}
		}}
		dir := t.TempDir()
		l := loneNode(t, dir, w)
		mesh, err := l.Attach(bridge.Kind{Name: "wire"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, peer := range []string{"ann", "ben", "cid", "dot"} {
			mustSend(t, l.Node, to(peer, wire.ConversationID("conv_"+peer), peer), 0)
		}
		check := func(when string, want ...string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := slices.Sorted(slices.Values(w.deliveries())); !slices.Equal(got, want) {
				t.Errorf("%s: attempts for %v, want %v", when, got, want)
			}
			time.Sleep(9 * time.Minute)
			synctest.Wait()
			w.seen = nil
		}
		check("at first", "ann", "ben", "cid", "dot")
		mesh.Reachable(bridge.Address{Kind: "wire", Link: "test", Peer: "ben"})
		check("one peer can be reached", "ben")
		mesh.Reachable(bridge.Address{Kind: "wire", Link: "test"})
		check("the link works", "ann", "ben")
		l.stop()
		l = loneNode(t, dir, w)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.deliveries(); len(got) != 0 {
			t.Errorf("a command makes attempts for %v, want none", got)
		}
		l.stop()
		l = runLoneNode(t, dir, w, func(n *node.Node, ctx context.Context) {
			if err := n.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer l.stop()
		check("after a restart", "ann", "ben", "cid")
	})
}

// TestRestartMidQueue: the next process delivers what the previous one left, once and in order. An interrupted attempt
// is repeated with the same bytes (AM-46, AM-48).
func TestRestartMidQueue(t *testing.T) {
	dir := t.TempDir()
	begun := make(chan struct{})
	first := &wireTransport{}
	first.deliver = func(ctx context.Context, _ bridge.Delivery) (bridge.Delivered, error) {
		close(begun)
		<-ctx.Done()
		return bridge.Delivered{}, ctx.Err()
	}
	l := loneNode(t, dir, first)
	out := to("ann", "conv_1", "1")
	mustSend(t, l.Node, out, 0)
	for _, body := range []string{"2", "3"} {
		mustSend(t, l.Node, to("ann", "conv_1", body), 0)
	}
	<-begun
	l.stop()

	second := &wireTransport{deliver: takes}
	l = loneNode(t, dir, second)
	mustSend(t, l.Node, to("ann", "conv_1", "4"), 10*time.Second)
	if diff := cmp.Diff([]string{"1", "2", "3", "4"}, second.deliveries()); diff != "" {
		t.Errorf("after the restart: %s", diff)
	}
	if string(first.seen[0].Raw) != string(second.seen[0].Raw) {
		t.Error("the interrupted message was sent with other bytes")
	}
	entries, _, err := l.Outbox(t.Context(), "", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for i, entry := range entries {
		if entry.State != owner.SendDelivered || entry.Processed != (i == 0) {
			t.Errorf("entry %d is %s, maybe processed %v; want delivered, and only the first may have been processed before",
				i, entry.State, entry.Processed)
		}
	}
	row, err := l.store.Steps().Conversation(t.Context(), store.ConvKey{Peer: string(out.To), ID: "conv_1"}, time.Now())
	if err != nil || row.Entries != 4 {
		t.Errorf("transcript has %d entries, %v, want 4", row.Entries, err)
	}
}

// TestFinalFailure: after a final failure the conversation has failed, its later messages are not sent, and the owner
// gets a notice. A close is still sent.
func TestFinalFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		w := &wireTransport{}
		w.deliver = func(_ context.Context, d bridge.Delivery) (bridge.Delivered, error) {
			if d.Message.Action() == wire.ActionClose {
				return bridge.Delivered{}, nil
			}
			<-release
			return bridge.Delivered{}, errors.New("no such participant\x1b[2J")
		}
		l := loneNode(t, t.TempDir(), w)
		defer l.stop()
		out := to("ann", "conv_1", "1")
		mustSend(t, l.Node, out, 0)
		mustSend(t, l.Node, to("ann", "conv_1", "2"), 0)
		closing := to("ann", "conv_1", "")
		closing.Payload = wire.Obj(
			wire.Member{Key: "action", Value: wire.Text("close")}, wire.Member{Key: "status", Value: wire.Text("failed")},
		)
		mustSend(t, l.Node, closing, 0)
		close(release)
		synctest.Wait()
		entries, _, err := l.Outbox(t.Context(), "", "", 10)
		if err != nil || len(entries) != 3 {
			t.Fatalf("entries: %v, %v, want three", entries, err)
		}
		for i, want := range []owner.SendState{owner.SendFailed, owner.SendFailed, owner.SendDelivered} {
			if entries[i].State != want {
				t.Errorf("entry %d is %s, want %s", i, entries[i].State, want)
			}
		}
		if got := entries[0].Err.Message; got != "no such participant[2J" {
			t.Errorf("reason %q", got)
		}
		if got := w.deliveries(); slices.Contains(got, "2") {
			t.Errorf("deliveries %v: the second message was sent", got)
		}
		if s := convState(t, l.store, out); s != conversations.Failed {
			t.Errorf("conversation is %s, want failed", s)
		}
		if kinds := noticeKinds(t, l.store); !slices.Contains(kinds, "undelivered") {
			t.Errorf("notices %v, want undelivered", kinds)
		}
	})
}

// TestSendRefuses: a message that cannot be sent changes nothing.
func TestSendRefuses(t *testing.T) {
	w := &wireTransport{deliver: takes}
	l := loneNode(t, t.TempDir(), w, func(cfg *node.Config) {
		cfg.Outbound = node.OutboundPolicy{Allow: []string{"wire:test/ann"}}
	})
	payload := func(s string) wire.Value {
		v, err := wire.Parse([]byte(s))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		name   string
		change func(*node.Outgoing)
		want   error
	}{
		{"not on the outbound allowlist", func(o *node.Outgoing) { *o = to("bob", "conv_1", "x") }, rules.ErrOutbound},
		{"no agent id", func(o *node.Outgoing) { o.To = "bob" }, wire.ErrSchema},
		{"another's address", func(o *node.Outgoing) { o.To = to("bob", "", "").To }, wire.ErrSchema},
		{"unknown kind of intent", func(o *node.Outgoing) { o.Intent = "hello" }, wire.ErrIntent},
		{"wrong shape", func(o *node.Outgoing) { o.Payload = payload(`{"action":"deliver"}`) }, wire.ErrPayload},
		{"no object", func(o *node.Outgoing) { o.Payload = wire.Text("x") }, wire.ErrPayload},
		{"integer-like key", func(o *node.Outgoing) {
			o.Payload = payload(`{"action":"deliver","message":{"body":"x"},"2":1}`)
		}, wire.ErrPayload},
		{"close of nothing", func(o *node.Outgoing) { o.Payload = payload(`{"action":"close","status":"failed"}`) }, wire.ErrConversationClosed},
		{"nobody we know", func(o *node.Outgoing) { o.To, o.Address = "am_nobody", "" }, node.ErrNoRecipient},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := to("ann", "conv_1", "hello")
			c.change(&out)
			if sent, err := l.Send(t.Context(), out, 0); !errors.Is(err, c.want) {
				t.Errorf("Send = %+v, %v, want %v", sent, err, c.want)
			}
		})
	}
	toOurselves := to("ann", "conv_1", "hello")
	toOurselves.To = l.ID()
	if _, err := l.Send(t.Context(), toOurselves, 0); !goldentest.Refuses(t, "to ourselves", err) {
		t.Errorf("to ourselves: %v", err)
	}
	entries, _, err := l.Outbox(t.Context(), "", "", 10)
	if err != nil || len(entries) != 0 {
		t.Errorf("outbox: %v, %v, want empty", entries, err)
	}
}
