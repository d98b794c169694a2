package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/agentmesh/agentmesh/node/client"
)

type runCmd struct {
	Scenario    []string      `short:"s" enum:"register,register-proven,get,get-conditional,list,search,message" default:"register,get,get-conditional,list,search,message" help:"Scenarios to run (${enum})."`
	URL         string        `name:"url" placeholder:"URL" help:"Base URL of the directory under test, with /v1 (default: start agentmesh serve)."`
	Endpoint    string        `placeholder:"URL" help:"Endpoint that receives the messages; it must look up cards in the directory of --url."`
	Credential  string        `env:"MESHBENCH_CREDENTIAL" help:"Bearer token for the registration of cards (default: a random one)."`
	Concurrency int           `short:"c" default:"16" help:"Number of concurrent requests."`
	Duration    time.Duration `short:"d" default:"2s" help:"Length of one round."`
	Rounds      int           `short:"r" default:"3" help:"Rounds of each scenario, in turn with the control."`
	Cards       int           `default:"1000" help:"Cards to register for get, list and search."`
	Control     bool          `default:"true" negatable:"" help:"Run control servers that return the same bytes."`
	PID         int           `name:"pid" help:"Process id of the server under test, if it runs on this machine and meshbench did not start it."`
	Agentmesh   string        `placeholder:"FILE" help:"The agentmesh program (default: in the directory of meshbench, or in PATH)."`
	JSON        bool          `help:"Print JSON."`
}

func (c *runCmd) check() error {
	switch {
	case c.Concurrency < 1 || c.Rounds < 1 || c.Cards < 1:
		return errors.New("--concurrency, --rounds and --cards must be 1 or more")
	case c.Duration < 10*time.Millisecond:
		return errors.New("--duration must be 10ms or more")
	case c.URL == "" && c.Endpoint != "":
		return errors.New("--endpoint needs --url: the cards of the senders are registered at that directory")
	}
	return nil
}

type outcome struct {
	Scenario string  `json:"scenario"`
	Ops      int     `json:"ops"`
	Errors   int     `json:"errors"`
	Rate     float64 `json:"ops_per_second"`
	P50      float64 `json:"p50_us"`
	P99      float64 `json:"p99_us"`
	CPU      float64 `json:"server_cpu_us,omitempty"` // of one operation
	// Ratios to the control, if there is one: medians of the rounds' ratios.
	RateRatio float64 `json:"rate_ratio,omitempty"`
	CPURatio  float64 `json:"server_cpu_ratio,omitempty"`
	Fault     string  `json:"first_error,omitempty"`
}

func (c *runCmd) Run(ctx context.Context, s streams) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "meshbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	target, cleanUp, err := c.target(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cleanUp()) }()
	var list []outcome
	for _, name := range c.Scenario {
		sc, err := findScenario(name)
		if err != nil {
			return err
		}
		if sc.message && target.bench.endpoint == nil {
			fmt.Fprintln(os.Stderr, "meshbench: skip the message scenario, which needs --endpoint")
			continue
		}
		s.p.say("%s: prepare", name)
		rounds, err := target.measure(ctx, s.p, sc, c.Control, c.Rounds, c.Duration)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, rounds.outcome())
		if ctx.Err() != nil {
			break
		}
	}
	s.p.end()
	return printOutcomes(s, list, c.JSON)
}

type target struct {
	bench *bench
	dir   string               // for files of controls
	cpu   func() time.Duration // nil if it is unknown
}

// target starts a server, or uses the server that the flags name. The returned function cleans up after the run.
func (c *runCmd) target(ctx context.Context, dir string) (target, func() error, error) {
	credential := c.Credential
	if credential == "" {
		credential = string(client.NewCredential())
	}
	t := target{dir: dir}
	if c.URL == "" {
		program, err := findAgentmesh(c.Agentmesh)
		if err != nil {
			return t, nil, err
		}
		srv, err := agentmesh{program, dir}.serve(ctx, filepath.Join(dir, "data"))
		if err != nil {
			return t, nil, err
		}
		if t.bench, err = srv.bench(credential, c.Cards, c.Concurrency); err != nil {
			return t, nil, errors.Join(err, srv.stop())
		}
		t.cpu = srv.cpu
		return t, srv.stop, nil
	}
	directory, err := baseURL(c.URL)
	if err != nil {
		return t, nil, err
	}
	var endpoint *url.URL
	if c.Endpoint != "" {
		if endpoint, err = baseURL(c.Endpoint); err != nil {
			return t, nil, err
		}
	}
	if c.PID > 0 {
		t.cpu = func() time.Duration { return cpuOf(c.PID) }
	}
	t.bench = newBench(directory, endpoint, credential, c.Cards, c.Concurrency)
	return t, func() error { return t.bench.withdrawAll(context.WithoutCancel(ctx)) }, nil
}

