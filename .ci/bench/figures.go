package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"
)

type figuresCmd struct {
	Only          []string      `enum:"http,message,owner,doors,relay,mailboxes,mess,commit,list,restart,process" default:"http,message,owner,doors,relay,mailboxes,mess,commit,list,restart,process" help:"Parts of the table (${enum})."`
	Cards         int           `default:"100000" help:"Cards in the list and restart parts; README.md used 1000000."`
	Concurrency   int           `short:"c" default:"64" help:"Number of concurrent senders."`
	Duration      time.Duration `short:"d" default:"2s" help:"Length of one round."`
	Rounds        int           `short:"r" default:"5" help:"Rounds of each measurement, in turn."`
	Threads       int           `default:"100000" help:"Open threads in the mess part."`
	Conversations int           `default:"100000" help:"Conversations in the owner part, ten with each peer."`
	Mailboxes     int           `default:"10000" help:"Connected mailboxes in the mailboxes part."`
	Renewals      int           `default:"500" help:"Renewals per second in the list part."`
	Idle          time.Duration `default:"10s" help:"How long the process part watches an idle server, and how long the mailboxes part waits before it measures memory."`
	Data          string        `placeholder:"DIR" help:"Directory that keeps the big database between runs (default: a temporary one)."`
	Agentmesh     string        `placeholder:"FILE" help:"The agentmesh program (default: in the directory of meshbench, or in PATH)."`
	JSON          bool          `help:"Print JSON."`
}

// figure is a line of the table.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Goal is the bound that the value is compared with; nil for a figure without a target.
	Goal *goal `json:"goal,omitempty"`
	Met  *bool `json:"met,omitempty"`
	// Note explains where the value comes from.
	Note string `json:"note,omitempty"`
}

// goal is an upper bound or, if AtLeast is set, a lower bound.
type goal struct {
	Bound   float64 `json:"bound"`
	AtLeast bool    `json:"at_least,omitempty"`
}

func (g goal) String() string {
	if g.AtLeast {
		return fmt.Sprintf("≥ %g", g.Bound)
	}
	return fmt.Sprintf("≤ %g", g.Bound)
}

// newFigure returns a figure without a target. note is a format for args.
func newFigure(name string, v float64, unit, note string, args ...any) figure {
	return figure{Name: name, Value: v, Unit: unit, Note: fmt.Sprintf(note, args...)}
}

func (f figure) withMax(bound float64) figure {
	return f.withGoal(goal{Bound: bound}, f.Value <= bound)
}

func (f figure) withMin(bound float64) figure {
	return f.withGoal(goal{Bound: bound, AtLeast: true}, f.Value >= bound)
}

func (f figure) withGoal(g goal, met bool) figure {
	f.Goal, f.Met = &g, new(met)
	return f
}

// study is one run of the figures command.
type study struct {
	figuresCmd
	p       *progress
	mesh    agentmesh // the program under test
	dir     string    // temporary
	data    string    // data directory of the big database
	figures []figure

	conversed int // conversations of the node that [study.converse] fills
}

func (s *study) add(list ...figure) { s.figures = append(s.figures, list...) }

// parts are the parts of the table, in order.
var parts = []struct {
	name string
	run  func(*study, context.Context) error
}{
	{"http", (*study).measureHTTP},
	{"message", (*study).measureMessages},
	{"owner", (*study).measureOwner},
	{"doors", (*study).measureDoors},
	{"relay", (*study).measureRelay},
	{"mailboxes", (*study).measureMailboxes},
	{"mess", (*study).measureMESS},
	{"commit", (*study).measureCommits},
	{"list", (*study).measureLists},
	{"restart", (*study).measureRestart},
	{"process", (*study).measureProcess},
}

func (c *figuresCmd) check() error {
	if c.Concurrency < 1 || c.Rounds < 1 || c.Cards < 100 || c.Renewals < 1 || c.Mailboxes < 1 || c.Threads < 1 || c.Duration < 10*time.Millisecond || c.Idle < 10*time.Millisecond {
		return errors.New("--concurrency, --rounds, --renewals, --mailboxes and --threads must be 1 or more, --cards 100 or more, --duration and --idle 10ms or more")
	}
	return nil
}

func (c *figuresCmd) Run(ctx context.Context, s streams) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	program, err := findAgentmesh(c.Agentmesh)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "meshbench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	st := &study{figuresCmd: *c, p: s.p, mesh: agentmesh{program, dir}, dir: dir, data: c.Data}
	if st.data == "" {
		st.data = filepath.Join(dir, "big")
	}
	for _, part := range parts {
		if !slices.Contains(c.Only, part.name) {
			continue
		}
		if err := part.run(st, ctx); err != nil {
			s.p.end()
			return errors.Join(fmt.Errorf("%s: %w", part.name, err), printFigures(s, st.figures, c.JSON))
		}
	}
	s.p.end()
	return printFigures(s, st.figures, c.JSON)
}

func printFigures(s streams, list []figure, asJSON bool) error {
	if asJSON {
		out := json.NewEncoder(s.out)
		out.SetIndent("", "  ")
		return out.Encode(struct {
			Go      string    `json:"go"`
			System  string    `json:"system"`
			CPUs    int       `json:"cpus"`
			At      time.Time `json:"at"`
			Figures []figure  `json:"figures"`
		}{runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, runtime.NumCPU(), time.Now().UTC().Truncate(time.Second), list})
	}
	t := tabwriter.NewWriter(s.out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(t, "figure\tvalue\tunit\ttarget\tmet\tfrom")
	for _, f := range list {
		bound, met := "", ""
		if f.Goal != nil {
			bound, met = f.Goal.String(), map[bool]string{true: "yes", false: "NO"}[*f.Met]
		}
		fmt.Fprintf(t, "%s\t%.3g\t%s\t%s\t%s\t%s\n", f.Name, f.Value, f.Unit, bound, met, f.Note)
	}
	return t.Flush()
}
