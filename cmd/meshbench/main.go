// Command meshbench measures AgentMesh: any directory or endpoint by its URL (`meshbench run`), and the whole table
// of docs/performance.md (`meshbench figures`).
//
// It is for whoever wants to check a figure, not for load in production: what it registers at a directory of others
// it withdraws again. A figure stands beside a control that was measured in the same run, in turn with it: a bare
// net/http server that answers the same bytes and headers, one that makes the same bytes durable, a raw log, the
// standard library's cryptography. Servers run in processes of their own, so that their processor time can be told
// from the client's, and a ratio is the median over the rounds.
//
// Start with scenario.go for what is sent, load.go for how rounds run, and figures.go for the table.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// commands is the grammar of the command line.
type commands struct {
	Run     runCmd     `cmd:"" help:"Drive a directory or an endpoint, in turn with a control server that answers the same."`
	Figures figuresCmd `cmd:"" help:"Measure the table of docs/performance.md and say which targets are met."`
	Mew     mewCmd     `cmd:"" help:"Compare the MEW gateway with a Node relay that only broadcasts."`
	Control controlCmd `cmd:"" hidden:"" help:"Be a control server."`

	AgentRelay agentrelayCmd `cmd:"" name:"agentrelay" help:"Compare the hosted AgentRelay relay with a Node relay that only broadcasts."`
}

// streams is what a command reads and writes.
type streams struct {
	in  io.Reader
	out io.Writer
	p   *progress
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	s := streams{in: os.Stdin, out: os.Stdout, p: newProgress(os.Stderr)}
	err := run(ctx, os.Args[1:], s, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "meshbench:", err)
		os.Exit(1)
	}
}

// stopped is how kong's wish to exit (--help) comes back out of the parser.
type stopped int

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, s streams, errOut io.Writer) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case stopped:
		default:
			panic(p)
		}
	}()
	var c commands
	parser, err := kong.New(&c, kong.Name("meshbench"),
		kong.Description("Measures AgentMesh directories and endpoints."),
		kong.Writers(s.out, errOut), kong.Exit(func(code int) { panic(stopped(code)) }))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return fmt.Errorf("%w; see meshbench --help", err)
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	defer s.p.end()
	return parsed.Run(s)
}
