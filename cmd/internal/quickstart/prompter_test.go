package quickstart

import (
	"bufio"
	"io"
	"testing"

	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// TestInterruptedQuestion: the first ctrl-c ends the questions, although nobody answers.
func TestInterruptedQuestion(t *testing.T) {
	in, keyboard := io.Pipe()
	defer keyboard.Close() // ends the read
	interrupted := make(chan struct{})
	close(interrupted)
	q := &prompter{ui: &terminal.UI{Err: io.Discard, Interrupted: interrupted}, in: bufio.NewReader(in)}
	mode, name := "", ""
	q.askRequired(&name, "--name", "name")
	q.askChoice(&mode, "mode", "open", "closed")
	if q.err == nil {
		t.Error("the questions go on")
	}
}
