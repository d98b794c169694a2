package node_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/node"
	"github.com/agentmesh/agentmesh/node/hook"
	"github.com/agentmesh/agentmesh/node/meshtest"
	"github.com/agentmesh/agentmesh/node/owner"
	"github.com/agentmesh/agentmesh/node/wire"
	"github.com/agentmesh/agentmesh/signing"
	"github.com/agentmesh/agentmesh/store/bolt"
)

// attempts counts the runs of a hook for each message and attempt.
type attempts struct {
	mu   sync.Mutex
	runs map[string]int
}

func (a *attempts) Handle(ctx context.Context, call hook.Call) (hook.Answer, error) {
	a.mu.Lock()
	a.runs[fmt.Sprint(call.Message.ID, " attempt ", call.Attempt)]++
	a.mu.Unlock()
	select {
	case <-time.After(rand.N(20 * time.Millisecond)):
	case <-ctx.Done():
	}
	return hook.Answer{}, ctx.Err()
}

// TestHooksOfLostProcesses: processes that run hooks are killed, or stand still past their lease, at random points. The
// hook of every message that was acknowledged answers in the end, no attempt runs twice, and each message is handled
// once.
func TestHooksOfLostProcesses(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			runs := &attempts{runs: make(map[string]int)}
			ps := startProcesses(t, n, time.Millisecond, func(cfg *node.Config) {
				cfg.Policy.Mode = acl.Open
				cfg.Routes = []node.Route{{Pattern: "mesh.*", Name: "attempts", Handler: runs, Repeatable: true}}
			})
			chris := ps.mesh.Stranger("chris")
			var mu sync.Mutex
			alive := slices.Clone(ps.all)
			ctx, stop := context.WithCancel(t.Context())
			acknowledged := 0
			var senders sync.WaitGroup
			for range 2 {
				senders.Go(func() {
					for ctx.Err() == nil {
						raw := chris.Sign(chris.Draft(ps.all[0].ID(), wire.Deliver, hello))
						for ctx.Err() == nil { // a sender repeats a message without an answer
							mu.Lock()
							p := alive[rand.N(len(alive))]
							mu.Unlock()
							if a := p.Post(raw); a.Status == http.StatusOK || a.Status == http.StatusAccepted {
								mu.Lock()
								acknowledged++
								mu.Unlock()
								break
							}
							time.Sleep(10 * time.Millisecond)
						}
						time.Sleep(20 * time.Millisecond)
					}
				})
			}
			for round := range 2 {
				time.Sleep(rand.N(300 * time.Millisecond))
				old := ps.holder()
				mu.Lock()
				alive = slices.DeleteFunc(alive, func(p *process) bool { return p == old })
				mu.Unlock()
				thaw, next := func() {}, old
				if round == 0 {
					thaw = old.shaky.Freeze()
				} else {
					old.kill()
				}
				within(t, takeover, "nobody took over", func() bool { h := ps.holder(); return h != nil && h != old })
				if thaw(); round == 1 {
					next = ps.start()
				}
				mu.Lock()
				alive = append(alive, next)
				mu.Unlock()
			}
			time.Sleep(100 * time.Millisecond)
			stop()
			senders.Wait()
			last := alive[len(alive)-1]
			answered := func() int {
				items, _, err := last.Inbox(t.Context(), owner.ItemAnswered, "", 1000)
				if err != nil {
					t.Fatal(err)
				}
				return len(items)
			}
			waitFor(t, "not every acknowledged message was handled", func() bool { return answered() >= acknowledged })
			waitFor(t, "a hook still runs", func() bool {
				running, _, err := last.Inbox(t.Context(), owner.ItemRunning, "", 10)
				return err == nil && len(running) == 0
			})
			runs.mu.Lock()
			defer runs.mu.Unlock()
			for run, times := range runs.runs {
				if times != 1 {
					t.Errorf("message %s ran %d times", run, times)
				}
			}
		})
	}
}

// TestDecideAtAnotherProcess: the owner decides at one process about a message that another process received. The
// sender gets the final answer from any process, and whoever waits for the inbox at a third process learns of it.
func TestDecideAtAnotherProcess(t *testing.T) {
	t.Parallel()
	ps := startProcesses(t, 3, time.Millisecond, mode(acl.Approval))
	for i, choice := range []acl.Choice{acl.Approve, acl.Reject, acl.Approve} {
		here, there, third := ps.all[i], ps.all[(i+1)%3], ps.all[(i+2)%3]
		stranger := ps.mesh.Stranger(fmt.Sprint("stranger", i))
		raw := stranger.Sign(stranger.Draft(here.ID(), wire.Deliver, hello))
		must(t, here.Post(raw), http.StatusAccepted)
		arrived := make(chan time.Time, 1)
		if choice == acl.Approve {
			newest := ""
			if items, _, err := third.Inbox(t.Context(), owner.ItemNew, "", 10); err != nil {
				t.Fatal(err)
			} else if len(items) > 0 {
				newest = items[len(items)-1].ID
			}
			go func() {
				if items, _, err := third.WaitInbox(t.Context(), owner.Query{State: string(owner.ItemNew), After: newest, Limit: 10, Wait: takeover}); err != nil || len(items) != 1 {
					t.Errorf("inbox = %v, %v, want one item", items, err)
				}
				arrived <- time.Now()
			}()
			time.Sleep(50 * time.Millisecond)
		}
		decided := time.Now()
		decide(t, there.Member, theAsk(t, there.Member), choice)
		if asks := pendingAsks(t, here.Member); len(asks) > 0 {
			t.Errorf("%d questions are pending after the decision", len(asks))
		}
		if choice == acl.Approve {
			if took := (<-arrived).Sub(decided); took > time.Second {
				t.Errorf("the inbox at another process has the message after %v", took)
			}
		}
		answer := third.Post(raw) // the sender repeats it
		must(t, answer, http.StatusOK)
		if action := answer.Message(t, third.Member).Action(); (action == wire.ActionClose) != (choice == acl.Reject) {
			t.Errorf("after %s the sender gets %s", choice, answer.Body)
		}
	}
}

