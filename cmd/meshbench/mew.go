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

// mewCmd compares the MEW gateway with a Node relay that only broadcasts: one sender, many receivers, chat envelopes
// of 256 bytes, a bounded number under way at once, delivered in order and counted at every receiver.
type mewCmd struct {
	Receivers   []int         `short:"n" default:"100,1000" help:"Receivers of a space."`
	Outstanding []int         `short:"w" default:"64,1" help:"Envelopes under way at once."`
	Duration    time.Duration `short:"d" default:"2s" help:"Length of one round."`
	Rounds      int           `short:"r" default:"3" help:"Rounds of each contender, in turn."`
	Rate        int           `default:"50000" help:"Deliveries per second of the round with both logs on."`
	Relay       bool          `default:"true" negatable:"" help:"Run the relay too; needs node, and npm to fetch ws."`
	Modules     string        `placeholder:"DIR" help:"Folder with node_modules/ws; without it npm fetches ws into a temporary one."`
	Agentmesh   string        `placeholder:"FILE" help:"The agentmesh program (default: beside this one, or in PATH)."`
}

// mewTally is what the rounds of one case came to.
type mewTally struct {
	name     string
	ours     []sample
	theirs   []sample
	memory   float64 // bytes of an idle connection
	slow     []sample
	lines    int64
	expected int64
}

func (c *mewCmd) Run(ctx context.Context, s streams) (err error) {
	if c.Rounds < 1 || c.Duration < 100*time.Millisecond || c.Rate < 1 {
		return errors.New("--rounds and --rate must be 1 or more, --duration 100ms or more")
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
	dir, err := os.MkdirTemp("", "meshbench-mew-")
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
	var out []mewTally
	for _, n := range c.Receivers {
		t, err := c.measure(ctx, s, program, dir, modules, n)
		if err != nil {
			return fmt.Errorf("%d receivers: %w", n, err)
		}
		out = append(out, t...)
	}
	s.p.end()
	return c.print(s, out)
}

// measure runs every case with n receivers.
func (c *mewCmd) measure(ctx context.Context, s streams, program, dir, modules string, n int) (out []mewTally, err error) {
	gateway, err := startGateway(ctx, program, filepath.Join(dir, fmt.Sprintf("space-%d", n)), n, false)
	if err != nil {
		return nil, err
	}
	ours, err := gather(ctx, gateway.child, n, gateway.token)
	if err != nil {
		return nil, errors.Join(err, gateway.stop())
	}
	defer func() { ours.close(); err = errors.Join(err, gateway.stop()) }()
	memory := 0.0
	if n == slices.Max(c.Receivers) { // among many, what the process has anyway does not count
		if memory, err = c.idleMemory(ctx, s, program, filepath.Join(dir, "idle"), n); err != nil {
			return nil, err
		}
	}
	var theirs *crowd
	if c.Relay {
		relay, err := startRelay(ctx, modules)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, relay.stop()) }()
		if theirs, err = gather(ctx, relay, n, nil); err != nil {
			return nil, err
		}
		defer theirs.close()
	}
	for i, w := range c.Outstanding {
		t := mewTally{name: fmt.Sprintf("%d receivers, %d outstanding", n, w), memory: memory}
		for r := range c.Rounds {
			s.p.say("%s: round %d of %d", t.name, r+1, c.Rounds)
			if err := c.round(ctx, &t, ours, gateway, w, i == 0, r%2 == 1); err != nil {
				return nil, err
			}
			if theirs != nil {
				one, err := theirs.run(ctx, w, c.Duration)
				if err != nil {
					return nil, err
				}
				t.theirs = append(t.theirs, one)
			}
		}
		out = append(out, t)
	}
	logged, err := c.withLogs(ctx, s, program, filepath.Join(dir, fmt.Sprintf("logs-%d", n)), n)
	return append(out, logged), err
}

