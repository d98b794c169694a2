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
	"github.com/agentmesh/agentmesh/node/bridge"
	"github.com/agentmesh/agentmesh/node/owner"
)

type approvalsCmd struct {
	List    approvalsListCmd    `cmd:"" default:"withargs" help:"List what waits for you."`
	Show    approvalsShowCmd    `cmd:"" help:"Show one, with everything you would agree to."`
	Approve approvalsApproveCmd `cmd:"" help:"Approve one."`
	Reject  approvalsRejectCmd  `cmd:"" help:"Reject one, or all strangers that wait."`
}

type approvalsListCmd struct {
	State string `default:"pending" enum:"pending,approved,rejected,withdrawn,expired,all" help:"Only those in this state: ${enum}."`
	Limit int    `default:"50" help:"At most so many."`
	JSON  bool   `help:"Print the result as JSON."`
}

func (c *approvalsListCmd) Run(ctx context.Context, a *app) error {
	state := c.State
	if state == "all" {
		state = ""
	}
	query := params("state", state, "limit", fmt.Sprint(c.Limit))
	return ask(ctx, a, c.JSON, owner.ListApprovals.Call().Ask(query), func(page owner.List[owner.Approval]) {
		rows := [][]string{{"ID", "KIND", "FROM", "WHAT", "SINCE", "STATE"}}
		for _, k := range page.Items {
			what := terminal.Short(k.Says(), 60)
			if k.Waiting > 0 {
				what += fmt.Sprintf(" (and %d more)", k.Waiting)
			}
			rows = append(rows, []string{k.ID, k.Kind, terminal.Short(bridge.Party(k.Name, k.Address(), k.Subject), 40), what, terminal.When(k.Created), string(k.State)})
		}
		none := "nothing waits for you"
		if state != "pending" {
			none = "no approval is in this state"
		}
		a.List(rows, none)
	})
}

type approvalsShowCmd struct {
	ID   string `arg:"" help:"Id of the approval."`
	JSON bool   `help:"Print the result as JSON."`
}

func (c *approvalsShowCmd) Run(ctx context.Context, a *app) error {
	return ask(ctx, a, c.JSON, owner.ShowApproval.Call(c.ID), a.showAsk)
}

func (a *app) showAsk(k owner.Approval) {
	rows := [][]string{
		{"id", k.ID}, {"kind", k.Kind}, {"from", bridge.Party(k.Name, k.Address(), k.Subject)}, {"says", k.Says()}, {"about", k.Subject}, {"because", orDash(k.Rule)},
		{"state", string(k.State)}, {"since", terminal.When(k.Created)}, {"expires", terminal.When(k.Expires)}, {"hash", k.Hash},
	}
	if k.Conv.ID != "" {
		rows = append(rows, []string{"conversation", k.Conv.ID})
	}
	if k.Waiting > 0 {
		rows = append(rows, []string{"messages", fmt.Sprintf("%d, decided together", 1+k.Waiting)})
	}
	if !k.Decided.IsZero() {
		rows = append(rows, []string{"decided", terminal.When(k.Decided) + " by " + k.By + ": " + string(k.Choice)})
	}
	a.Table(rows)
	if len(k.Messages) > 1 {
		a.Print("untrusted text from the other side:")
		for i, m := range k.Messages {
			a.Print("message %d of %d, %s, %s in %s, hash %s", i+1, len(k.Messages), terminal.When(m.At), m.Intent, m.Conversation, m.Hash)
			a.Print("%s", terminal.CleanJSON(m.Payload))
		}
		return
	}
	if len(k.Body) > 0 {
		switch k.Kind {
		case "outgoing":
			a.Print("exactly this leaves, to this recipient:")
		case "task":
			a.Print("exactly this payload is said; what it answers is untrusted text from the other side:")
		default:
			a.Print("untrusted text from the other side:")
		}
		a.Print("%s", terminal.CleanJSON(k.Body))
	}
}

type approvalsApproveCmd struct {
	ID     string `arg:"" help:"Id of the approval."`
	Hash   string `placeholder:"HEX" help:"Approve only if it still has this hash (from show)."`
	Always bool   `xor:"how" help:"Let this agent in, or messages to it out, from now on."`
	// Conversation applies only to messages that come in.
	Conversation bool `xor:"how" help:"Let what this agent says later in this conversation in without asking."`
	JSON         bool `help:"Print the result as JSON."`
}

