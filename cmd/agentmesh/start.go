package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/agentmesh/agentmesh/cmd/internal/datadir"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

// startCmd is agentmesh without arguments on a terminal: it shows what an owner wants to know first or, without an agent,
// offers to start one.
type startCmd struct{}

func (c *startCmd) Run(ctx context.Context, a *app) error {
	_, dir, err := a.sourceAndDir()
	if err != nil {
		return err
	}
	if !dir.HasAgent() && !dir.HasDatabase() && !dir.UsedPostgres() {
		return c.offer(ctx, a, dir)
	}
	return callAndShow(ctx, a, owner.ShowStatus.Call(), func(s owner.Status) { a.showStart(s, dir.IsServed()) })
}

// offer asks whether to start an agent, and serves it.
func (c *startCmd) offer(ctx context.Context, a *app, dir datadir.Dir) error {
	fmt.Fprintf(a.Out, "No agent here yet (%s). Start one? [Y/n] ", dir)
	var answer string
	if err := a.AwaitInput(func() (err error) {
		answer, err = bufio.NewReaderSize(a.In, 64).ReadString('\n')
		return err
	}); err != nil {
		return exit.Fail(exit.Usage, err)
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "", "y", "yes":
		return (&serveCmd{}).Run(ctx, a)
	}
	a.Note("for an example run agentmesh demo, for all commands agentmesh --help")
	return nil
}

// showStart prints five lines: who, what waits for the owner, what is new, what is on its way, and where to go on.
func (a *app) showStart(s owner.Status, served bool) {
	if s.AgentID == "" { // only a directory runs here
		a.showStatus(s)
		return
	}
	state := "accepts messages"
	switch {
	case !served:
		state = "does not run: agentmesh serve"
	case s.Paused:
		state = "is paused: agentmesh resume"
	}
	a.Print("%s %s", terminal.Clean(s.Name), a.Command(state))
	a.Print("%s", a.Command(countOr(s.Approvals, "question waits for you", "questions wait for you", "agentmesh approvals", "No question waits for you")))
	a.Print("%s", a.Command(countOr(s.Inbox, "new message", "new messages", "agentmesh inbox", "No new messages")))
	undelivered := "All messages are delivered"
	if n := s.Outbox["queued"]; n > 0 {
		undelivered = countOr(n, "message waits to be delivered", "messages wait to be delivered", "agentmesh status", "")
	}
	a.Print("%s", a.Command(undelivered))
	a.Print("%s", a.Command("In the browser: agentmesh page. All commands: agentmesh --help"))
}

// countOr returns a count with the command that shows what is counted, or none for 0.
func countOr(n int, one, many, command, none string) string {
	switch n {
	case 0:
		return none
	case 1:
		return "1 " + one + ": " + command
	}
	return fmt.Sprintf("%d %s: %s", n, many, command)
}