// idleMemory says what a connection that waits occupies. The collector runs often in that process, so that what was
// garbage after the joins does not count.
func (c *mewCmd) idleMemory(ctx context.Context, s streams, program, dir string, n int) (each float64, err error) {
	s.p.say("%d idle connections", n)
	g, err := startGateway(ctx, program, dir, n, false, "GOGC=5")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, g.stop()) }()
	before, err := resident(g.child.PID)
	if errors.Is(err, errors.ErrUnsupported) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	crowd, err := gather(ctx, g.child, n, g.token)
	if err != nil {
		return 0, err
	}
	defer crowd.close()
	if err := pause(ctx, idleSettle); err != nil {
		return 0, err
	}
	after, err := resident(g.child.PID)
	return float64(after-before) / float64(n), err
}

// idleSettle is how long the runtime may take to give back what the joins left.
const idleSettle = 3 * time.Second

// round runs ours once; in the first case once more while one more participant reads nothing. Which of the two goes
// first alternates, so that neither is always the warmer one.
func (c *mewCmd) round(ctx context.Context, t *mewTally, ours *crowd, g *gatewayChild, w int, stopped, stoppedFirst bool) error {
	plain := func() error {
		one, err := ours.run(ctx, w, c.Duration)
		t.ours = append(t.ours, one)
		return err
	}
	beside := func() error {
		conn, err := dialSocket(ctx, g.child.URL, g.token(len(ours.receivers)+1))
		if err != nil {
			return err
		}
		defer conn.Close()
		one, err := ours.run(ctx, w, c.Duration)
		t.slow = append(t.slow, one)
		return err
	}
	switch {
	case !stopped:
		return plain()
	case stoppedFirst:
		return errors.Join(beside(), plain())
	}
	return errors.Join(plain(), beside())
}

// withLogs paces the deliveries with both logs on, and counts the lines.
func (c *mewCmd) withLogs(ctx context.Context, s streams, program, dir string, n int) (t mewTally, err error) {
	t.name = fmt.Sprintf("%d receivers, both logs, %d/s", n, c.Rate)
	g, err := startGateway(ctx, program, dir, n, true)
	if err != nil {
		return t, err
	}
	crowd, err := gather(ctx, g.child, n, g.token)
	if err != nil {
		return t, errors.Join(err, g.stop())
	}
	for r := range c.Rounds {
		s.p.say("%s: round %d of %d", t.name, r+1, c.Rounds)
		one, err := crowd.paced(ctx, min(64, max(1, c.Rate/(4*n))), c.Duration, c.Rate)
		if err != nil {
			return t, errors.Join(err, g.stop())
		}
		t.ours = append(t.ours, one)
	}
	crowd.close()
	if err := g.stop(); err != nil {
		return t, err
	}
	t.expected = crowd.sent * int64(n+1) // the sender gets its own back
	t.lines, err = countLines(filepath.Join(dir, "logs"), `"event":"delivered"`, crowd.mark)
	return t, err
}

func (c *mewCmd) print(s streams, list []mewTally) error {
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "case\tdeliveries/s\tCPU/delivery\tp99\trelay\tCPU\tratio\tCPU ratio\tp99 beside all reading")
	for _, t := range list {
		fmt.Fprintf(w, "%s\t%.0f\t%.2f µs\t%v\t", t.name, medianOf(t.ours, sample.rate), medianOf(t.ours, sample.cost), p99(t.ours))
		if len(t.theirs) > 0 {
			fmt.Fprintf(w, "%.0f\t%.2f µs\t%.1f×\t%.1f×\t-\n", medianOf(t.theirs, sample.rate), medianOf(t.theirs, sample.cost),
				ratio(t.ours, t.theirs, sample.rate), ratio(t.theirs, t.ours, sample.cost))
		} else {
			fmt.Fprintln(w, "-\t-\t-\t-\t-")
		}
		if len(t.slow) > 0 {
			fmt.Fprintf(w, "  one receiver stopped\t%.0f\t%.2f µs\t%v\t-\t-\t-\t-\t%.2f×\n", medianOf(t.slow, sample.rate), medianOf(t.slow, sample.cost),
				p99(t.slow), ratio(t.slow, t.ours, func(s sample) float64 { return float64(s.P99) }))
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

func p99(rounds []sample) time.Duration {
	return time.Duration(medianOf(rounds, func(s sample) float64 { return float64(s.P99) })).Round(10 * time.Microsecond)
}
