package main

import (
	"context"
	"iter"
	"os"
	"os/exec"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
)

// a2aCmd is a control server of the A2A project's Go SDK, in its own process, with the SDK's store in memory. Each
// message opens a task, which then waits for its caller. It serves HTTP+JSON at the root, and reads nothing.
type a2aCmd struct{}

func (a2aCmd) Run(ctx context.Context, s streams) error {
	return serveControl(ctx, s, a2asrv.NewRESTHandler(a2asrv.NewHandler(waitingAgent{})))
}

// waitingAgent is an agent whose tasks wait from the beginning: the least that the SDK stores for a task.
type waitingAgent struct{}

func (waitingAgent) Execute(_ context.Context, call *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		task := a2a.NewSubmittedTask(call, call.Message)
		task.Status.State = a2a.TaskStateInputRequired
		yield(task, nil)
	}
}

func (waitingAgent) Cancel(context.Context, *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(func(a2a.Event, error) bool) {}
}

// startA2A starts this program as a control server of the A2A SDK.
func startA2A(ctx context.Context) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "a2a")
	cmd.Stderr = os.Stderr
	return startChild(cmd, nil, parseInfo)
}