func (c *approvalsApproveCmd) Run(ctx context.Context, a *app) error {
	choice := acl.Approve
	switch {
	case c.Always:
		choice = acl.ApproveAlways
	case c.Conversation:
		choice = acl.ApproveConversation
	}
	return a.decide(ctx, c.ID, c.Hash, choice, c.JSON)
}

type approvalsRejectCmd struct {
	ID    string `arg:"" optional:"" help:"Id of the approval."`
	Hash  string `placeholder:"HEX" help:"Reject only if it still has this hash (from show)."`
	Block bool   `help:"Block this agent from now on."`
	// Strangers is for a list that somebody has filled.
	Strangers bool `name:"all-strangers" help:"Reject every sender that waits and that you do not know. Each stays rejected until you allow or forget it (agentmesh peers allow, peers forget)."`
	JSON      bool `help:"Print the result as JSON."`
}

func (c *approvalsRejectCmd) Run(ctx context.Context, a *app) error {
	switch {
	case c.Strangers && (c.ID != "" || c.Hash != "" || c.Block):
		return exit.FailHint(exit.Usage, errors.New("--all-strangers goes with no id, --hash or --block"), "agentmesh approvals reject --all-strangers")
	case c.Strangers:
		return a.rejectStrangers(ctx, c.JSON)
	case c.ID == "":
		return exit.FailHint(exit.Usage, errors.New("no id is given"), "agentmesh approvals list shows the ids")
	}
	choice := acl.Reject
	if c.Block {
		choice = acl.Block
	}
	return a.decide(ctx, c.ID, c.Hash, choice, c.JSON)
}

// decide carries out a choice about exactly what is there now, or, with a hash, about what the owner saw (AM-34).
func (a *app) decide(ctx context.Context, id, hash string, choice acl.Choice, asJSON bool) error {
	answer, err := a.settle(ctx, func(o *daemon.Client) (json.RawMessage, error) {
		return decideApproval(ctx, o, id, hash, choice)
	})
	if err != nil {
		return err
	}
	if asJSON {
		return a.JSON(answer)
	}
	k, err := daemon.Decode[acl.Ask](answer)
	if err != nil {
		return err
	}
	a.Print("%s: %s", k.State, terminal.Clean(k.Title))
	return nil
}

// rejectStrangers rejects every unknown sender that waits.
func (a *app) rejectStrangers(ctx context.Context, asJSON bool) error {
	answer, err := a.settle(ctx, func(o *daemon.Client) (json.RawMessage, error) {
		return daemon.Raw(ctx, o, owner.RejectStrangers.With(owner.Rejection{By: "cli"}))
	})
	if err != nil {
		return err
	}
	if asJSON {
		return a.JSON(answer)
	}
	result, err := daemon.Decode[owner.Rejected](answer)
	if err != nil {
		return err
	}
	if result.Rejected == 0 {
		a.Print("no stranger waits")
		return nil
	}
	a.Print("rejected %d; each stays rejected until you allow or forget it", result.Rejected)
	return nil
}

// settle makes a call that has messages of ours leave, and gives them the time to if no serve runs.
func (a *app) settle(ctx context.Context, call func(*daemon.Client) (json.RawMessage, error)) (json.RawMessage, error) {
	o, err := a.owner(ctx)
	if err != nil {
		return nil, err
	}
	stop := func() {}
	if o.Here != nil { // no serve runs, so what leaves now must leave from here
		stop = o.Here.Deliver(ctx)
	}
	raw, err := call(o)
	if err == nil && o.Here != nil {
		o.Here.Attempted(ctx)
	}
	stop()
	return raw, errors.Join(err, o.Close())
}

// decide carries out a choice about what has this hash, or about what is there now if hash is empty.
func decideApproval(ctx context.Context, o *daemon.Client, id, hash string, choice acl.Choice) (json.RawMessage, error) {
	if hash == "" {
		k, err := daemon.Fetch(ctx, o, owner.ShowApproval.Call(id))
		if err != nil {
			return nil, err
		}
		hash = k.Hash
	}
	return daemon.Raw(ctx, o, owner.DecideApproval.With(owner.Decision{Choice: choice, Hash: hash, By: "cli"}, id))
}
