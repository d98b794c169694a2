package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/acl"
	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/exit"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/node/owner"
)

type approvalsCmd struct {
	List    approvalsListCmd    `cmd:"" default:"withargs" help:"List the approvals that wait for you."`
	Show    approvalsShowCmd    `cmd:"" help:"Show an approval with everything that you would agree to."`
	Approve approvalsApproveCmd `cmd:"" help:"Approve a message or a request. If a message waits for its sender, the sender is let in."`
	Reject  approvalsRejectCmd  `cmd:"" help:"Reject a message or a request, or all strangers that wait."`
}

type approvalsListCmd struct {
	State string `default:"pending" enum:"pending,approved,rejected,withdrawn,expired,all" help:"List only approvals in this state: ${enum}."`
	Limit int    `default:"50" help:"Maximum number of approvals."`
}

func (c *approvalsListCmd) Run(ctx context.Context, a *app) error {
	state := c.State
	if state == "all" {
		state = ""
	}
	emptyText := "nothing waits for you"
	if state != "pending" {
		emptyText = "no approvals in this state"
	}
	list := owner.ListApprovals.Call().WithQuery(owner.Params("state", state, "limit", fmt.Sprint(c.Limit)))
	heads := []string{"ID", "KIND", "FROM", "WHAT", "SINCE", "STATE"}
	return callAndShowList(ctx, a, list, emptyText, heads, func(approval owner.Approval) []string {
		what := terminal.Truncate(approval.Says(), 60)
		if approval.Waiting > 0 {
			what += fmt.Sprintf(" (and %d more)", approval.Waiting)
		}
		return []string{approval.ID, approval.Kind, terminal.Truncate(approval.Shown().String(), 48), what, terminal.FormatTime(approval.Created), string(approval.State)}
	})
}

type approvalsShowCmd struct {
	ID string `arg:"" help:"Id of the approval."`
}

func (c *approvalsShowCmd) Run(ctx context.Context, a *app) error {
	return callAndShow(ctx, a, owner.ShowApproval.Call(c.ID), a.showApproval)
}

// choiceFlags are the subcommands and flags that make a choice.
var choiceFlags = map[acl.Choice]string{
	acl.Approve: "approve", acl.ApproveOnce: "approve --once", acl.ApproveConversation: "approve --conversation",
	acl.ApproveAlways: "approve --always", acl.AskAgain: "approve --ask-guard", acl.Reject: "reject", acl.Block: "reject --block",
}

func (a *app) showApproval(approval owner.Approval) {
	rows := [][]string{
		{"id", approval.ID}, {"kind", approval.Kind}, {"from", approval.Shown().String()}, {"says", approval.Says()}, {"about", approval.Subject}, {"because", orDash(approval.Because())},
		{"state", string(approval.State)}, {"since", terminal.FormatTime(approval.Created)}, {"expires", terminal.FormatTime(approval.Expires)}, {"hash", approval.Hash},
	}
	if approval.Conv.ID != "" {
		rows = append(rows, []string{"conversation", approval.Conv.ID})
	}
	if approval.Waiting > 0 {
		rows = append(rows, []string{"messages", fmt.Sprintf("%d, decided together", 1+approval.Waiting)})
	}
	if !approval.Decided.IsZero() {
		rows = append(rows, []string{"decided", terminal.FormatTime(approval.Decided) + " by " + approval.By + ": " + string(approval.Choice)})
	}
	if approval.State == acl.AskPending {
		for _, choice := range approval.Choices {
			rows = append(rows, []string{choiceFlags[choice], approval.Label(choice)})
		}
	}
	a.Table(rows)
	if len(approval.Messages) > 1 {
		for i, m := range approval.Messages {
			a.Print("message %d of %d, %s, %s in %s, hash %s", i+1, len(approval.Messages), terminal.FormatTime(m.At), m.Intent, m.Conversation, m.Hash)
			a.showSaid(m.Payload)
		}
		return
	}
	if len(approval.Body) > 0 {
		switch approval.Kind {
		case "outgoing":
			a.Print("exactly this is sent to this recipient:")
		case owner.AskQuestion:
			a.Print("your agent asks:")
		case "task":
			a.Print("exactly this payload is sent; the text that it answers is untrusted text from the other side:")
		default:
			a.Print("untrusted text from the other side:")
		}
		a.Print("%s", terminal.CleanJSON(approval.Body))
	}
}

