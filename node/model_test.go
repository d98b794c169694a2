package node_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	modelSeed = flag.Uint64("model.seed", 901, "seed of the model of two nodes; 0: another one in each run")
	modelFor  = flag.Duration("model.for", time.Second, "how long the model of two nodes runs")
	modelPlay = flag.String("model.play", "", "a history that the model of two nodes plays, as a failure prints it")
)

// knownHistories come before the random ones: one in which each invariant matters, and those that found faults.
var knownHistories = []string{
	"config 0 0 0, guest 1 0 32, repeat 0 1 0",               // a message twice at once, and again
	"config 0 5 0, guest 3 0 32",                             // a stranger, before a hook
	"config 0 0 0, send 2 4 1",                               // an offer of ours
	"config 0 0 0, send 2 2 1, answer 1 0 0",                 // an appointment
	"config 0 0 0, guest 3 0 32, guest 3 6 32",               // a refusal
	"config 0 1281 0, send 2 0 1, wait 0 0 0, restart 1 0 0", // a slow hook, and a restart
	"config 32 37 0, send 2 2 1, close 1 0 1, repeat 1 0 0",  // a close
	"config 41378 23223 0, guest 45 20 50, guest 23 32 28, decide 63 8 41, wait 63 59 52",
	"config 44420 12121 0, lose 47 61 16, send 55 7 16, decide 20 22 28, talk 19 14 52, decide 58 47 19",
	"config 48697 34646 0, guest 50 12 16, decide 10 40 1, guest 32 15 52",
	"config 14679 28408 0, guest 63 61 27, send 33 6 3, guest 9 39 31, decide 11 25 60, repeat 48 6 8",
}

// TestModelOfTwoNodes plays random histories of two nodes and a stranger, and compares what the nodes do with a small
// specification ([spec]). The nodes have real databases and real handlers; connections and time are those of a bubble.
//
//   - Nothing is accepted twice, and no hook runs twice for one message.
//   - Nothing that waits for an owner reaches a hook, the agent's door or the peer.
//   - An answer has the intent and the conversation of what it answers.
//   - An agreement is contained in a proposal that the other side accepted.
//   - A refusal commits nothing.
//   - The same bytes get the same answer, or once the final one (AM-22).
//   - In the end, both transcripts have the same messages in the same order.
//
// If a history fails, the test prints the shortest part of it that fails, too: -model.play plays it.
func TestModelOfTwoNodes(t *testing.T) {
	known := knownHistories
	if *modelPlay != "" {
		known = []string{*modelPlay}
	}
	for _, text := range known {
		h, err := parseHistory(text)
		if err != nil {
			t.Fatal(err)
		}
		if tr := play(t, h); len(tr.faults) > 0 {
			t.Fatalf("%s: %s\n%s", text, strings.Join(tr.faults, "\n"), tr.log.String())
		}
	}
	if *modelPlay != "" {
		return
	}
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64N(1e9)
	}
	t.Logf("model of two nodes: -model.seed %d", seed)
	histories, steps := 0, 0
	for began := time.Now(); time.Since(began) < *modelFor; histories++ {
		h := randomHistory(rand.New(rand.NewPCG(seed, uint64(histories))))
		steps += len(h)
		failed := play(t, h)
		if len(failed.faults) == 0 {
			continue
		}
		short := shrink(h[:failed.steps], func(h history) bool {
			again := play(t, h)
			if len(again.faults) == 0 || kindOf(again.faults[0]) != kindOf(failed.faults[0]) {
				return false
			}
			failed = again
			return true
		})
		t.Fatalf("seed %d, history %d: %s\n%s\ngo test ./node -run TestModelOfTwoNodes -args -model.play '%s'",
			seed, histories, strings.Join(failed.faults, "\n"), failed.log.String(), short)
	}
	t.Logf("%d histories, %d steps", histories, steps)
}

// kindOf returns the invariant that a fault breaks: its text up to the colon.
func kindOf(fault string) string {
	kind, _, _ := strings.Cut(fault, ":")
	return kind
}

// shrink leaves out steps for as long as the history still fails.
func shrink(h history, fails func(history) bool) history {
	tries := 0
	for size := max(1, len(h)/2); size > 0; size /= 2 {
		for i := 1; i+size <= len(h) && tries < 200; {
			tries++
			if shorter := slices.Delete(slices.Clone(h), i, i+size); fails(shorter) {
				h = shorter
			} else {
				i += size
			}
		}
	}
	return h
}