// bench returns a bench for a child process that runs a directory and a node.
func (c *child) bench(credential string, cards, workers int) (*bench, error) {
	directory, err := baseURL(c.Directory)
	if err != nil {
		return nil, err
	}
	endpoint, err := baseURL(c.Endpoint)
	if err != nil {
		return nil, err
	}
	return newBench(directory, endpoint, credential, cards, workers), nil
}

type rounds struct {
	name          string
	server, plain []sample // plain is empty without a control
}

// measure runs a scenario for n rounds. If control is set, the scenario takes turns with a control server.
func (t target) measure(ctx context.Context, p *progress, sc scenario, control bool, n int, d time.Duration) (rounds, error) {
	tr, err := sc.prepare(t.bench, ctx)
	if err != nil {
		return rounds{}, err
	}
	cs := []contender{{sc.name, t.bench.workers, tr.operation(tr.base, t.bench.workers, tr.check), t.cpu}}
	if control {
		c, stop, err := t.control(ctx, sc.name, tr)
		if err != nil {
			return rounds{}, err
		}
		defer stop()
		cs = append(cs, c)
	}
	got := interleave(ctx, p, n, d, cs...)
	r := rounds{name: sc.name, server: got[0]}
	if control {
		r.plain = got[1]
	}
	return r, ctx.Err()
}

// control starts a control server that repeats a response to the given traffic.
func (t target) control(ctx context.Context, name string, tr traffic) (contender, func() error, error) {
	a, err := tr.sample(ctx)
	if err != nil {
		return contender{}, nil, err
	}
	script := newScript(a)
	if tr.durable {
		script.Commit = filepath.Join(t.dir, name+".control.db")
	}
	srv, err := startControl(ctx, script)
	if err != nil {
		return contender{}, nil, err
	}
	return contender{name + " (bare)", t.bench.workers, tr.operation(srv.url(), t.bench.workers, nil), srv.cpu}, srv.stop, nil
}

func (r rounds) outcome() outcome {
	o := outcome{
		Scenario:  r.name,
		Rate:      medianOf(r.server, sample.rate),
		P50:       medianOf(r.server, func(s sample) float64 { return micros(s.P50) }),
		P99:       medianOf(r.server, func(s sample) float64 { return micros(s.P99) }),
		CPU:       medianOf(r.server, sample.cost),
		RateRatio: ratio(r.server, r.plain, sample.rate),
		CPURatio:  ratio(r.server, r.plain, sample.cost),
	}
	o.Ops, o.Errors, o.Fault = sumRounds(r.server)
	return o
}

func printOutcomes(s streams, list []outcome, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(s.out)
		out.SetIndent("", "  ")
		return out.Encode(list)
	}
	t := tabwriter.NewWriter(s.out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "scenario\tops/s\tp50 µs\tp99 µs\terrors\tCPU µs/op\trate/bare\tCPU/bare\t")
	for _, o := range list {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%d\t%s\t%s\t%s\t\n", o.Scenario, o.Rate, o.P50, o.P99, o.Errors, formatKnown(o.CPU, 1), formatKnown(o.RateRatio, 2), formatKnown(o.CPURatio, 2))
	}
	for _, o := range list {
		if o.Fault != "" {
			fmt.Fprintf(t, "first error of %s: %s\n", o.Scenario, o.Fault)
		}
	}
	return t.Flush()
}

// formatKnown returns v as text, or a dash if v is 0, which means unknown.
func formatKnown(v float64, digits int) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.*f", digits, v)
}
