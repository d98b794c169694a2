package hook

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Exec runs a program for each message: the message as JSON on standard input, the answer from standard output
// (AM-74). A program that exits with another status than 0 failed, whatever it wrote.
type Exec struct {
	Argv   []string // fixed; nothing is added to it
	Dir    string   // empty: that of this process
	Env    []string // the whole environment; nil: a PATH of the usual places
	Logger *slog.Logger
}

var _ Handler = Exec{}

// Handle runs the program once. Its standard error goes to the log.
func (h Exec) Handle(ctx context.Context, c Call) (Answer, error) {
	ctx, cancel := boundedContext(ctx)
	defer cancel()
	name := "exec"
	if len(h.Argv) > 0 {
		name = filepath.Base(h.Argv[0])
	}
	command := subprocess.Command{Argv: h.Argv, Dir: h.Dir, Env: h.Env, MaxOutput: maxOutput}
	result, err := command.Run(ctx, c.document())
	if result.Tail != "" {
		loggerOr(h.Logger).Info("hook wrote to standard error", "hook", name, "message", c.Message.ID, "tail", wire.OneLine(result.Tail, 2000))
	}
	switch {
	case errors.Is(err, subprocess.ErrOutputTooLarge):
		return Answer{}, failed(TooLarge, name, err)
	case err != nil:
		return Answer{}, failed(Crashed, name, err)
	}
	answer, err := parseAnswer(result.Output, c.Message.Intent)
	if err != nil {
		return Answer{}, failed(Malformed, name, err)
	}
	return answer, nil
}
