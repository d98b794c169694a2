package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/agentmesh/agentmesh/cmd/internal/daemon"
	"github.com/agentmesh/agentmesh/cmd/internal/terminal"
	"github.com/agentmesh/agentmesh/conversations"
	"github.com/agentmesh/agentmesh/node/owner"
)

type conversationsCmd struct {
	List   conversationsListCmd   `cmd:"" default:"withargs" help:"List conversations, newest first."`
	Show   conversationsShowCmd   `cmd:"" help:"Show a conversation and its transcript."`
	Export conversationsExportCmd `cmd:"" help:"Write a conversation to a file that agentmesh verify can check offline."`
	Close  conversationsCloseCmd  `cmd:"" help:"Close a conversation."`
	Delete conversationsDeleteCmd `cmd:"" help:"Delete a conversation and its transcript."`
}

type conversationsListCmd struct {
	State string `placeholder:"STATE" help:"List only conversations in this state: open, completed, failed or expired."`
	Limit int    `default:"50" help:"Maximum number of conversations."`
}

func (c *conversationsListCmd) Run(ctx context.Context, a *app) error {
	query := owner.Params("state", c.State, "limit", fmt.Sprint(c.Limit))
	return callAndShow(ctx, a, owner.ListConversations.Call().WithQuery(query), func(page owner.ConversationList) {
		emptyText := "no conversations yet"
		if c.State != "" {
			emptyText = "no conversations in this state"
		}
		heads := []string{"CONVERSATION", "PEER", "STATE", "INTENT", "LAST"}
		showList(a, owner.Page(page.Items, ""), emptyText, heads, func(v owner.Conversation) []string {
			return []string{v.ID, v.Shown().String(), string(v.State), string(v.Intent), terminal.FormatTime(v.Last)}
		})
		a.NoteMore(page.Next != 0)
	})
}

type conversationArg struct {
	ID   string `arg:"" help:"Conversation id, or the beginning of the id."`
	Peer string `placeholder:"AGENT" help:"The other agent, if two conversations have the same id."`
}

type conversationsShowCmd struct{ conversationArg }

func (c *conversationsShowCmd) Run(ctx context.Context, a *app) error {
	all, err := withResult(ctx, a, func(o *daemon.Client) (owner.Transcript, error) { return readConversation(ctx, o, c.ID, c.Peer) })
	if err != nil {
		return err
	}
	return a.report(all, func() {
		a.showConversation(all.Conversation)
		a.showTranscript(all)
	})
}

// readConversation returns a conversation with all pages of its transcript. id may be only the beginning of an id.
func readConversation(ctx context.Context, o *daemon.Client, id, peer string) (all owner.Transcript, err error) {
	entries := []owner.Entry{}
	for after := uint64(0); ; {
		query := owner.Params("peer", peer, "after", strconv.FormatUint(after, 10))
		if all, err = daemon.Fetch(ctx, o, owner.ShowConversation.Call(id).WithQuery(query)); err != nil {
			return all, err
		}
		entries = append(entries, all.Transcript...)
		if after = all.Next; after == 0 {
			all.Transcript = entries
			return all, nil
		}
		id, peer = all.ID, all.Peer
	}
}

func (a *app) showConversation(v owner.Conversation) {
	rows := [][]string{{"conversation", v.ID}, {"with", v.Shown().String()}, {"peer", v.Peer}}
	if v.Principal != "" {
		rows = append(rows, []string{"address", v.Principal})
	}
	rows = append(rows, [][]string{{"state", string(v.State)}, {"intent", string(v.Intent)}, {"opened", terminal.FormatTime(v.Opened)}, {"last", terminal.FormatTime(v.Last)}}...)
	if v.Turns != nil {
		rows = append(rows, []string{"turns", v.Turns.String() + " without you"})
	}
	for _, agreement := range v.Agreements {
		rows = append(rows, []string{string(agreement.Standing), agreementLine(agreement)})
	}
	for _, p := range v.Proposals {
		rows = append(rows, []string{"proposed", proposalLine(p)})
	}
	a.Table(rows)
}

func (a *app) showTranscript(t owner.Transcript) {
	for _, e := range t.Transcript {
		who := "they"
		if e.Direction == "out" {
			who = "we"
		}
		said, intent := owner.SayMessage(e, t.Intent)
		text := said.Sentence(intent)
		switch {
		case e.Opened != nil:
			text += " (sealed)"
		case e.Sealed:
			text = "wrote a sealed message, which cannot be opened"
		}
		a.Print("%s %s %s", terminal.FormatTime(e.At), who, terminal.Truncate(text, maxLine))
	}
	a.Note("--json shows exactly what was sent")
}

// maxLine is how many characters of a message a line shows.
const maxLine = 500

// agreementLine describes an agreement on one line, with the side that cancelled it, or with advice if it failed.
func agreementLine(agreement owner.Agreement) string {
	switch agreement.Standing {
	case owner.StandingCancelled:
		return fmt.Sprintf("%s; by %s, %s", agreement.Agreement, sides[agreement.Cancelled.By], terminal.FormatTime(agreement.Cancelled.At))
	case owner.StandingFailed, owner.StandingDoubtful:
		return agreement.Agreement.String() + "; ask the other side whether it still holds"
	}
	if by := agreement.Decided(); by != "" {
		return agreement.Agreement.String() + "; agreed " + by
	}
	return agreement.Agreement.String()
}

func proposalLine(p owner.Proposal) string {
	line := fmt.Sprintf("by %s: %s", sides[p.By], p.Terms)
	if p.Accepted != "" {
		line += "; accepted by " + sides[p.Accepted]
		if p.Selected != "" {
			line += " for " + p.Selected
		}
		line += ", waiting for an answer"
	}
	return line
}

// sides names the sides of a conversation for the user.
var sides = map[conversations.Side]string{conversations.Ours: "us", conversations.Theirs: "them"}

type conversationsCloseCmd struct {
	conversationArg
	Status string `default:"completed" enum:"completed,failed" help:"Final state of the conversation: ${enum}."`
	Wait   bool   `help:"Wait for the other side's answer."`
}

func (c *conversationsCloseCmd) Run(ctx context.Context, a *app) error {
	return a.send(ctx, sendFlags{Wait: c.Wait}, func(waitSeconds int) owner.Call[owner.Sent] {
		return owner.CloseConversation.With(owner.Close{Peer: c.Peer, Status: c.Status, WaitSeconds: waitSeconds}, c.ID)
	})
}

type conversationsDeleteCmd struct{ conversationArg }

func (c *conversationsDeleteCmd) Run(ctx context.Context, a *app) error {
	if _, err := callRaw(ctx, a, owner.DeleteConversation.Call(c.ID).WithQuery(owner.Params("peer", c.Peer))); err != nil {
		return err
	}
	result := struct {
		ID      string `json:"conversation_id"` // as the user gave it
		Deleted bool   `json:"deleted"`
	}{c.ID, true}
	return a.report(result, func() { a.Note("deleted") })
}
