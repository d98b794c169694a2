package hook

import (
	"context"
	"io"
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
	reader := &answerReader{intent: c.Message.Intent, progress: c.Progress, tap: c.tap}
	result, err := h.run(ctx, string(c.Message.ID), c.document(), reader)
	if reader.err == nil && err != nil {
		return Answer{}, newProgramError(Crashed, h.name(), err, result.Tail)
	}
	answer, err := reader.finish()
	if err != nil {
		return Answer{}, newProgramError(Malformed, h.name(), err, result.Tail)
	}
	return answer, nil
}

// Ask implements [Asker].
func (h Exec) Ask(ctx context.Context, q Question) ([]byte, error) {
	result, err := h.run(ctx, q.ID, q.Document, nil)
	if err != nil {
		return nil, newProgramError(Crashed, h.name(), err, result.Tail)
	}
	return result.Output, nil
}

// name returns the name of the program's file.
func (h Exec) name() string {
	if len(h.Argv) == 0 {
		return "exec"
	}
	return filepath.Base(h.Argv[0])
}

// run runs the program for the message or question with the id. out gets the output; with nil, the result has it.
func (h Exec) run(ctx context.Context, id string, input []byte, out io.Writer) (subprocess.Result, error) {
	ctx, cancel := boundedContext(ctx)
	defer cancel()
	command := subprocess.Command{Argv: h.Argv, Dir: h.Dir, Env: h.Env, User: h.User, MaxOutput: maxOutput, Stdout: out}
	result, err := command.Run(ctx, input)
	if result.Tail != "" {
		loggerOr(h.Logger).Info("hook wrote to standard error", "hook", h.name(), "message", id, "tail", wire.OneLine(lastStderr(result.Tail), maxStderr))
	}
	return result, err
}