// step is something that happens. Its numbers choose among what is there; a step for which nothing is there does nothing.
type step struct {
	do      string
	a, b, c int
}

func (s step) String() string { return fmt.Sprintf("%s %d %d %d", s.do, s.a, s.b, s.c) }

// history is a sequence of steps. The first one configures the nodes.
type history []step

func (h history) String() string {
	texts := make([]string, len(h))
	for i, s := range h {
		texts[i] = s.String()
	}
	return strings.Join(texts, ", ")
}

func parseHistory(text string) (h history, err error) {
	for line := range strings.SplitSeq(text, ", ") {
		var s step
		if _, err := fmt.Sscan(line, &s.do, &s.a, &s.b, &s.c); err != nil {
			return nil, fmt.Errorf("step %q: %w", line, err)
		}
		h = append(h, s)
	}
	return h, nil
}

// weights are how often each step happens.
var weights = []struct {
	do   string
	does func(w *world, s step)
	n    int
}{
	{"config", func(*world, step) {}, 0},
	{"send", (*world).send, 20},
	{"answer", (*world).answer, 14},
	{"talk", (*world).talk, 8},
	{"guest", (*world).guestSays, 16},
	{"repeat", (*world).repeat, 8},
	{"decide", (*world).decide, 18},
	{"peer", (*world).changePeer, 3},
	{"close", (*world).close, 3},
	{"restart", (*world).restart, 4},
	{"lose", (*world).lose, 4},
	{"down", (*world).down, 2},
	{"pause", (*world).pause, 2},
	{"wait", (*world).wait, 6},
	{"hook", (*world).setHook, 6},
}

func randomHistory(r *rand.Rand) history {
	total := 0
	for _, w := range weights {
		total += w.n
	}
	h := history{{"config", r.IntN(1 << 16), r.IntN(1 << 16), 0}}
	for range 8 + r.IntN(20) {
		n := r.IntN(total)
		for _, w := range weights {
			if n -= w.n; n < 0 {
				h = append(h, step{w.do, r.IntN(64), r.IntN(64), r.IntN(64)})
				break
			}
		}
	}
	return h
}

// trial is the testing.TB of one history. Its failures are faults of the history, not of the test.
type trial struct {
	testing.TB
	mu     sync.Mutex
	faults []string
	log    strings.Builder
	steps  int // that it played
}

type abort struct{}

func (t *trial) Helper()                           {}
func (t *trial) Error(args ...any)                 { t.fault("error: " + fmt.Sprint(args...)) }
func (t *trial) Errorf(format string, args ...any) { t.fault("error: " + fmt.Sprintf(format, args...)) }
func (t *trial) Fatal(args ...any)                 { t.Error(args...); panic(abort{}) }
func (t *trial) Fatalf(format string, args ...any) { t.Errorf(format, args...); panic(abort{}) }
func (t *trial) Log(args ...any)                   { t.say(fmt.Sprint(args...)) }
func (t *trial) Logf(format string, args ...any)   { t.say(fmt.Sprintf(format, args...)) }

func (t *trial) fault(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, text)
	fmt.Fprintln(&t.log, "FAULT", text)
}

func (t *trial) failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.faults) > 0
}

func (t *trial) say(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintln(&t.log, time.Now().Format("15:04:05.000"), strings.TrimSpace(text))
}

// play plays a history up to the first fault.
func play(t *testing.T, h history) *trial {
	tr := &trial{steps: 1}
	synctest.Test(t, func(t *testing.T) {
		tr.TB = t
		defer func() {
			switch r := recover(); r.(type) {
			case nil, abort:
			default:
				tr.fault(fmt.Sprintf("panic: %v\n%s", r, debug.Stack()))
			}
		}()
		w := newWorld(tr, h[0])
		for _, s := range h[1:] {
			tr.steps++
			tr.say("> " + s.String())
			for _, op := range weights {
				if op.do == s.do {
					op.does(w, s)
				}
			}
			w.settle()
			w.look()
			if tr.failed() {
				return
			}
		}
		w.end()
	})
	return tr
}
