package hook

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/agentmesh/agentmesh/node/subprocess"
	"github.com/agentmesh/agentmesh/node/wire"
)

// Exec runs a program for each message. The program gets the message as JSON on standard input. It writes the answer,
// or a stream whose last line is the answer, to standard output (AM-74). If it exits with a status other than 0, it has
// failed, whatever it wrote.
type Exec struct {
	Argv   []string // fixed; nothing from a message is added
	Dir    string   // empty: the directory of this process
	Env    []string // the whole environment; nil: a PATH with the usual directories
	User   string   // the user that the program runs as; empty: the user of this process
	Logger *slog.Logger
}

var _ Handler = Exec{}

// Handle runs the program once. It logs the end of the program's standard error.
func (h Exec) Handle(ctx context.Context, c Call) (Answer, error) {
	ctx, cancel := boundedContext(ctx)
	defer cancel()
	name := "exec"
	if len(h.Argv) > 0 {
		name = filepath.Base(h.Argv[0])
	}
	reader := &answerReader{intent: c.Message.Intent, progress: c.Progress, tap: c.tap}
	command := subprocess.Command{Argv: h.Argv, Dir: h.Dir, Env: h.Env, User: h.User, MaxOutput: maxOutput, Stdout: reader}
	result, err := command.Run(ctx, c.document())
	if result.Tail != "" {
		loggerOr(h.Logger).Info("hook wrote to standard error", "hook", name, "message", c.Message.ID, "tail", wire.OneLine(lastStderr(result.Tail), maxStderr))
	}
	if reader.err == nil && err != nil {
		return Answer{}, newProgramError(Crashed, name, err, result.Tail)
	}
	answer, err := reader.finish()
	if err != nil {
		return Answer{}, newProgramError(Malformed, name, err, result.Tail)
	}
	return answer, nil
}
