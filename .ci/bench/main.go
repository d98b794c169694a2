// Command meshbench measures AgentMesh: most figures of README.md (`meshbench figures`), and the broadcasts
// of the MEW gateway and the AgentRelay relay (`meshbench mew`, `meshbench agentrelay`).
//
// It starts the servers that it measures. A figure is absolute, or a ratio to a control. A control is something simpler
// that is measured in the same run, in turn with AgentMesh: a plain net/http server that returns the same bytes and
// headers, one that commits the same bytes to disk, a raw log, the standard library's cryptography, or a relay in
// Node.js. A ratio is the median over the rounds. Servers run in their own processes, so that their processor time can
// be measured apart from the client's.
//
// Start reading with figures.go for the table, bench.go for the requests, and load.go for the rounds.
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
	Figures figuresCmd `cmd:"" help:"Measure the table of .ci/bench/README.md and show which targets are met."`
	Curves  curvesCmd  `cmd:"" help:"Draw how the costs grow with the number of cards and conversations."`
	Mew     mewCmd     `cmd:"" help:"Compare the MEW gateway with a Node.js relay that only broadcasts."`
	Control controlCmd `cmd:"" hidden:"" help:"Run a control server."`
	A2A     a2aCmd     `cmd:"" name:"a2a" hidden:"" help:"Run a control server of the A2A SDK."`

	AgentRelay agentrelayCmd `cmd:"" name:"agentrelay" help:"Compare the hosted AgentRelay relay with a Node.js relay that only broadcasts."`
}

// streams are the standard streams of a command, and its progress line.
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

// exitCode is the value of the panic that replaces kong's call of os.Exit after --help.
type exitCode int

// run parses args and runs the command that they name.
func run(ctx context.Context, args []string, s streams, errOut io.Writer) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exitCode: // kong has printed the help
		default:
			panic(p)
		}
	}()
	var c commands
	parser, err := kong.New(&c, kong.Name("meshbench"),
		kong.Description("Measures AgentMesh."),
		kong.Writers(s.out, errOut), kong.Exit(func(code int) { panic(exitCode(code)) }))
	if err != nil {
		return err
	}
	command, err := parser.Parse(args)
	if err != nil {
		return fmt.Errorf("%w; see meshbench --help", err)
	}
	command.BindTo(ctx, (*context.Context)(nil))
	defer s.p.end()
	return command.Run(s)
}
