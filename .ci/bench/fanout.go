package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// fanout compares one of our servers with a Node.js relay that only broadcasts: one sender, many receivers, messages of
// 256 bytes and a bounded number of messages in flight, delivered in order and counted at every receiver.
type fanout struct {
	Receivers   []int         `short:"n" default:"100,1000" help:"Numbers of receivers."`
	Outstanding []int         `short:"w" default:"64,1" help:"Numbers of messages in flight."`
	Duration    time.Duration `short:"d" default:"2s" help:"Length of one round."`
	Rounds      int           `short:"r" default:"3" help:"Rounds of each contender, in turn."`
	Relay       bool          `default:"true" negatable:"" help:"Run the Node relay too; needs node, and npm to fetch ws."`
	Modules     string        `placeholder:"DIR" help:"Directory with node_modules/ws (default: a temporary directory, into which npm installs ws)."`
	Agentmesh   string        `placeholder:"FILE" help:"The agentmesh program (default: in the directory of meshbench, or in PATH)."`
}

// host is a server under test. It admits a numbered set of clients: client 0 is the sender, the next ones are the
// receivers, and there is one more client after them.
type host struct {
	*child
	token func(i int) string // of client i; "" if the server needs no token
}

// entrant is the server that is compared with the Node relay.
type entrant struct {
	messageKind
	// start runs the server in the directory dir, for n receivers.
	start func(ctx context.Context, program, dir string, n int, env ...string) (*host, error)
	// measureExtra measures an additional case with n receivers; it may be nil.
	measureExtra func(ctx context.Context, s streams, program, dir string, n int) (caseResult, error)
}

// caseResult is the result of the rounds of one case.
type caseResult struct {
	name           string
	samples        []sample
	relaySamples   []sample // of the Node relay
	memory         float64  // bytes per idle connection
	stoppedSamples []sample // while one receiver reads nothing
	lines          int64    // deliveries that the server's logs have
	expected       int64    // deliveries that the server's logs should have
}

// compare measures all cases, and prints the results.
func (c *fanout) compare(ctx context.Context, s streams, tested entrant) (err error) {
	if c.Rounds < 1 || c.Duration < 100*time.Millisecond {
		return errors.New("--rounds must be 1 or more, --duration 100ms or more")
	}
	for _, n := range append(append([]int{}, c.Receivers...), c.Outstanding...) {
		if n < 1 {
			return errors.New("--receivers and --outstanding must be 1 or more")
		}
	}
	program, err := findAgentmesh(c.Agentmesh)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "meshbench-fanout-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	modules := c.Modules
	if c.Relay && modules == "" {
		s.p.say("npm install ws")
		if modules, err = fetchWS(ctx, filepath.Join(dir, "npm")); err != nil {
			return err
		}
	}
	var out []caseResult
	for _, n := range c.Receivers {
		t, err := c.measure(ctx, s, tested, program, dir, modules, n)
		if err != nil {
			return fmt.Errorf("%d receivers: %w", n, err)
		}
		out = append(out, t...)
	}
	s.p.end()
	return printResults(s, out)
}

// measure measures the cases with n receivers.
func (c *fanout) measure(ctx context.Context, s streams, tested entrant, program, dir, modules string, n int) (out []caseResult, err error) {
	server, err := tested.start(ctx, program, filepath.Join(dir, fmt.Sprintf("ours-%d", n)), n)
	if err != nil {
		return nil, err
	}
	client, err := newLoadClient(ctx, server, tested.messageKind, n)
	if err != nil {
		return nil, errors.Join(err, server.stop())
	}
	defer func() { client.close(); err = errors.Join(err, server.stop()) }()
	memory := 0.0
	if n == slices.Max(c.Receivers) { // with many connections, the memory of the process itself does not matter
		if memory, err = idleMemory(ctx, s, tested, program, filepath.Join(dir, "idle"), n); err != nil {
			return nil, err
		}
	}
	var relayClient *loadClient
	if c.Relay {
		relay, err := startRelay(ctx, modules)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, relay.stop()) }()
		kind := tested.messageKind
		kind.delivered, kind.greets = nil, false // the relay adds nothing and sends nothing of its own
		if relayClient, err = newLoadClient(ctx, relay, kind, n); err != nil {
			return nil, err
		}
		defer relayClient.close()
	}
	for i, w := range c.Outstanding {
		t := caseResult{name: fmt.Sprintf("%d receivers, %d outstanding", n, w), memory: memory}
		for r := range c.Rounds {
			s.p.say("%s: round %d of %d", t.name, r+1, c.Rounds)
			// The first case also has rounds with a stopped receiver, in alternating order.
			if err := c.runRound(ctx, &t, client, server, w, i == 0, r%2 == 1); err != nil {
				return nil, err
			}
			if relayClient != nil {
				round, err := relayClient.run(ctx, w, c.Duration)
				if err != nil {
					return nil, fmt.Errorf("the Node relay: %w", err)
				}
				t.relaySamples = append(t.relaySamples, round)
			}
		}
		out = append(out, t)
	}
	if tested.measureExtra == nil {
		return out, nil
	}
	extra, err := tested.measureExtra(ctx, s, program, filepath.Join(dir, fmt.Sprintf("also-%d", n)), n)
	return append(out, extra), err
}