// TestRotationReachesProcesses: after a rotation at one process, every process signs with the new key within a second.
func TestRotationReachesProcesses(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	current := meshtest.Key("sarah")
	ps := startProcesses(t, 3, time.Millisecond, func(cfg *node.Config) {
		cfg.Policy.Mode = acl.Open
		cfg.SaveKey = func(k *signing.PrivateKey, _ wire.Value) error {
			time.Sleep(20 * time.Millisecond) // a slow disk: hints about the rotation arrive before the key is saved
			mu.Lock()
			defer mu.Unlock()
			current = k
			return nil
		}
		cfg.CurrentKey = func() (*signing.PrivateKey, error) {
			mu.Lock()
			defer mu.Unlock()
			return current, nil
		}
	})
	chris := ps.mesh.Stranger("chris")
	other := ps.others(ps.holder())[0]
	must(t, other.Post(chris.Sign(chris.Draft(other.ID(), wire.Deliver, hello))), http.StatusOK)
	time.Sleep(100 * time.Millisecond) // everybody follows by now
	old := other.Card().PublicKey
	if _, err := other.Registrar().RotateKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	rotated := other.Card().PublicKey
	if rotated == old {
		t.Fatal("the key is still the old one")
	}
	for _, p := range ps.all {
		within(t, time.Second, "a process has the old key", func() bool { return p.Card().PublicKey == rotated })
		a := p.Post(chris.Sign(chris.Draft(p.ID(), wire.Deliver, hello)))
		must(t, a, http.StatusOK)
		wantSigned(t, a.Body, rotated)
	}
	mustSend(t, other.Node, to("ann", "conv_one", "signed by the new key"), 10*time.Second)
	wantSigned(t, ps.wires.seen[0].Raw, rotated)
	ps.holder().kill()
	within(t, takeover, "nobody took over", func() bool { h := ps.holder(); return h != nil && h.Card().PublicKey == rotated })
}

// wantSigned checks that a message is signed with a key.
func wantSigned(t *testing.T, message []byte, key string) {
	t.Helper()
	public, err := signing.ParsePublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	v, err := wire.ParseObject(message)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	window := signing.Window{From: now.Add(-time.Hour), To: now.Add(time.Hour)}
	if _, err := public.VerifyValue(v.Without("signature"), v.GetStr("signature"), window, now); err != nil {
		t.Errorf("message %s: %v", message, err)
	}
}

// TestReminderOfProcesses: an agent is reminded once, and its owner gets one notice, whichever process has the duties.
func TestReminderOfProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mesh := meshtest.InMemory(t)
		db, err := bolt.Open(t.Context(), filepath.Join(t.TempDir(), "mesh.db"), bolt.Config{LeaseTTL: processTTL})
		if err != nil {
			t.Fatal(err)
		}
		ps := &processes{t: t, mesh: mesh, db: db, wires: &wireTransport{deliver: takes}}
		s := &sleeper{}
		ps.configure = withSleeper(s)
		defer func() {
			for _, p := range ps.all {
				p.stop()
				<-p.done
			}
			if err := db.Close(); err != nil {
				t.Error(err)
			}
		}()
		first, second := ps.start(), ps.start()
		time.Sleep(5 * time.Second)
		chris := mesh.Stranger("chris")
		raw := chris.Sign(in("conv_one", chris.Draft(first.ID(), wire.Deliver, hello)))
		must(t, second.Post(raw), http.StatusAccepted)
		time.Sleep(14 * time.Minute)
		equal(t, "calls before", s.woken(), firstAndReminder[:1])
		first.kill()
		time.Sleep(5 * time.Minute)
		equal(t, "calls after the takeover", s.woken(), firstAndReminder)
		third := ps.start()
		second.kill()
		time.Sleep(2 * time.Hour)
		equal(t, "calls in the end", s.woken(), firstAndReminder)
		if got := noticesOf(t, third.Member, "unanswered"); len(got) != 1 {
			t.Errorf("notices = %q, want one", got)
		}
	})
}
