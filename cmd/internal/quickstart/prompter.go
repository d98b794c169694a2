package quickstart

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
)

// prompter asks a person on a terminal for what the flags leave open. Each method does nothing after the first error.
type prompter struct {
	ui  *terminal.UI
	in  *bufio.Reader // nil if nobody can answer
	err error
}

// maxAnswer is the maximum length of an answer in bytes.
const maxAnswer = 1024

func newPrompter(e Env, silent bool) *prompter {
	q := &prompter{ui: e.UI}
	if !silent && terminal.IsTerminal(e.In) {
		q.in = bufio.NewReaderSize(e.In, maxAnswer)
	}
	return q
}

// askText asks for a text, unless a flag has set it. preset is the text if the person enters nothing.
func (q *prompter) askText(value *string, about, preset string) {
	if q.err != nil || *value != "" {
		return
	}
	if *value = preset; q.in == nil {
		return
	}
	if given := q.ask(about, preset); given != "" {
		*value = given
	}
}

// askRequired asks for a text without which the command cannot go on.
func (q *prompter) askRequired(value *string, flag, about string) {
	for q.err == nil && *value == "" {
		if q.in == nil {
			q.err = exit.FailHint(exit.Usage, fmt.Errorf("%s is missing", flag), "add it, or run the command on a terminal, where it asks")
			return
		}
		*value = q.ask(about, "")
	}
}

// askChoice asks for one of the choices. The first one is the default.
func (q *prompter) askChoice(value *string, about string, choices ...string) {
	if q.err != nil || *value != "" {
		return
	}
	if q.in == nil {
		*value = choices[0]
		return
	}
	for q.err == nil && !slices.Contains(choices, *value) {
		if *value = q.ask(about+" ("+strings.Join(choices, ", ")+")", choices[0]); *value == "" {
			*value = choices[0]
		}
	}
}

// ask prints a question and returns what the person enters, which is empty if the person takes the preset.
func (q *prompter) ask(about, preset string) string {
	if preset != "" {
		about += " [" + preset + "]"
	}
	fmt.Fprintf(q.ui.Err, "%s: ", about)
	var line []byte
	err := q.ui.AwaitInput(func() (err error) { line, err = q.in.ReadSlice('\n'); return err })
	if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
		q.err = exit.Fail(exit.Usage, fmt.Errorf("read the answer: %w", err))
		return ""
	}
	return strings.TrimSpace(string(line))
}