// idleMemory returns how much memory of the server an idle connection occupies. The server's garbage collector runs
// often, so that garbage from connecting does not count.
func idleMemory(ctx context.Context, s streams, tested entrant, program, dir string, n int) (perConnection float64, err error) {
	s.p.say("%d idle connections", n)
	server, err := tested.start(ctx, program, dir, n, "GOGC=5")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	before, err := resident(server.PID)
	if errors.Is(err, errors.ErrUnsupported) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	client, err := newLoadClient(ctx, server, tested.messageKind, n)
	if err != nil {
		return 0, err
	}
	defer client.close()
	if err := sleep(ctx, idleSettle); err != nil {
		return 0, err
	}
	after, err := resident(server.PID)
	return float64(after-before) / float64(n), err
}

// idleSettle is how long the runtime gets to return the memory that connecting used.
const idleSettle = 3 * time.Second

// runRound measures our server once and, if alsoStopped is set, once more while an additional receiver reads nothing.
// If stoppedFirst is set, that measurement comes first. The caller alternates the order, so that neither always runs on
// the warmer server.
func (c *fanout) runRound(ctx context.Context, t *caseResult, client *loadClient, server *host, w int, alsoStopped, stoppedFirst bool) error {
	allReading := func() error {
		round, err := client.run(ctx, w, c.Duration)
		t.samples = append(t.samples, round)
		return err
	}
	withStopped := func() error {
		conn, err := dialSocket(ctx, server.URL, client.path, server.token(len(client.receivers)+1))
		if err != nil {
			return err
		}
		defer conn.Close()
		round, err := client.run(ctx, w, c.Duration)
		t.stoppedSamples = append(t.stoppedSamples, round)
		return err
	}
	switch {
	case !alsoStopped:
		return allReading()
	case stoppedFirst:
		return errors.Join(withStopped(), allReading())
	}
	return errors.Join(allReading(), withStopped())
}

// printResults prints a table. The p99 ratio compares a case with the relay or, in the line of a stopped receiver, with
// the case in which no receiver stopped.
func printResults(s streams, list []caseResult) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "case\tdeliveries/s\tCPU/delivery\tp99\trelay\tCPU\tratio\tCPU ratio\tp99 ratio")
	for _, t := range list {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f µs\t%v\t", t.name, medianOf(t.samples, sample.rate), medianOf(t.samples, sample.cost), medianP99(t.samples))
		if len(t.relaySamples) > 0 {
			fmt.Fprintf(w, "%.0f\t%.2f µs\t%.1f×\t%.1f×\t%.2f×\n", medianOf(t.relaySamples, sample.rate), medianOf(t.relaySamples, sample.cost),
				ratio(t.samples, t.relaySamples, sample.rate), ratio(t.relaySamples, t.samples, sample.cost), ratio(t.samples, t.relaySamples, sample.p99))
		} else {
			fmt.Fprintln(w, "-\t-\t-\t-\t-")
		}
		if len(t.stoppedSamples) > 0 {
			fmt.Fprintf(w, "  one receiver stopped\t%.0f\t%.2f µs\t%v\t-\t-\t-\t-\t%.2f×\n", medianOf(t.stoppedSamples, sample.rate), medianOf(t.stoppedSamples, sample.cost),
				medianP99(t.stoppedSamples), ratio(t.stoppedSamples, t.samples, sample.p99))
		}
		if t.memory > 0 {
			fmt.Fprintf(w, "  resident per connection\t%.1f KiB\t\t\t\t\t\t\t\n", t.memory/1024)
		}
		if t.expected > 0 {
			fmt.Fprintf(w, "  log lines\t%d of %d\t\t\t\t\t\t\t\n", t.lines, t.expected)
		}
	}
	return w.Flush()
}

func medianP99(rounds []sample) time.Duration {
	return time.Duration(medianOf(rounds, sample.p99) * 1e3).Round(10 * time.Microsecond)
}