type approvalsApproveCmd struct {
	ID     string `arg:"" optional:"" help:"Id of the approval. Without it, the command lists what waits."`
	Hash   string `placeholder:"HEX" help:"Approve only if the approval still has this hash, which show prints."`
	Once   bool   `xor:"how" help:"Approve only this message of an unknown sender, without letting the sender in."`
	Always bool   `xor:"how" help:"For an outgoing message: always allow messages to this agent. Messages that always wait for you still wait."`
	// Conversation applies only to incoming messages.
	Conversation bool   `xor:"how" help:"Also allow later messages from this agent with the same intent in this conversation. If your agent has no turn left: any number of turns for 24 hours."`
	AskGuard     bool   `xor:"how" help:"Ask the guard again about a message of your agent on which it gave no verdict, and send the message if the guard allows it."`
	Text         string `help:"Answer a question of your agent with this text."`
}

func (c *approvalsApproveCmd) Run(ctx context.Context, a *app) error {
	if c.ID == "" {
		if err := (&approvalsListCmd{State: string(acl.AskPending), Limit: 50}).Run(ctx, a); err != nil {
			return err
		}
		return exit.FailHint(exit.Usage, errors.New("the id of an approval is missing"), "agentmesh approve ID")
	}
	choice := acl.Approve
	switch {
	case c.Once:
		choice = acl.ApproveOnce
	case c.Always:
		choice = acl.ApproveAlways
	case c.Conversation:
		choice = acl.ApproveConversation
	case c.AskGuard:
		choice = acl.AskAgain
	}
	return a.decide(ctx, c.ID, owner.Decision{Choice: choice, Hash: c.Hash, Text: c.Text})
}

type approvalsRejectCmd struct {
	ID    string `arg:"" optional:"" help:"Id of the approval."`
	Hash  string `placeholder:"HEX" help:"Reject only if the approval still has this hash, which show prints."`
	Block bool   `help:"Block this agent from now on."`
	Text  string `help:"Answer a question of your agent with this text."`
	// Strangers empties a list that somebody has flooded.
	Strangers bool `name:"all-strangers" help:"Reject all unknown senders that wait. Each stays rejected until you run agentmesh peers allow or agentmesh peers forget."`
}

func (c *approvalsRejectCmd) Run(ctx context.Context, a *app) error {
	switch {
	case c.Strangers && (c.ID != "" || c.Hash != "" || c.Block || c.Text != ""):
		return exit.FailHint(exit.Usage, errors.New("--all-strangers does not go with an id, --hash, --block or --text"), "for example: agentmesh approvals reject --all-strangers")
	case c.Strangers:
		return a.rejectStrangers(ctx)
	case c.ID == "":
		return exit.FailHint(exit.Usage, errors.New("the id is missing"), "list the ids with: agentmesh approvals list")
	}
	choice := acl.Reject
	if c.Block {
		choice = acl.Block
	}
	return a.decide(ctx, c.ID, owner.Decision{Choice: choice, Hash: c.Hash, Text: c.Text})
}

// decide applies a decision to an approval. A decision with a hash applies only if the approval still has this hash,
// and so only to the content that the owner saw (AM-34).
func (a *app) decide(ctx context.Context, id string, d owner.Decision) error {
	answer, err := a.callAndDeliver(ctx, func(o *daemon.Client) (json.RawMessage, error) {
		return decideApproval(ctx, o, id, d)
	})
	_, err = showAnswer(a, answer, err, func(approval owner.Approval) {
		a.Print("%s: %s", owner.Outcome(approval.Ask), terminal.Clean(approval.ShowTitle()))
	})
	return err
}

func (a *app) rejectStrangers(ctx context.Context) error {
	answer, err := a.callAndDeliver(ctx, func(o *daemon.Client) (json.RawMessage, error) {
		return daemon.Raw(ctx, o, owner.RejectStrangers.With(owner.Rejection{By: "cli"}))
	})
	_, err = showAnswer(a, answer, err, func(result owner.Rejected) {
		if result.Rejected == 0 {
			a.Print("no strangers wait")
			return
		}
		a.Print("rejected %d; each stays rejected until you allow or forget it", result.Rejected)
	})
	return err
}

// callAndDeliver makes a call that may queue messages. If serve is not running, it tries to deliver the messages before
// it returns.
func (a *app) callAndDeliver(ctx context.Context, call func(*daemon.Client) (json.RawMessage, error)) (json.RawMessage, error) {
	return a.withDelivery(ctx, func(o *daemon.Client) (json.RawMessage, error) {
		raw, err := call(o)
		if err == nil && o.Local != nil {
			o.Local.AwaitAttempts(ctx)
		}
		return raw, err
	})
}

// decideApproval decides an approval as the user of the command line. If d has no hash, it decides about the content
// that the approval has now.
func decideApproval(ctx context.Context, o *daemon.Client, id string, d owner.Decision) (json.RawMessage, error) {
	if d.Hash == "" {
		approval, err := daemon.Fetch(ctx, o, owner.ShowApproval.Call(id))
		if err != nil {
			return nil, err
		}
		d.Hash = approval.Hash
	}
	d.By = "cli"
	return daemon.Raw(ctx, o, owner.DecideApproval.With(d, id))
}
