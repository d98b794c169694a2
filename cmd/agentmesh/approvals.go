package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agentmesh/agentmesh/acl"
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
			what := short(k.Says(), 60)
			if k.Waiting > 0 {
				what += fmt.Sprintf(" (and %d more)", k.Waiting)
			}
			rows = append(rows, []string{k.ID, k.Kind, short(bridge.Party(k.Name, k.Address(), k.Subject), 40), what, when(k.Created), string(k.State)})
		}
		none := "nothing waits for you"
		if state != "pending" {
			none = "no approval is in this state"
		}
		a.list(rows, none)
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
		{"state", string(k.State)}, {"since", when(k.Created)}, {"expires", when(k.Expires)}, {"hash", k.Hash},
	}
	if k.Conv.ID != "" {
		rows = append(rows, []string{"conversation", k.Conv.ID})
	}
	if k.Waiting > 0 {
		rows = append(rows, []string{"messages", fmt.Sprintf("%d, decided together", 1+k.Waiting)})
	}
	if !k.Decided.IsZero() {
		rows = append(rows, []string{"decided", when(k.Decided) + " by " + k.By + ": " + string(k.Choice)})
	}
	a.table(rows)
	if len(k.Messages) > 1 {
		a.print("untrusted text from the other side:")
		for i, m := range k.Messages {
			a.print("message %d of %d, %s, %s in %s, hash %s", i+1, len(k.Messages), when(m.At), m.Intent, m.Conversation, m.Hash)
			a.print("%s", cleanJSON(m.Payload))
		}
		return
	}
	if len(k.Body) > 0 {
		switch k.Kind {
		case "outgoing":
			a.print("exactly this leaves, to this recipient:")
		case "task":
			a.print("exactly this payload is said; what it answers is untrusted text from the other side:")
		default:
			a.print("untrusted text from the other side:")
		}
		a.print("%s", cleanJSON(k.Body))
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
		return failHint(exitUsage, errors.New("--all-strangers goes with no id, --hash or --block"), "agentmesh approvals reject --all-strangers")
	case c.Strangers:
		return a.rejectStrangers(ctx, c.JSON)
	case c.ID == "":
		return failHint(exitUsage, errors.New("no id is given"), "agentmesh approvals list shows the ids")
	}
	choice := acl.Reject
	if c.Block {
		choice = acl.Block
	}
	return a.decide(ctx, c.ID, c.Hash, choice, c.JSON)
}

// decide carries out a choice about exactly what is there now, or, with a hash, about what the owner saw (AM-34).
func (a *app) decide(ctx context.Context, id, hash string, choice acl.Choice, asJSON bool) error {
	answer, err := a.settle(ctx, func(o *ownerClient) (json.RawMessage, error) {
		return o.decide(ctx, id, hash, choice)
	})
	if err != nil {
		return err
	}
	if asJSON {
		return a.json(answer)
	}
	k, err := decode[acl.Ask](answer)
	if err != nil {
		return err
	}
	a.print("%s: %s", k.State, clean(k.Title))
	return nil
}

// rejectStrangers rejects every unknown sender that waits.
func (a *app) rejectStrangers(ctx context.Context, asJSON bool) error {
	answer, err := a.settle(ctx, func(o *ownerClient) (json.RawMessage, error) {
		return raw(ctx, o, owner.RejectStrangers.With(owner.Rejection{By: "cli"}))
	})
	if err != nil {
		return err
	}
	if asJSON {
		return a.json(answer)
	}
	result, err := decode[owner.Rejected](answer)
	if err != nil {
		return err
	}
	if result.Rejected == 0 {
		a.print("no stranger waits")
		return nil
	}
	a.print("rejected %d; each stays rejected until you allow or forget it", result.Rejected)
	return nil
}

// settle makes a call that has messages of ours leave, and gives them the time to if no serve runs.
func (a *app) settle(ctx context.Context, call func(*ownerClient) (json.RawMessage, error)) (json.RawMessage, error) {
	o, err := a.owner(ctx)
	if err != nil {
		return nil, err
	}
	stop := func() {}
	if o.here != nil { // no serve runs, so what leaves now must leave from here
		stop = o.here.deliver(ctx)
	}
	raw, err := call(o)
	if err == nil && o.here != nil {
		o.here.attempted(ctx)
	}
	stop()
	return raw, errors.Join(err, o.close())
}

// decide carries out a choice about what has this hash, or about what is there now if hash is empty.
func (o *ownerClient) decide(ctx context.Context, id, hash string, choice acl.Choice) (json.RawMessage, error) {
	if hash == "" {
		k, err := fetch(ctx, o, owner.ShowApproval.Call(id))
		if err != nil {
			return nil, err
		}
		hash = k.Hash
	}
	return raw(ctx, o, owner.DecideApproval.With(owner.Decision{Choice: choice, Hash: hash, By: "cli"}, id))
}
